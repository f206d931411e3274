r"""The settings that cross-validation compares: methods, and penalties of the weights.

A penalty is :math:`\frac{\lambda}{2} \lVert w \rVert^2` beside the sum of the losses of all N images and K classes, on
standardized features; as a weight decay, which is relative to the mean loss, it is :math:`\lambda / (N K)`. The best
:math:`\lambda` grows with the number of features D and hardly depends on N, so :math:`\lambda = s D` with a few
strengths s for each method.

The strengths, and which methods are compared, were chosen on albums of 200, 500 and 2,000 images drawn from the
training images of VOC 2012 (2048 features of a ResNet-50, mAP on the other training images, mean of eight draws, by a
prototype of this training):

=================================  ==========================  ======================  ======================
labels known                       one or two present          half of the presents,   half of all at random
                                                               a tenth of the absents
=================================  ==========================  ======================  ======================
`an`, strength 0.15                69.7 / 77.2 / 82.9          60.9 / 71.4 / 78.7      60.9 / 71.4 / 78.7
`em`, strength 0.05                71.6 / 79.5 / 84.8          45.7 / 57.1 / 69.8      51.7 / 65.3 / 77.8
`gr`, strength 0.05                71.4 / 79.2 / 84.4          58.6 / 71.5 / 81.4      60.1 / 72.8 / 82.0
`gr`, strength 0.15                70.0 / 77.7 / 83.4          60.6 / 73.0 / 82.1      62.6 / 74.6 / 83.1
`wan`, strength 0.05               69.3 / 76.7 / 82.7          61.5 / 72.2 / 80.3      63.0 / 74.1 / 81.8
`iu`, strength 0.015               64.5 / 69.0 / 75.1          59.2 / 70.3 / 79.4      63.6 / 75.0 / 82.6
=================================  ==========================  ======================  ======================

Where absents are known and fewer than two fifths of the images have a known present, only `iu` is taken, as where there
is a val: with a tenth of all labels known at random it was ahead of the `wan` or `gr` that the cross-validation chose
on all three data sets that were compared (music, cells, photos), by 2.9 to 8.9 (docs/results/auto.md, "Without val").

A cross-validation on few labels is noisy, so what the table shows to be worse is not compared. Where absents are known,
`gr` is behind `wan` with 200 images (seven known presents per class in the mean) and ahead of it with more, and `iu` is
ahead only where many labels are known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from labelgap.core.errors import InputError
from labelgap.data.dataset import Dataset
from labelgap.labels import LabelTable
from labelgap.losses import Loss
from labelgap.losses.base.mixture_loss import MixtureLoss
from labelgap.losses.robust import GeneralizedRobustLoss
from labelgap.training.config.auto_method import FEW_TAGGED, tagged_share
from labelgap.training.config.schema import RunConfig

__all__ = ["FOLDS", "auto_methods", "candidate_configs", "head_settings", "resolve_folds", "supports_newton"]

FOLDS: Final = 5
NEWTON_LABELS: Final = 20_000_000
"""Heads are trained on all images at once up to so many labels."""
NEWTON: Final = {"optimizer": "newton", "lr": 1.0, "epochs": 15}
STRENGTHS: Final = (0.0015, 0.005, 0.015, 0.05, 0.15, 0.5)
"""For a method that is not compared with others."""
FEW_PRESENT: Final = 10
"""Known presents per class, in the mean, from which `gr` is compared where absents are known too."""
MANY_KNOWN: Final = 1 / 3
"""Share of known labels from which `iu` is compared."""
RATES: Final = (1e-2, 1e-3, 1e-4)
"""For methods that are trained by Adam."""


def auto_methods(table: LabelTable) -> Mapping[str, tuple[float, ...]]:
    """Return the methods that `auto` compares, each with its strengths.

    Example:
        >>> list(auto_methods(LabelTable.from_dense([[1, -1], [-1, 1]])))
        ['em', 'gr']
    """
    present, absent, unknown = table.counts().total
    if not unknown:
        return {"bce": (0.0015, 0.015, 0.05, 0.15)}
    if not absent:
        return {"em": (0.015, 0.05, 0.15), "gr": (0.015, 0.05, 0.15)}
    if tagged_share(table) < FEW_TAGGED:
        return {"iu": STRENGTHS}
    methods: dict[str, tuple[float, ...]] = {}
    if present >= FEW_PRESENT * len(table.classes):
        methods["gr"] = (0.15, 0.5)
    methods["wan"] = (0.015, 0.05, 0.15)
    if present + absent >= MANY_KNOWN * len(table) * len(table.classes):
        methods["iu"] = (0.005, 0.015, 0.05)
    return methods


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
        raise InputError(f"folds={given}: it is 0, or from 2 to the {count:,} training images{apart}.")
    return given


def head_settings(
    settings: Mapping[str, Any], loss_fn: Loss, data: Dataset, folds: int, given: Mapping[str, Any], *, preset: bool
) -> dict[str, Any]:
    """Return the settings of a linear head that depend on the loss and the data.

    Args:
        settings: of the run so far.
        loss_fn: of the run.
        data: of the run.
        folds: of the cross-validation; 0 for none.
        given: the settings of the user.
        preset: whether a preset was asked for.
    """
    images, changes = len(data.train), {"folds": folds}
    if folds and not preset:
        changes["standardize"] = given.get("standardize", True)
    left_open = not preset and not {"optimizer", "lr", "batch_size", "momentum", "nesterov"} & set(given)
    supported = supports_newton(loss_fn, images * len(data.classes))
    if settings.get("optimizer") != "newton" and not (folds and left_open and supported):
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


def candidate_configs(
    config: RunConfig, table: LabelTable, width: int, *, auto: bool, decay: bool, rate: bool
) -> list[RunConfig]:
    """Return the configurations that cross-validation compares.

    Args:
        config: of the run, with the first method and no weight decay.
        table: the observed labels of the training images.
        width: number of features.
        auto: whether the method is open.
        decay: whether the weight decay is open.
        rate: whether the learning rate is open.
    """
    methods: Mapping[str, tuple[float, ...]] = auto_methods(table) if auto else {config.method: STRENGTHS}
    unit = width / (len(table) * len(table.classes))
    changes: list[dict[str, Any]] = []
    for method, strengths in methods.items():
        chosen: dict[str, Any] = {"method": method, "options": {}} if auto else {}
        decays = [float(f"{strength * unit:.4g}") for strength in strengths] if decay else [config.weight_decay]
        rates = RATES if rate and config.optimizer != "newton" else (config.lr,)
        changes += [{**chosen, "weight_decay": each, "lr": lr, "backbone_lr": lr} for lr in rates for each in decays]
    return [config.model_copy(update=change) for change in changes]
