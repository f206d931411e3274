"""The settings of a comparison."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from labelgap.core.errors import InputError, UnknownNameError
from labelgap.labels import LabelTable
from labelgap.losses import describe_method, loss, methods
from labelgap.studies.compare.grid import GRIDS
from labelgap.studies.compare.label_views import NEED_ABSENT, LabelView
from labelgap.studies.compare.variants import GRID_SETTINGS, Variation, check_variation
from labelgap.training.plan import TrainingRequest
from labelgap.training.presets import LINEAR_DEFAULTS

SYNONYMS: Final = {"ls": "an-ls"}
"""Second names of methods, which "all" leaves out."""
SHORT: Final = ("an", "an-ls", "wan", "iu", "em", "gr", "role", "epr", "ll-r")
"""The methods of "short": each is ahead somewhere (docs/results), or is what others are measured against."""
COMPLETE_SHORT: Final = ("bce", "bce-ls", "asl", "two-way")
"""Those where every label is known: all of ``SHORT`` would then be `bce` or `bce-ls`."""


@dataclass(frozen=True)
class CompareSettings:
    """How methods are compared.

    Attributes:
        seeds: how many, from ``first_seed``.
        observe: labels to hide first, as ``Dataset.observe`` takes it: ``{"positives": 1, "negatives": 0}``.
        label_seed: of the first draw; seed s has ``label_seed + s``.
        grid: "auto", "small" or "full"; see ``studies.compare.grid``.
        options: method → options that are not searched, e.g. ``{"role": {"expected_positives": 1.5}}``.
        learning_rates: instead of the grid's.
        batch_sizes: instead of the grid's.
        weight_decays: to compare; by default 0 in the papers' grids, else several by the number of features.
        standardize: whether heads are trained on standardized features; by default not in the papers' grids.
        epochs: of every head; by default 25, or 15 of the optimizer "newton".
        backbone: name of the network that computes features; the default for the data when None.
        weights: file of its weights.
        size: of the images, if it is not the backbone's.
        select: the rule that selects epochs and settings; see ``training.selection``.
        shuffle: whether a seed also determines the order of the batches; else all heads see one order.
        vary: option or setting, or ``METHOD.NAME`` → values that have a row each; see ``studies.compare.variants``.
        first_seed: the seeds are this one and the next.
        baseline: whether plain logistic regression is compared too.
    """

    seeds: int = 3
    observe: Mapping[str, Any] | None = None
    label_seed: int = 1200
    grid: str = "auto"
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    learning_rates: Sequence[float] | None = None
    batch_sizes: Sequence[int] | None = None
    weight_decays: Sequence[float] | None = None
    standardize: bool | None = None
    epochs: int | None = None
    backbone: str | None = None
    weights: str | None = None
    size: int | None = None
    select: str = "auto"
    shuffle: bool = False
    vary: Variation = field(default_factory=dict)
    first_seed: int = 0
    baseline: bool = True

    @classmethod
    def checked(cls, **settings: Any) -> CompareSettings:
        """Return the settings; ``InputError`` where a name or a value is wrong."""
        known = [item.name for item in fields(cls)]
        for name in settings:
            if name not in known:
                raise UnknownNameError("setting of a comparison called", name, known)
        made = cls(**settings)
        if made.seeds < 1 or made.adam_epochs < 1:
            raise InputError(f"seeds={made.seeds}, epochs={made.epochs}: at least one of each is needed.")
        if made.grid not in GRIDS:
            raise UnknownNameError("grid", made.grid, GRIDS)
        for (name, setting), example in zip(GRID_SETTINGS.items(), ("1e-3,1e-4", "16", "0,1e-3"), strict=True):
            values, above = getattr(made, setting), "from" if name == "weight_decay" else "above"
            if values is not None and (not values or min(values) < 0 or (above == "above" and 0 in values)):
                option = f"--{name.replace('_', '-')}"
                raise InputError(f"{option} {values}: give numbers {above} 0, e.g. {option} {example}")
        return made

    @property
    def adam_epochs(self) -> int:
        """The epochs of heads that are trained in batches."""
        return int(LINEAR_DEFAULTS["epochs"]) if self.epochs is None else self.epochs

    def request(self) -> TrainingRequest:
        """Return what the heads of all methods share, as the arguments of ``fit``."""
        training: dict[str, Any] = {}
        given: dict[str, Any] = {"epochs": self.epochs, "standardize": self.standardize}
        given |= {"lr": self.learning_rates, "batch_size": self.batch_sizes}
        for name, value in given.items():
            if value is not None:
                training[name] = value[0] if isinstance(value, Sequence) else value
        return TrainingRequest(
            method="an",
            backbone=self.backbone,
            weights=self.weights,
            protocol="linear",
            select=self.select,
            training=training,  # type: ignore[arg-type]
        )

    def fixed_options(self, method: str, view: LabelView, variant: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of a method that are not searched."""
        varied = {name: value for name, value in variant.items() if name not in GRID_SETTINGS}
        return {**(view.options or {}), **self.options.get(method, {}), **varied}

    def for_variant(self, variant: Mapping[str, Any]) -> CompareSettings:
        """Return the settings with the learning rate, batch size or weight decay of a variant."""
        given: dict[str, Any] = {
            GRID_SETTINGS[name]: (value,) for name, value in variant.items() if name in GRID_SETTINGS
        }
        return replace(self, **given)


def method_names(names: str | Iterable[str], table: LabelTable | None = None) -> list[str]:
    """Return the methods of "short" or "all", or check the given names.

    Args:
        names: of methods, or "short" or "all".
        table: the labels that most methods see, on which the short list depends; every method of it when None.

    Example:
        >>> "ls" in method_names("all"), method_names(["an", "em", "an"])
        (False, ['an', 'em'])
    """
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


def check_settings(methods: str | Iterable[str], settings: Mapping[str, Any]) -> CompareSettings:
    """Return the settings; ``InputError`` for a name or value that is wrong whatever the data are."""
    chosen, names = CompareSettings.checked(**settings), method_names(methods)
    for name, options in chosen.options.items():
        loss(name, **options)
        if name not in names:
            raise InputError(f"options of '{name}' were given, but it is not among the methods to compare.")
    check_variation(names, chosen.vary, chosen.options)
    chosen.request().check()
    return chosen
