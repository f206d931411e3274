"""The settings that the papers found best, per data set: what a method starts from where they are known.

Kim 2022 and Zhou 2022 state theirs; Cole 2021 the mean number of positives of each set. The settings for `digits` are
ours, chosen on its val split (docs/digits.md).
"""

from __future__ import annotations

from typing import Any, Final

from labelgap.core.errors import UnknownNameError
from labelgap.losses.base.registry import method_options

PAPER_DATASETS: Final = ("voc2012", "coco2014", "nuswide", "cub")
"""The four sets of the single-positive papers, in the order of their tables."""

_PAPERS: Final[dict[str, dict[str, tuple[float, float, float, float]]]] = {
    "epr": {"expected_positives": (1.5, 2.9, 1.9, 31.4)},
    "role": {"expected_positives": (1.5, 2.9, 1.9, 31.4)},
    "ll-r": {"delta_rel": (0.2, 0.4, 0.4, 0.4)},
    "ll-ct": {"delta_rel": (0.2, 0.2, 0.2, 0.4)},
    "ll-cp": {"delta_rel": (0.1, 0.2, 0.2, 0.2)},
    "em": {"alpha": (0.2, 0.1, 0.1, 0.01)},
    "em-apl": {"alpha": (0.2, 0.1, 0.1, 0.01), "beta": (0.02, 0.9, 0.2, 0.4), "warmup": (5, 5, 4, 3)},
    "dw": {"weight": (0.1, 0.1, 0.1, 0.02)},
    "l1r": {"weight": (1e-6, 1e-7, 1e-7, 1e-9)},
    "l2r": {"weight": (1e-6, 1e-7, 1e-7, 1e-8)},
    "n-ls": {"smoothing": (0.3, 0.1, 0.1, 0.1)},
    "entmin": {"weight": (0.01, 0.9, 0.4, 0.4)},
    "asl": {"gamma_neg": (2.0, 2.0, 2.0, 1.0), "margin": (0.2, 0.2, 0.2, 0.0)},
}
_OURS: Final[dict[tuple[str, str], dict[str, Any]]] = {
    ("dw", "digits"): {"weight": 0.02},
    ("em", "digits"): {"alpha": 0.1},
    ("em-apl", "digits"): {"alpha": 0.1, "beta": 0.9},
    ("ll-cp", "digits"): {"delta_rel": 1},
    ("ll-ct", "digits"): {"delta_rel": 2},
    ("ll-r", "digits"): {"delta_rel": 4},
}
_SAME: Final = {"voc2007": "voc2012", "coco2017": "coco2014"}


def paper_dataset(dataset: str | None) -> str | None:
    """Return which of the papers' four sets a data set is, or is the sister of; None where it is neither.

    Example:
        >>> paper_dataset("voc2007"), paper_dataset("csv")
        ('voc2012', None)
    """
    found = _SAME.get(dataset, dataset) if dataset else None
    return found if found in PAPER_DATASETS else None


def published_options(method: str, dataset: str | None) -> dict[str, Any]:
    """Return the options that are known to suit a data set, or its sister; nothing where none are."""
    if (method, dataset) in _OURS:
        return dict(_OURS[method, str(dataset)])
    known = paper_dataset(dataset)
    if known is None:
        return {}
    place = PAPER_DATASETS.index(known)
    return {option: values[place] for option, values in _PAPERS.get(method, {}).items()}


def defaults(method: str, dataset: str | None = None) -> dict[str, Any]:
    """Return the options a method takes on a data set: the papers' where they state them, else its own.

    Args:
        method: one of ``methods()``.
        dataset: "voc2012", "coco2014", "nuswide", "cub" or "digits"; None for the method's own defaults. VOC 2007 and
            COCO 2017 take the settings of their sisters.

    ``eps`` and ``reduction`` are left out, and so is what has no default.

    Example:
        >>> defaults("em", "voc2012")
        {'alpha': 0.2}
        >>> defaults("em-apl", "coco2014")["beta"]
        0.9
    """
    own = {key: value for key, value in method_options(method).items() if key not in ("eps", "reduction")}
    known = (*PAPER_DATASETS, *_SAME, "digits")
    if dataset is not None and dataset not in known:
        raise UnknownNameError("data set with published settings called", dataset, known)
    settings = {**own, **published_options(method, dataset)}
    return {key: value for key, value in settings.items() if value is not None}
