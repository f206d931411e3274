"""Losses by name, the papers they come from, and the settings that the papers found best for each data set.

To add a loss here: a file in ``labelgap/losses``, its class in the package and in the table below, and its test. A
package of your own calls ``labelgap.register_method``, or names its classes in the entry point group
"labelgap.methods": then the commands know them too.

The table names classes, which are imported when they are used: to list the methods takes no PyTorch.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Final, cast

from labelgap.core.errors import InputError, UnknownNameError
from labelgap.core.lazy import lazy_names
from labelgap.core.registry import Registry, load_plugins
from labelgap.core.trust import find_class, is_class_path

if TYPE_CHECKING:
    from labelgap.losses.base.loss import Loss

ENTRY_POINTS = "labelgap.methods"
"""The entry point group in which an installed package names its losses."""


_FAMILIES: Final = (
    *("assume_negative", "asymmetric", "curriculum", "entropy", "hill_splc", "interactive", "large_loss", "ranking"),
    *("robust", "role", "selective", "two_way"),
)
find_loss = lazy_names("labelgap.losses", "base.loss", "base.mixture", "base.state", *_FAMILIES)
"""Returns a class of the package ``labelgap.losses``, by its name."""


@dataclass(frozen=True)
class Paper:
    """A publication; reports and tables cite it."""

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
    "Chen et al.", "Boosting Single Positive Multi-label Classification with Generalized Robust Loss", "IJCAI", 2024
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
TRAN_2025 = Paper(
    "Tran et al.",
    "More Reliable Pseudo-labels, Better Performance: A Generalized Approach to Single Positive Multi-label Learning",
    "ICCV",
    2025,
)
WESTON_2011 = Paper("Weston et al.", "WSABIE: Scaling Up To Large Vocabulary Image Annotation", "IJCAI", 2011)
ZHANG_2021 = Paper(
    "Zhang et al.", "Simple and Robust Loss Design for Multi-Label Learning with Missing Labels", "arXiv", 2021
)
ZHOU_2022 = Paper(
    "Zhou et al.", "Acknowledging the Unknown for Multi-label Learning with Single Positive Labels", "ECCV", 2022
)


@dataclass(frozen=True)
class Method:
    """A method that can be asked for by name, with a line for ``labelgap methods``."""

    name: str
    source: type[Loss] | str  # the class, or what it is called in labelgap.losses
    summary: str
    paper: Paper | None = None  # who proposed it; None for a method of somebody's own

    @cached_property
    def loss_class(self) -> type[Loss]:
        """The class of the loss."""
        if isinstance(self.source, str):
            return cast("type[Loss]", find_loss(self.source))
        return self.source

    @property
    def reference(self) -> str:
        """First author and year of the paper; empty where there is none."""
        return "" if self.paper is None else self.paper.short

    @property
    def citation(self) -> str:
        """The paper in full; empty where there is none."""
        return "" if self.paper is None else self.paper.citation


_METHODS: Registry[Method] = Registry("method", hint="`labelgap methods` lists all {count}.")


_BUILT_IN: Final = (
    ("iu", "IgnoreUnknown", COLE_2021, "ignore unknown: learn from the known labels alone"),
    ("bce", "IgnoreUnknown", COLE_2021, "binary cross-entropy: `iu` where nothing is unknown"),
    ("iun", "IgnoreUnknown", COLE_2021, "ignore unknown; meant for one positive and all negatives observed"),
    ("an", "AssumeNegative", COLE_2021, "assume negative: every unknown label counts as absent"),
    ("bce-ls", "SmoothedIgnoreUnknown", COLE_2021, "binary cross-entropy of the known labels with smoothed targets"),
    ("an-ls", "SmoothedAssumeNegative", COLE_2021, "assume negative with smoothed targets"),
    ("ls", "SmoothedAssumeNegative", ZHOU_2022, "the same as `an-ls`, under this paper's name"),
    ("n-ls", "SmoothedUnknown", ZHOU_2022, "assume negative, only assumed negatives smoothed"),
    (
        "wan",
        "WeakAssumeNegative",
        COLE_2021,
        "weak assume negative: unknown labels count as absent with a small weight",
    ),
    ("dw", "DownWeighting", ZHOU_2022, "down-weighting: assumed negatives count little"),
    ("l1r", "L1Penalty", ZHOU_2022, "assume negative with an L1 penalty on the weights"),
    ("l2r", "L2Penalty", ZHOU_2022, "assume negative with an L2 penalty on the weights"),
    ("focal", "FocalLoss", LIN_2017, "focal loss: easy entries count little; unknown counts as absent"),
    ("asl", "AsymmetricLoss", RIDNIK_2021, "asymmetric loss: easy negatives count little; unknown counts as absent"),
    (
        "curriculum",
        "CurriculumLabeling",
        DURAND_2019,
        "known labels alone, and rounds in which the surest others are added",
    ),
    ("em", "EntropyMaximization", ZHOU_2022, "entropy maximization: stay undecided where the label is unknown"),
    ("entmin", "EntropyMinimization", ZHOU_2022, "entropy minimization: be decided where the label is unknown"),
    ("em-apl", "AsymmetricPseudoLabeling", ZHOU_2022, "`em`, and unlikely labels become soft negatives round by round"),
    ("hill", "HillLoss", ZHANG_2021, "hill loss: the gradient of a negative that looks positive decreases"),
    ("splc", "SelfPacedCorrection", ZHANG_2021, "self-paced correction: likely unknown labels count as present"),
    ("imcl", "InteractiveLearning", HUYNH_2020, "known labels, and similar images should have similar labels"),
    ("ll-r", "LargeLossRejection", KIM_2022, "large loss, rejection: assumed negatives with a large loss are left out"),
    ("ll-ct", "LargeLossCorrection", KIM_2022, "large loss, temporary correction: they count as present for this step"),
    (
        "ll-r-abs",
        "AbsoluteLargeLossRejection",
        KIM_2022,
        "`ll-r` with a threshold on the loss that falls with the epochs",
    ),
    (
        "ll-ct-abs",
        "AbsoluteLargeLossCorrection",
        KIM_2022,
        "`ll-ct` with a threshold on the loss that falls with the epochs",
    ),
    (
        "ll-cp",
        "LargeLossPermanentCorrection",
        KIM_2022,
        "large loss, permanent correction: they count as present from then on",
    ),
    (
        "ll-cp-abs",
        "AbsoluteLargeLossPermanentCorrection",
        KIM_2022,
        "`ll-cp` with a threshold on the loss that falls with the epochs",
    ),
    ("two-way", "TwoWayLoss", KOBAYASHI_2023, "two-way loss: contrast within images and within classes"),
    ("two-way-sample", "TwoWaySampleLoss", KOBAYASHI_2023, "the half of two-way that contrasts within images"),
    ("two-way-class", "TwoWayClassLoss", KOBAYASHI_2023, "the half of two-way that contrasts within classes"),
    (
        "softmax",
        "SoftmaxCrossEntropy",
        KOBAYASHI_2023,
        "softmax cross-entropy, spread evenly over the positives of an image",
    ),
    ("pr", "PairwiseRanking", COLE_2021, "pairwise ranking of positives above everything else, on probabilities"),
    ("warp", "WarpLoss", WESTON_2011, "WARP: every positive above every negative, weighted by its rank"),
    ("rml", "RobustRankingLoss", KOBAYASHI_2023, "robust multi-label ranking with a ramp instead of a hinge"),
    ("gr", "GeneralizedRobustLoss", CHEN_2024, "generalized robust: an unknown label is a soft mixture of both states"),
    ("gpr", "GeneralizedPriorRobustLoss", TRAN_2025, "`gr`, and what a teacher (--prior) calls present is present"),
    (
        "epr",
        "ExpectedPositiveRegularization",
        COLE_2021,
        "expected positive regularization: known labels, and how many positives to expect",
    ),
    (
        "role",
        "OnlineLabelEstimation",
        COLE_2021,
        "online label estimation: the missing labels are learned along with the classifier",
    ),
    (
        "csl",
        "ClassAwareSelectiveLoss",
        BEN_BARUCH_2022,
        "class-aware selective: unknown counts as absent, the doubtful left out",
    ),
)
for _name, _class, _paper, _summary in _BUILT_IN:
    _METHODS.add(_name, Method(_name, _class, _summary, _paper), summary=_summary)


def register_method(name: str, loss_class: type[Loss], *, summary: str = "", paper: Paper | None = None) -> None:
    """Make a loss of your own known by name to ``loss``, ``fit`` and, in the same process, the commands.

    The parameters of its ``__init__`` are the method's options. ``summary`` is a line for ``labelgap methods``: the
    first one of the class's docstring when not given.
    """
    from labelgap.losses.base.loss import Loss

    if not (isinstance(loss_class, type) and issubclass(loss_class, Loss)):
        raise InputError(f"the method '{name}' needs a subclass of labelgap.Loss, not {loss_class!r}.")
    if name in _METHODS:
        raise InputError(f"there is a method '{name}' already: choose another name.")
    summary = summary or _first_line(loss_class)
    _METHODS.add(name, Method(name, loss_class, summary, paper), summary=summary)


@cache
def _registry() -> Registry[Method]:
    """Register what installed packages bring along, once."""
    for name, value in load_plugins(ENTRY_POINTS):
        register_method(name, value)
    return _METHODS


def methods() -> list[str]:
    """Return the name of every method: those of this package, then those of plug-ins."""
    return _registry().names()


def describe_method(name: str) -> Method:
    """Return the class, the summary and the paper of a method; ``package.module:Class`` is a class of your own."""
    if is_class_path(name):
        from labelgap.losses.base.loss import Loss

        loss_class = find_class(name, Loss)
        return Method(name, loss_class, _first_line(loss_class))
    return _registry().get(name).value


def loss(name: str, **options: Any) -> Loss:
    """Create a loss by name, one of ``methods()``; an unknown option is an error that names the nearest.

    Example:
        >>> loss("an-ls", smoothing=0.2)
        SmoothedAssumeNegative(an-ls, smoothing=0.2, eps=0.0, reduction='mean')
    """
    loss_class = describe_method(name).loss_class
    known = _options(loss_class)
    if unknown := [option for option in options if option not in known]:
        hint = "" if known else f"'{name}' has no options."
        raise UnknownNameError(f"option of '{name}' called", unknown[0], known, hint)
    try:
        loss_fn = loss_class(**options)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    loss_fn.name = name
    return loss_fn


def method_options(name: str) -> dict[str, Any]:
    """Return the options a user may give to a method, with their defaults."""
    return dict(_options(describe_method(name).loss_class))


def option_meanings(name: str) -> dict[str, str]:
    """Return what the docstrings of a method's class and its bases say about each option."""
    found: dict[str, str] = {}
    for each in reversed(describe_method(name).loss_class.__mro__):
        match = re.search(r"^Args:\n((?:    .*\n?|\n)*)", inspect.getdoc(each) or "", re.MULTILINE)
        for entry in re.split(r"\n(?=    \S)", match[1].rstrip()) if match else []:
            option, _, meaning = entry.strip().partition(":")
            if not meaning.strip().startswith("see ``"):
                found[option] = " ".join(meaning.split())
    return found


