"""What a comparison compares: its settings, the methods and their variants, their grids, and the labels they see.

What a user varies has a row for each value; what a grid searches has one row, at the value that val chooses.
docs/compare.md describes the grids, and the methods that cannot learn from the table.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, Final

from labelgap.core.errors import InputError, UnknownNameError
from labelgap.data.dataset import Dataset
from labelgap.labels import LabelTable
from labelgap.labels.masking import GAPS, check_draw
from labelgap.losses import describe_method, loss, method_options, methods
from labelgap.studies.compare.results import SkippedMethod
from labelgap.training.plan import TrainingRequest
from labelgap.training.presets import LINEAR_DEFAULTS

SYNONYMS: Final = {"ls": "an-ls"}  # second names of methods, which "all" leaves out
SHORT: Final = ("an", "an-ls", "wan", "iu", "em", "gr", "role", "epr", "ll-r")
"""The methods of "short": each is ahead somewhere (docs/results), or is what others are measured against."""
COMPLETE_SHORT: Final = ("bce", "bce-ls", "asl", "two-way")
"""Those where every label is known: all of ``SHORT`` would then be `bce` or `bce-ls`."""

ALL_LABELS: Final = frozenset({"bce", "bce-ls"})
NEED_ABSENT: Final = frozenset({"iu", "curriculum", "imcl"})
CONTRAST: Final = frozenset({"two-way", "two-way-sample", "two-way-class"})

GRIDS: Final = ("auto", "small", "full")
GRID_SETTINGS: Final = {"lr": "learning_rates", "batch_size": "batch_sizes", "weight_decay": "weight_decays"}
"""Settings of training that can vary, and the settings of a comparison that hold their values."""
Variation = Mapping[str, Sequence[Any]]  # ``NAME`` of an option or setting, or ``METHOD.NAME``, → its values

_Values = dict[str, tuple[float, ...]]
_LEARNING_RATES: Final = {"small": (1e-3, 1e-4), "full": (1e-2, 1e-3, 1e-4, 1e-5)}
_BATCH_SIZES: Final = {"small": (16,), "full": (8, 16)}
_PERCENTS: Final[_Values] = {"delta_rel": (0.1, 0.2, 0.3, 0.4, 0.5)}
_ABSOLUTE: Final[_Values] = {"r0": (1.0, 1.5, 2.0), "delta_abs": (0.1, 0.15, 0.2)}
_SHARES: Final = (0.01, 0.02, 0.1, 0.2, 0.4, 0.9)
_PENALTIES: Final[_Values] = {"weight": (1e-9, 1e-8, 1e-7, 1e-6, 1e-5)}
OPTION_GRIDS: Final[dict[str, _Values]] = {
    **dict.fromkeys(("ll-r", "ll-ct", "ll-cp"), _PERCENTS),
    **dict.fromkeys(("ll-r-abs", "ll-ct-abs", "ll-cp-abs"), _ABSOLUTE),
    "em": {"alpha": _SHARES},
    "em-apl": {"alpha": _SHARES, "beta": _SHARES},
    "dw": {"weight": _SHARES},
    "entmin": {"weight": _SHARES},
    "l1r": _PENALTIES,
    "l2r": _PENALTIES,
    "n-ls": {"smoothing": (0.1, 0.2, 0.3)},
    "focal": {"alpha": (0.25, 0.5, 0.75)},
    "asl": {"gamma_neg": (1.0, 2.0), "margin": (0.0, 0.05, 0.2)},
}
"""The options that a method's paper searched, with their values: Kim 2022 for `ll-…`, Zhou 2022 for the rest."""
KIM_RATES: Final = (1e-5, 2.5e-5, 5e-5, 7.5e-5, 1e-4, 2.5e-4, 5e-4, 7.5e-4, 1e-3, 2.5e-3, 5e-3, 7.5e-3, 1e-2)
"""Learning rates that Kim 2022 searched (supplement A): the ranges between 1e-2, 1e-3, 1e-4 and 1e-5 in quarters."""


