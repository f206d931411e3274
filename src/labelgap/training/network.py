"""The network of a run, made from its configuration; for data that are features already, a head behind the identity."""

from __future__ import annotations

import os
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from labelgap.core.errors import InputError, RunError
from labelgap.core.seeds import derive_seed, seed_everything
from labelgap.core.tensors import read_tensors
from labelgap.core.trust import is_class_path
from labelgap.data.dataset import Dataset
from labelgap.data.images import FEATURES, FeatureVectors, ImageSource
from labelgap.models import Backbone, Classifier, InputSpec, WeightsInfo, as_backbone, create_backbone
from labelgap.models.backbone import dry_forward
from labelgap.models.registry import outline_backbone
from labelgap.training.checkpoint import check_fit, set_weights
from labelgap.training.config import INITIAL_WEIGHTS, RunConfig
from labelgap.training.loop.inputs import FeatureInputs


class IdentityBackbone(Backbone):
    """Returns vectors ``(B, D)`` unchanged, as the features of one location."""

    def __init__(self, width: int) -> None:
        nothing = InputSpec(size=1, mean=(0.0,), std=(1.0,), channels=1)
        weights = WeightsInfo("features that came with the data", "not known")
        super().__init__(num_features=width, input_spec=nothing, weights=weights)

    def feature_maps(self, images: Tensor) -> Tensor:
        """Return vectors ``(B, D)`` as ``(B, D, 1, 1)``."""
        return images[:, :, None, None]


def build_classifier(
    config: RunConfig, width: int | None, *, pretrained: bool = True, backbone: Backbone | None = None
) -> Classifier:
    """Build the network of a run, of ``width`` features with the backbone "features", else maybe ``pretrained``."""
    if backbone is None and config.backbone == FEATURES and width is not None:
        backbone = IdentityBackbone(width)
    if backbone is None:
        weights, recorded = config.weights if pretrained else None, config.backbone_input
        backbone = create_backbone(config.backbone, pretrained=pretrained, weights=weights, size=config.size)
        if recorded is not None and recorded != backbone.input_spec:
            raise RunError(
                f"{config.backbone} takes other images now ({backbone.input_spec}) than in its run "
                f"({recorded}): set its `input_spec`, or pass the network itself (backbone=network)."
            )
    attention = {name: getattr(config, name) for name in ("attention_weight", "attention_temperature")}
    options = attention if config.head == "attention" else {}
    views: Any = {name: getattr(config, name) for name in ("average_flips", "average_sizes")}
    return Classifier(backbone, len(config.classes), config.head, **views, **options)


def check_weights(
    config: RunConfig, width: int | None, weights: Mapping[str, Tensor], path: Path, optional: tuple[str, ...] = ()
) -> None:
    """Refuse weights that do not fit a network before it is allocated; names that begin as ``optional`` may lack."""
    if is_class_path(config.backbone):
        return
    backbone = None if config.backbone == FEATURES else outline_backbone(config.backbone, config.size)
    classes, width = len(config.classes), width if backbone is None else backbone.num_features
    assert width is not None
    own = {"head.weight": torch.empty(classes, width, device="meta"), "head.bias": torch.empty(classes, device="meta")}
    own |= {} if backbone is None else {f"backbone.{name}": value for name, value in backbone.state_dict().items()}
    check_fit(own, weights, path, optional)


def initial_network(
    config: RunConfig, data: Dataset, device: torch.device, backbone: Backbone | None = None
) -> Classifier:
    """Build the network with which the training of a run begins: random weights are those of the seed of the run."""
    seed_everything(derive_seed(config.seed, "initialisation"))
    network = build_classifier(config, feature_width(data), backbone=backbone)
    for size in config.average_sizes:  # a network that takes no other size is refused before it is trained
        spec = replace(network.backbone.input_spec, size=size)
        dry_forward(network.backbone, network.backbone, spec, config.backbone)
    return network.to(device)


def copy_backbone(
    network: nn.Module, weights: str | os.PathLike[str] | None, folder: Path, size: int | None
) -> tuple[Backbone, Path]:
    """Return a copy of a module as a backbone, and the file in the run folder that gets its initial weights."""
    if weights is not None:
        raise InputError("the weights of a network that is given as an object are in the object: leave them out.")
    backbone, stored = as_backbone(deepcopy(network)), folder / INITIAL_WEIGHTS
    if size is not None:
        backbone.input_spec = replace(backbone.input_spec, size=size)
    if stored.exists():
        tensors = read_tensors(stored)[0]
        try:
            set_weights(backbone, tensors, stored)
        except RunError as error:
            raise RunError(f"the network is not the one that {folder} was started with: {error}") from None
    return backbone, stored


def feature_width(data: Dataset) -> int | None:
    """Return the number of features of a data set; None for images."""
    return data.train.images.width if isinstance(data.train.images, FeatureVectors) else None


def stored_feature_width(weights: Mapping[str, Tensor], classes: int) -> int | None:
    """Return the number of features that the head among weights expects; None if there is no head of these classes."""
    shapes = [value.shape for name, value in weights.items() if name.startswith("head.")]
    return next((shape[1] for shape in shapes if len(shape) == 2 and shape[0] == classes), None)


def check_feature_data(data: Dataset, backbone: str, protocol: str) -> None:
    """Reject a network for feature vectors, the backbone "features" for images, and splits of unequal vectors."""
    widths = {getattr(split.images, "width", None) for split in data.splits}
    if len(widths) > 1:
        found = " and ".join(str(width or "no") for width in sorted(widths, key=lambda width: width or 0))
        raise InputError(f"the splits of {data.name} have different features: vectors of {found} numbers.")
    if feature_width(data) is None:
        if backbone == FEATURES:
            raise InputError(f"the backbone '{FEATURES}' is for data that are feature vectors; {data.name} has images.")
    elif backbone != FEATURES or protocol != "linear":
        raise InputError(
            f"{data.name} has feature vectors and no pixels: only --protocol linear with --backbone {FEATURES} "
            f"can be trained on it, not {protocol} with {backbone}."
        )


def feature_inputs(images: ImageSource, network: Classifier, device: torch.device) -> FeatureInputs | None:
    """Return feature vectors as inputs of a head; None for images, an error where data and network do not match."""
    given = isinstance(network.backbone, IdentityBackbone)
    if not isinstance(images, FeatureVectors):
        if given:
            raise InputError("this run was trained on feature vectors and cannot read images: pass features.")
        return None
    if not given:
        raise InputError("this run was trained on images: it needs pixels, and these are feature vectors.")
    if images.width != network.backbone.num_features:
        expected = network.backbone.num_features
        raise InputError(f"this run was trained on {expected} features, and these are {images.width}.")
    return FeatureInputs(torch.from_numpy(images.vectors.astype("float32")).to(device))
