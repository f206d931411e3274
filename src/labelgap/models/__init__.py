"""Backbones, heads, the classifier that joins them, and the catalogue that names them."""

from __future__ import annotations

from labelgap.models.backbone import UNTRAINED, Backbone, InputSpec, Weights, parameter_count
from labelgap.models.catalogue import BackboneRow, create, describe, names
from labelgap.models.classifier import (
    Classifier,
    activation_maps,
    backbone_parameters,
    head_parameters,
    parameter_groups,
)
from labelgap.models.efficientnet_lite import EfficientNetLite
from labelgap.models.heads import BoostLU, Head, HeadName, LinearHead
from labelgap.models.small import SmallCNN

__all__ = [
    "Backbone",
    "BackboneRow",
    "BoostLU",
    "Classifier",
    "EfficientNetLite",
    "Head",
    "HeadName",
    "InputSpec",
    "LinearHead",
    "SmallCNN",
    "UNTRAINED",
    "Weights",
    "activation_maps",
    "backbone_parameters",
    "create",
    "describe",
    "head_parameters",
    "names",
    "parameter_count",
    "parameter_groups",
]
