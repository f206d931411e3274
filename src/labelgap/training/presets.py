"""The training settings of the papers, per data set where they state them: ``--preset``; the user's come first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from labelgap.losses.base.registry import PAPER_DATASETS, paper_dataset
from labelgap.training.settings import KEYWORDS

OTHER: Final = "coco2014"
"""The data set whose settings are used for one that a paper does not have: its largest set of everyday photos."""
LINEAR_DEFAULTS: Final[dict[str, Any]] = {"epochs": 25, "lr": 1e-3, "batch_size": 16}
LINEAR_PHASE: Final = {f"linear_{name}": value for name, value in LINEAR_DEFAULTS.items()}
"""25 epochs at batch 16 as in the single-positive papers; of their rates, 1e-3 is better for most methods."""


def preset(name: str, *, method: str, dataset: str | None, protocol: str | None) -> dict[str, Any]:
    """Return the settings of a paper for a method on a data set, else COCO, in a protocol, by default its main one.

    Example:
        >>> settings = preset("kim2022", method="ll-r", dataset="voc2012", protocol=None)
        >>> settings["optimizer"], settings["backbone_lr"], settings["stop_below"]
        ('sgd', 0.005, 0.03)
    """
    known = paper_dataset(dataset) or ("openimages" if dataset == "openimages" else OTHER)
    settings = PRESETS[name](method, known, protocol)
    if settings["protocol"] == "linear-init":
        return settings
    if settings["protocol"] == "linear":
        phase = {name: settings[f"linear_{name}"] for name in ("epochs", "lr", "batch_size")}
        settings = {name: value for name, value in settings.items() if name not in KEYWORDS or name == "size"} | phase
    return {name: value for name, value in settings.items() if not name.startswith("linear_")}


def describe_missing_settings(name: str, dataset: str | None) -> str | None:
    """Return what to say where a preset has no settings of its own for a data set; None where it has them."""
    first, *others = (PRESETS[name]("an-ls", each, None) for each in PAPER_DATASETS)
    has_own = paper_dataset(dataset) is not None or (dataset == "openimages" and name == "kim2022")
    if has_own or all(settings == first for settings in others):
        return None
    return f"{name} has no settings for this data set: those of COCO are used"


def _cole2021(method: str, dataset: str, protocol: str | None) -> dict[str, Any]:
    """Adam with one learning rate; 25 epochs linear, 10 end-to-end, 25 + 10 linear-init.

    Of the searched settings those of `an-ls` and `role` are known; the others get 16 and 1e-3. For a whole network val
    chose batch 8 and 1e-5 on VOC2012 (docs/results/recipe.md).
    """
    smooth = method in ("an-ls", "ls")
    batches = (8, 8, 16, 8) if smooth else (16, 16, 16, 8)
    phase = {"epochs": 25, "lr": 1e-4 if smooth else 1e-3, "batch_size": _value_for(dataset, batches)}
    batch = 8 if dataset == "voc2012" else phase["batch_size"]
    later = {"epochs": 10, "lr": 1e-5, "backbone_lr": 1e-5, "batch_size": batch}
    return {**_common(protocol or "linear"), **later, **{f"linear_{name}": value for name, value in phase.items()}}


def _kim2022(method: str, dataset: str, protocol: str | None) -> dict[str, Any]:
    """10 epochs at batch 16, the head at ten times the rate; stops 3 points of mAP below the best.

    Optimizers and rates of VOC, COCO, NUS-WIDE and CUB are not in the paper: the first author gave them on 2022-11-21
    in issue #4 of his repository, snucml/LargeLossMatters.
    """
    common = {**_common(protocol or "end-to-end"), **LINEAR_PHASE, "stop_below": 0.03}
    if dataset == "openimages":
        rest = {"backbone": "resnet101", "size": 224, "epochs": 20, "batch_size": 288}
        return {**common, **rest, "lr": 2e-4, "backbone_lr": 2e-5}
    rate = _value_for(dataset, (5e-3, 1e-5, 1e-5, 7.5e-5))
    sgd = {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 1e-3} if dataset == "voc2012" else {}
    return {**common, **sgd, "epochs": 10, "batch_size": 16, "lr": 10 * rate, "backbone_lr": rate}


def _zhou2022(method: str, dataset: str, protocol: str | None) -> dict[str, Any]:
    """10 epochs of Adam with one rate. No early stopping, which in the authors' code keeps APL from ever starting."""
    rate, batch = _value_for(dataset, (1e-5, 1e-5, 1e-5, 1e-4)), _value_for(dataset, (8, 16, 16, 8))
    common = {**_common(protocol or "end-to-end"), **LINEAR_PHASE}
    return {**common, "epochs": 10, "batch_size": batch, "lr": rate, "backbone_lr": rate}


def _kobayashi2023(method: str, dataset: str, protocol: str | None) -> dict[str, Any]:
    """40 epochs of SGD at batch 512 with a cosine schedule, on random crops; the last epoch is kept."""
    sgd = {"optimizer": "sgd", "momentum": 0.9, "nesterov": True, "weight_decay": 1e-4, "schedule": "cosine"}
    images = {"transform": "crop", "size": 224, "select": "last"}
    rates = {"epochs": 40, "batch_size": 512, "lr": 0.01, "backbone_lr": 0.001}
    return {**_common(protocol or "end-to-end"), **LINEAR_PHASE, **sgd, **images, **rates}


PRESETS: Final[dict[str, Callable[[str, str, str | None], dict[str, Any]]]] = {
    "cole2021": _cole2021,
    "kim2022": _kim2022,
    "kobayashi2023": _kobayashi2023,
    "zhou2022": _zhou2022,
}


def _common(protocol: str) -> dict[str, Any]:
    """Return what the papers share: ResNet-50 with its first ImageNet weights, images resized to 448 × 448."""
    return {"protocol": protocol, "backbone": "resnet50", "size": 448}


def _value_for(dataset: str, values: tuple[Any, Any, Any, Any]) -> Any:
    order = ("voc2012", "coco2014", "nuswide", "cub")
    return values[order.index(dataset if dataset in order else OTHER)]