@dataclass(frozen=True)
class LabelView:
    """The training labels that a method sees."""

    description: str  # for the table
    datasets: tuple[Dataset, ...]  # one for each seed; the same object where the seed changes nothing
    label_seeds: tuple[int | None, ...]  # of each draw; None where nothing is drawn
    extra_labels: bool = False  # whether the other methods see fewer labels
    options: Mapping[str, Any] | None = None  # that the method needs to learn from these labels


class LabelViews:
    """The labels of a comparison, hidden as ``observe`` says for each seed anew, and others drawn from their truth."""

    def __init__(self, data: Dataset, seeds: int, observe: Mapping[str, Any] | None, label_seed: int) -> None:
        self.data, self.seeds, self.observe, self.label_seed = data, seeds, observe, label_seed
        self._draw = cache(data.observe)

    @property
    def truth(self) -> LabelTable | None:
        """The table with more labels than are shown, if it has both states."""
        truth = self.data.train.truth if self.observe is None else self.data.train.evaluation_labels
        return truth if truth is not None and min(truth.counts().total[:2]) > 0 else None

    def observed(self) -> LabelView:
        """Return the table as it is, or as ``observe`` hides it."""
        if self.observe is not None:
            return self._drawn(self.observe)
        labels = self.data.train.labels
        present, absent, _ = labels.counts().total
        description = "every label" if labels.complete else f"{present:,} present and {absent:,} absent labels"
        return LabelView(description, (self.data,) * self.seeds, (None,) * self.seeds)

    def revealed(self) -> LabelView:
        """Return every known label."""
        data = self.data.reveal()
        data = replace(data, train=replace(data.train, truth=data.train.labels))
        description = "every label" if data.train.labels.complete else "all that is known"
        return LabelView(description, (data,) * self.seeds, (None,) * self.seeds, extra_labels=True)

    def drawn(self, positives: Any, negatives: Any) -> LabelView:
        """Return so many labels of each image, drawn from the truth; the present ones by the table's rule if any."""
        draw: Mapping[str, Any] = {"positives": positives, "negatives": negatives}
        own = dict(self.observe or {})
        if own.get("positives") in GAPS and own["positives"] != "labels":  # that rule says which absent ones stay
            draw = {**own, "negatives": negatives}
        return replace(self._drawn(draw), extra_labels=True)

    def _drawn(self, draw: Mapping[str, Any]) -> LabelView:
        seeds = tuple(self.label_seed + (seed if self.observe is not None else 0) for seed in range(self.seeds))
        return LabelView(describe_draw(**draw), tuple(self._draw(**draw, seed=seed) for seed in seeds), seeds)


def label_view_for(method: str, views: LabelViews) -> LabelView | SkippedMethod:
    """Return the labels that a method sees, or why it cannot run."""
    view, truth = views.observed(), views.truth
    present, absent, unknown = view.datasets[0].train.labels.counts().total
    if method in ALL_LABELS and unknown:
        reason = "it learns from full labels, which are not known here; `iu` is the same on the known ones"
        return SkippedMethod(method, reason) if truth is None else views.revealed()
    if method == "iun":
        reason = "its labels (1 present and all absent of each image) are drawn from a truth: there is none"
        return SkippedMethod(method, reason) if truth is None else views.drawn(1, "all")
    if method in NEED_ABSENT and not absent:
        reason = "no label is known to be absent, and it would call everything present"
        return SkippedMethod(method, reason) if truth is None else views.drawn(1, 1)
    negative = method in CONTRAST and not absent and present
    return replace(view, options={"unknown": "negative"}) if negative else view


def describe_draw(positives: Any = 1, negatives: Any = 0, **options: Any) -> str:
    """Describe the labels that are drawn of each image, e.g. "1 present and all absent labels of each image"."""
    if (gap := check_draw(positives, options, negatives)) is not None:
        absent = f", and {describe_draw(0, negatives)}" if negatives and not gap.draws_absents else ""
        return f"{gap.name}: {gap.description}{absent}"
    drawn = [(amount, state) for amount, state in ((positives, "present"), (negatives, "absent")) if amount != 0]
    if not drawn:
        return "no label"
    noun = "label" if drawn[-1][0] == 1 else "labels"
    return f"{' and '.join(f'{amount} {state}' for amount, state in drawn)} {noun} of each image"


