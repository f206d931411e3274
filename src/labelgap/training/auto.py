r"""``method="auto"``: the rule that chooses a method from the label states, and the settings that a search compares.

The evidence is in docs/results/auto.md and, for the methods that are compared on val, in
docs/results/logistic-regression.md. Whole networks, presets and very many labels get the method of ``choose_method``.

A penalty is :math:`\frac{\lambda}{2} \lVert w \rVert^2` beside the sum of the losses of all N images and K classes, on
standardized features; as a weight decay, which is relative to the mean loss, it is :math:`\lambda / (N K)`. The best
:math:`\lambda` grows with the number of features D and hardly depends on N, so :math:`\lambda = s D` with a few
strengths s. On 1,280 to 2,048 features of photos the best s is about 0.05, on tables of 6 to 300 numbers 0.5 to 5.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from labelgap.core.errors import InputError
from labelgap.data.dataset import Dataset
from labelgap.labels import LabelTable
from labelgap.labels.codes import PRESENT
from labelgap.losses import Loss
from labelgap.losses.base.loss import MixtureLoss
from labelgap.losses.robust import GeneralizedRobustLoss
from labelgap.training.config import RunConfig
from labelgap.training.selection import choose_selection

FEW_TAGGED: Final = 0.4
"""Where a smaller share of the images has a known present, `gr` learns that no class is ever present."""


def only_prior(data: Dataset) -> bool:
    """Return whether the prior is nearly all there is to learn from: too few known presents of its images judge it."""
    table, told = data.train.labels, frozenset[str]() if data.prior is None else data.prior.images.keys()
    if told.isdisjoint(table.images):
        return False
    rows = table.rows[table.values == PRESENT]
    return len(rows) < FEWEST_JUDGES or sum(table.images[row] in told for row in rows) < FEWEST_JUDGES


def tagged_share(table: LabelTable) -> float:
    """Return the share of the images that have a known present."""
    return len(np.unique(table.rows[table.values == PRESENT])) / len(table)


def choose_method(table: LabelTable, protocol: str, *, pretrained: bool = True) -> tuple[str, str]:
    """Choose a method for a training table, and say why.

    No label unknown: `bce-ls`, or `bce` from random weights. End-to-end from random weights: `ll-r`, which needs a
    network that memorizes late. Pretrained features: `iu` where absents are known and fewer than two fifths of the
    images have a known present; else `gr`.
    """
    present, absent, unknown = table.counts().total
    random_start = protocol == "end-to-end" and not pretrained
    if unknown == 0:
        return "bce" if random_start else "bce-ls", "every label is known"
    share = f"{100 * unknown / (present + absent + unknown):.0f} % of the labels are unknown"
    if random_start:
        return "ll-r", f"{share}, and the network starts from random weights"
    tagged = tagged_share(table)
    if absent and tagged < FEW_TAGGED:
        return "iu", f"{share}, only {100 * tagged:.0f} % of the images have a known present, and absents are known"
    return "gr", share


FEWEST_JUDGES: Final = 5
"""Known presents of the images that a prior speaks of, below which it cannot be judged, and is believed."""
FOLDS: Final = 5
NEWTON_LABELS: Final = 20_000_000  # heads are trained on all images at once up to so many labels
NEWTON: Final = {"optimizer": "newton", "lr": 1.0, "epochs": 15}
STRENGTHS: Final = (0.15, 0.015, 1.5)
"""The first penalties that are compared, as s; where nothing tells, the first. ``neighbors`` has those around."""
STEP: Final = 10**0.5
CLOSE: Final = 0.01  # penalties of a method are refined while its score is so close to that of the best one
FEW_PRESENT: Final = 10
"""Known presents per class, in the mean, from which `gr` is compared where absents are known too."""
MANY_KNOWN: Final = 1 / 3  # share of known labels from which `iu` is compared
RATES: Final = (1e-2, 1e-3, 1e-4)  # for methods that are trained by Adam


def auto_methods(data: Dataset) -> tuple[str, ...]:
    """Return the methods that `auto` compares on a val that supports an accuracy, else by noisy cross-validation."""
    table = data.train.labels
    present, absent, unknown = table.counts().total
    measured = data.val is not None and choose_selection(data.val.labels, None).rule in ("clean", "known")
    if not unknown:
        return ("bce", "bce-ls") if measured else ("bce",)
    if measured:
        return ("an", "gr", "iu") if absent else ("an", "gr")
    if not absent:
        return "em", "gr"
    if tagged_share(table) < FEW_TAGGED:
        return ("iu",)
    many_present = present >= FEW_PRESENT * len(table.classes)
    many_known = present + absent >= MANY_KNOWN * len(table) * len(table.classes)
    return (*(("gr",) if many_present else ()), "wan", *(("iu",) if many_known else ()))


def supports_newton(loss_fn: Loss, labels: int) -> bool:
    """Return whether a loss is trained on all images at once: element-wise, without a state, and not too large."""
    smooth = isinstance(loss_fn, MixtureLoss | GeneralizedRobustLoss) and not loss_fn.needs
    return smooth and not loss_fn.batch_dependent and loss_fn.reduction == "mean" and labels <= NEWTON_LABELS


def resolve_folds(data: Dataset, given: int | None, protocol: str) -> int:
    """Return the number of folds of a cross-validation: a few for a linear head without val, else 0."""
    if protocol != "linear":
        return 0
    if data.val is not None:
        if given:
            raise InputError(f"folds={given}: {data.name} has a val split, settings are chosen on it: leave it out.")
        return 0
    groups = data.train.groups
    count = len(data.train) if groups is None else len(np.unique(groups))
    if given is None:
        return min(FOLDS, count) if len(data.train) >= 2 * FOLDS and count > 1 else 0
    if given and not 2 <= given <= count:
        apart = "" if groups is None else " that are no copies of one another and not of one group"
        raise InputError(f"folds={given}: it must be 0, or from 2 to the {count:,} training images{apart}.")
    return given


@dataclass(frozen=True)
class SearchSpace:
    """What a search chooses: among methods (none where that is not open), the weight decay, the learning rate."""

    methods: tuple[str, ...] = ()
    decay: bool = False
    rate: bool = False

    def __str__(self) -> str:
        open_settings = {"weight_decay": self.decay, "lr": self.rate}
        method = [f"method among {', '.join(self.methods)}"] if self.methods else []
        return "; ".join([*method, *(name for name, is_open in open_settings.items() if is_open)]) or "nothing"


def is_searched(data: Dataset, protocol: str, folds: int, *, preset: str | None, head: str) -> bool:
    """Return whether the data choose the settings of a linear head that a request leaves open, by folds or on val."""
    if protocol != "linear" or preset is not None or head == "zero-shot":
        return False
    return folds > 0 or (data.val is not None and len(data.train) * len(data.classes) <= NEWTON_LABELS)


def head_settings(
    settings: Mapping[str, Any], loss_fn: Loss, data: Dataset, given: Mapping[str, Any], folds: int, *, searched: bool
) -> dict[str, Any]:
    """Return the settings of a linear head that depend on the loss and the data; ``settings`` are those so far."""
    images, changes = len(data.train), {"folds": folds}
    if searched:
        changes["standardize"] = given.get("standardize", True)
    left_open = not {"optimizer", "lr", "batch_size", "momentum", "nesterov"} & set(given)
    supported = supports_newton(loss_fn, images * len(data.classes))
    if settings.get("optimizer") != "newton" and not (searched and left_open and supported):
        return changes
    if not supported:
        raise InputError(
            f"optimizer=newton is for element-wise losses without a state (an, wan, iu, em, gr, bce …) and at most "
            f"{NEWTON_LABELS:,} labels; '{loss_fn.name}' here is trained by --optimizer adam."
        )
    if given.get("batch_size", images) != images:
        raise InputError(f"batch_size={given['batch_size']}: newton steps on all {images:,} images. Leave it out.")
    chosen = {name: given.get(name, value) for name, value in NEWTON.items()}
    return {**changes, **chosen, "backbone_lr": chosen["lr"], "batch_size": images}


def candidate_configs(config: RunConfig, table: LabelTable, width: int, space: SearchSpace) -> list[RunConfig]:
    """Return the configurations that a search compares first, of a head on ``width`` features; see above."""
    unit = width / (len(table) * len(table.classes))
    decays = [float(f"{strength * unit:.4g}") for strength in STRENGTHS] if space.decay else [config.weight_decay]
    rates = RATES if space.rate and config.optimizer != "newton" else (config.lr,)
    chosen: list[dict[str, Any]] = [{"method": method, "options": {}} for method in space.methods] or [{}]
    return [
        config.model_copy(update={**each, "weight_decay": decay, "lr": lr, "backbone_lr": lr})
        for each in chosen
        for lr in rates
        for decay in decays
    ]


def neighbors(configs: Sequence[RunConfig], scores: Sequence[float], space: SearchSpace) -> list[RunConfig]:
    """Return the configurations that a search compares next, around the best of each method that is close."""
    origin = configs[0]
    known = {_place(config, origin) for config in configs}
    best: dict[str, tuple[float, RunConfig]] = {}
    for config, score in zip(configs, scores, strict=True):
        if score > best.get(config.method, (-1.0, config))[0]:
            best[config.method] = score, config
    top = max((score for score, _ in best.values()), default=0.0)
    around: list[RunConfig] = []
    for score, config in best.values():
        steps = [
            {"weight_decay": float(f"{config.weight_decay * step:.4g}")} for step in (1 / STEP, STEP) if space.decay
        ]
        if space.rate and config.optimizer != "newton":
            rates = (config.lr / 10, config.lr * 10)
            steps += [{"lr": lr, "backbone_lr": lr} for lr in (float(f"{rate:.4g}") for rate in rates)]
        if score >= top - CLOSE:
            around += [config.model_copy(update=step) for step in steps]
    return [config for config in around if _place(config, origin) not in known]


def _place(config: RunConfig, origin: RunConfig) -> tuple[Any, ...]:
    """Return where a configuration is among those that a search can reach: in steps from the first one."""
    pairs = ((config.weight_decay, origin.weight_decay), (config.lr, origin.lr))
    steps = (round(math.log(value / start, STEP)) if value and start else 0 for value, start in pairs)
    return config.method, repr(config.options), *steps