def loss_options(loss_fn: Loss) -> dict[str, Any]:
    """Return the options that a loss was created with, read from its attributes of the same names."""
    names = _options(type(loss_fn))
    if missing := [name for name in names if not hasattr(loss_fn, name)]:
        raise InputError(
            f"the options of {type(loss_fn).__name__} cannot be recorded: __init__ takes {missing[0]!r}, and the "
            f"object has no attribute of that name. Set self.{missing[0]} = {missing[0]}."
        )
    return {name: getattr(loss_fn, name) for name in names}


def _first_line(loss_class: type[Loss]) -> str:
    return (inspect.getdoc(loss_class) or loss_class.__name__).splitlines()[0]


@cache
def _options(loss_class: type[Loss]) -> dict[str, Any]:
    parameters = inspect.signature(loss_class).parameters.values()
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    defaults = {item.name: item.default for item in parameters if item.kind in named}
    return {name: None if value is inspect.Parameter.empty else value for name, value in defaults.items()}


PAPER_DATASETS: Final = ("voc2012", "coco2014", "nuswide", "cub")
"""The four sets of the single-positive papers, in the order of their tables."""

_AEVLP: Final = (0.0, 10.0, -2.0, -8.0)
_PAPERS: Final[dict[str, dict[str, tuple[Any, Any, Any, Any]]]] = {
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
    "gr": {"beta": ((0.0, 2.0, -2.0, -2.0), _AEVLP, _AEVLP, _AEVLP), "q3": (1.0, 1.0, 1.0, 1.5)},
    "gpr": {"beta": ((0.0, 2.0, -2.0, -2.0), _AEVLP, _AEVLP, _AEVLP), "q3": (1.0, 1.0, 1.0, 1.5)},
    "asl": {"gamma_neg": (2.0, 2.0, 2.0, 1.0), "margin": (0.2, 0.2, 0.2, 0.0)},
}
"""Zhou 2022 states its settings, Cole 2021 the mean number of positives of each set; those of `gr` are of the later
AEVLP, whose configurations have its form. Those of `ll-…` are not in Kim 2022: the first author gave them on 2022-11-21
in issue #4 of his repository, snucml/LargeLossMatters. For `l2r` Zhou 2022 prints five values for four sets."""
_OURS: Final[dict[tuple[str, str], dict[str, Any]]] = {
    ("dw", "digits"): {"weight": 0.02},
    ("em", "digits"): {"alpha": 0.1},
    ("em-apl", "digits"): {"alpha": 0.1, "beta": 0.9},
    ("ll-cp", "digits"): {"delta_rel": 1},
    ("ll-ct", "digits"): {"delta_rel": 2},
    ("ll-r", "digits"): {"delta_rel": 4},
}
"""Chosen on the val split of `digits` (docs/digits.md)."""
_SAME: Final = {"voc2007": "voc2012", "coco2017": "coco2014"}