def refuse_prior(data: Dataset) -> None:
    """Refuse a prior where heads of one study are trained together, by the labels alone."""
    if data.prior is not None:
        raise InputError(
            "a prior is not used where heads are compared: their scores would be those without it. Leave --prior out; "
            "`labelgap train` takes it."
        )


@dataclass(frozen=True)
class CompareSettings:
    """How methods are compared."""

    seeds: int = 3  # how many, from ``first_seed``
    observe: Mapping[str, Any] | None = None  # labels to hide first, as ``Dataset.observe`` takes it
    label_seed: int = 1200  # of the first draw; seed s has ``label_seed + s``
    grid: str = "auto"  # "small" or "full"
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # method → options that are not searched
    learning_rates: Sequence[float] | None = None  # instead of the grid's
    batch_sizes: Sequence[int] | None = None  # instead of the grid's
    weight_decays: Sequence[float] | None = None  # default: 0 in the papers' grids, else by the number of features
    standardize: bool | None = None  # the features; by default not in the papers' grids
    epochs: int | None = None  # of every head; by default 25, or 15 of the optimizer "newton"
    backbone: str | None = None  # that computes features; the default for the data when None
    weights: str | None = None  # file of its weights
    size: int | None = None  # of the images, if it is not the backbone's
    select: str = "auto"  # the rule that selects epochs and settings; see ``training.selection``
    shuffle: bool = False  # whether a seed also determines the order of the batches; else all heads see one order
    vary: Variation = field(default_factory=dict)  # option or setting, or ``METHOD.NAME`` → values with a row each
    first_seed: int = 0  # the seeds are this one and the next
    baseline: bool = True  # whether plain logistic regression is compared too

    @property
    def adam_epochs(self) -> int:
        """The epochs of heads that are trained in batches."""
        return int(LINEAR_DEFAULTS["epochs"]) if self.epochs is None else self.epochs

    def request(self) -> TrainingRequest:
        """Return what the heads of all methods share, as the arguments of ``fit``."""
        given = {name: getattr(self, name) for name in ("epochs", "standardize", "backbone", "weights")}
        given |= {"lr": (self.learning_rates or (None,))[0], "batch_size": (self.batch_sizes or (None,))[0]}
        given = {name: value for name, value in given.items() if value is not None}
        return TrainingRequest.of({"method": "an", "select": self.select, "protocol": "linear", **given})

    def fixed_options(self, method: str, view: LabelView, variant: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of a method that are not searched."""
        varied = {name: value for name, value in variant.items() if name not in GRID_SETTINGS}
        return {**(view.options or {}), **self.options.get(method, {}), **varied}

    def for_variant(self, variant: Mapping[str, Any]) -> CompareSettings:
        """Return the settings with the learning rate, batch size or weight decay of a variant."""
        given: Any = {GRID_SETTINGS[name]: (value,) for name, value in variant.items() if name in GRID_SETTINGS}
        return replace(self, **given)


def check_settings(methods: str | Iterable[str], settings: Mapping[str, Any]) -> CompareSettings:
    """Return the settings; ``InputError`` for a name or value that is wrong whatever the data are."""
    known = [item.name for item in fields(CompareSettings)]
    for name in settings:
        if name not in known:
            raise UnknownNameError("setting of a comparison called", name, known)
    chosen, names = CompareSettings(**settings), method_names(methods)
    if chosen.seeds < 1 or chosen.adam_epochs < 1:
        raise InputError(f"seeds={chosen.seeds}, epochs={chosen.epochs}: at least one of each is needed.")
    if chosen.grid not in GRIDS:
        raise UnknownNameError("grid", chosen.grid, GRIDS)
    for (name, setting), example in zip(GRID_SETTINGS.items(), ("1e-3,1e-4", "16", "0,1e-3"), strict=True):
        values, above = getattr(chosen, setting), "from" if name == "weight_decay" else "above"
        if values is not None and (not values or min(values) < 0 or (above == "above" and 0 in values)):
            option = f"--{name.replace('_', '-')}"
            raise InputError(f"{option} {values}: give numbers {above} 0, e.g. {option} {example}")
    for name, options in chosen.options.items():
        loss(name, **options)
        if name not in names:
            raise InputError(f"options of '{name}' were given, but it is not among the methods to compare.")
    _check_variation(names, chosen.vary, chosen.options)
    chosen.request().check()
    return chosen


def method_names(names: str | Iterable[str], table: LabelTable | None = None) -> list[str]:
    """Return the methods of "short", as the labels of a table suggest it, or of "all"; or check the given names."""
    if names == "all":
        return [name for name in methods() if name not in SYNONYMS]
    if names == "short":
        if table is None or table.complete:
            return [*COMPLETE_SHORT, *(SHORT if table is None else ())]
        return [name for name in SHORT if name not in NEED_ABSENT or table.counts().total[1]]
    chosen = [names] if isinstance(names, str) else list(names)
    for name in chosen:
        describe_method(name)
    if not chosen:
        raise InputError("name at least one method, or 'short' or 'all'.")
    return list(dict.fromkeys(chosen))


def method_variants(method: str, vary: Variation) -> list[dict[str, Any]]:
    """Return the variants of a method: every combination of what it varies; a single one without values for others."""
    names, own = {key: key.rpartition(".") for key in vary}, {*GRID_SETTINGS, *method_options(method)}
    varied = {key: owner == method or (not owner and name in own) for key, (owner, _, name) in names.items()}
    return _combinations({names[key][2]: values for key, values in vary.items() if varied[key]})


def _check_variation(names: Sequence[str], vary: Variation, options: Mapping[str, Mapping[str, Any]]) -> None:
    for key, values in vary.items():
        owner, _, name = key.rpartition(".")
        if owner and owner not in names:
            raise InputError(f"--vary {key}: '{owner}' is not among the methods to compare.")
        having = [each for each in ([owner] if owner else names) if name in method_options(each)]
        if not having and name not in GRID_SETTINGS:
            known = {*GRID_SETTINGS, *(option for each in names for option in method_options(each))}
            raise UnknownNameError(f"option of {owner or ', '.join(names)} or setting called", name, sorted(known))
        if len(set(map(str, values))) < max(len(values), 2):
            raise InputError(f"--vary {key}: give two or more different values, e.g. --vary delta_rel=0.1,0.2,0.5")
        if name in GRID_SETTINGS and any(not isinstance(value, int | float) or not value >= 0 for value in values):
            raise InputError(f"--vary {key}: {', '.join(map(str, values))} are not all numbers from 0.")
        for each in having:
            if name in options.get(each, {}):
                raise InputError(f"--vary {key}: --option {each}.{name} gives it one value: leave one of them out.")
            for value in values:
                loss(each, **{**options.get(each, {}), name: value})
    if (most := math.prod(len(values) for values in vary.values())) > 200:
        raise InputError(f"--vary: {most:,} combinations; vary fewer values at a time.")


def option_combinations(method: str, grid: str, fixed: Iterable[str] = ()) -> list[dict[str, Any]]:
    """Return the options to compare: under "full" those that the paper searched, without those in ``fixed``."""
    searched = OPTION_GRIDS.get(method, {}) if grid == "full" else {}
    return _combinations({name: values for name, values in searched.items() if name not in set(fixed)})


def _combinations(values: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(values, each, strict=True)) for each in itertools.product(*values.values())]


def hyperparameter_grid(
    method: str, settings: CompareSettings, options: Mapping[str, Any], fixed: Iterable[str] = ()
) -> list[dict[str, Any]]:
    """Return the points of a paper's grid for a method, without the options in ``fixed``, which the user set."""
    grid, standardize = settings.grid, bool(settings.standardize)
    return [
        {"options": {**options, **combination}, "lr": float(lr), "batch_size": int(batch), "weight_decay": decay}
        | {"optimizer": "adam", "standardize": standardize, "epochs": settings.adam_epochs}
        for combination in option_combinations(method, grid, fixed)
        for decay in settings.weight_decays or (0.0,)
        for batch in settings.batch_sizes or _BATCH_SIZES[grid]
        for lr in settings.learning_rates or _LEARNING_RATES[grid]
    ]
