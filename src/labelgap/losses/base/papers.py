"""The papers that the methods come from, as values: reports and tables cite them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Paper:
    """A publication.

    Example:
        >>> KIM_2022.short
        'Kim 2022'
        >>> KIM_2022.citation
        'Kim et al., "Large Loss Matters in Weakly Supervised Multi-Label Classification", CVPR 2022'
    """

    authors: str
    title: str
    venue: str
    year: int

    @property
    def short(self) -> str:
        """The first author's name and the year."""
        return f"{self.authors.split()[0]} {self.year}"

    @property
    def citation(self) -> str:
        """Authors, title, venue and year."""
        return f'{self.authors}, "{self.title}", {self.venue} {self.year}'


BEN_BARUCH_2022 = Paper(
    "Ben-Baruch et al.",
    "Multi-label Classification with Partial Annotations using Class-Aware Selective Loss",
    "CVPR",
    2022,
)
CHEN_2024 = Paper(
    "Chen et al.",
    "Boosting Single Positive Multi-label Classification with Generalized Robust Loss",
    "IJCAI",
    2024,
)
COLE_2021 = Paper("Cole et al.", "Multi-Label Learning from Single Positive Labels", "CVPR", 2021)
DURAND_2019 = Paper(
    "Durand et al.", "Learning a Deep ConvNet for Multi-label Classification with Partial Labels", "CVPR", 2019
)
HUYNH_2020 = Paper("Huynh & Elhamifar", "Interactive Multi-Label CNN Learning with Partial Labels", "CVPR", 2020)
KIM_2022 = Paper("Kim et al.", "Large Loss Matters in Weakly Supervised Multi-Label Classification", "CVPR", 2022)
KOBAYASHI_2023 = Paper("Kobayashi", "Two-way Multi-Label Loss", "CVPR", 2023)
LIN_2017 = Paper("Lin et al.", "Focal Loss for Dense Object Detection", "ICCV", 2017)
RIDNIK_2021 = Paper("Ridnik et al.", "Asymmetric Loss For Multi-Label Classification", "ICCV", 2021)
WESTON_2011 = Paper("Weston et al.", "WSABIE: Scaling Up To Large Vocabulary Image Annotation", "IJCAI", 2011)
ZHANG_2021 = Paper(
    "Zhang et al.", "Simple and Robust Loss Design for Multi-Label Learning with Missing Labels", "arXiv", 2021
)
ZHOU_2022 = Paper(
    "Zhou et al.", "Acknowledging the Unknown for Multi-label Learning with Single Positive Labels", "ECCV", 2022
)