def paper_dataset(dataset: str | None) -> str | None:
    """Return which of the papers' four sets a data set is, or is the sister of; None where it is neither."""
    found = _SAME.get(dataset, dataset) if dataset else None
    return found if found in PAPER_DATASETS else None


def published_options(method: str, dataset: str | None) -> dict[str, Any]:
    """Return the options that are known to suit a data set, or its sister; nothing where none are."""
    if (method, dataset) in _OURS:
        return dict(_OURS[method, str(dataset)])
    if (known := paper_dataset(dataset)) is None:
        return {}
    found = {name: values[PAPER_DATASETS.index(known)] for name, values in _PAPERS.get(method, {}).items()}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}


def defaults(method: str, dataset: str | None = None) -> dict[str, Any]:
    """Return the options a method takes on a data set: the papers' where they state them, else its own.

    ``dataset`` is "voc2012", "coco2014", "nuswide", "cub" or "digits"; VOC 2007 and COCO 2017 take the settings of
    their sisters. ``eps`` and ``reduction`` are left out, and so is what has no default.

    Example:
        >>> defaults("em-apl", "coco2014")["beta"]
        0.9
    """
    own = {key: value for key, value in method_options(method).items() if key not in ("eps", "reduction")}
    known = (*PAPER_DATASETS, *_SAME, "digits")
    if dataset is not None and dataset not in known:
        raise UnknownNameError("data set with published settings called", dataset, known)
    settings = {**own, **published_options(method, dataset)}
    return {key: value for key, value in settings.items() if value is not None}
