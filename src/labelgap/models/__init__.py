"""Backbones, heads, the classifier that joins them, and the catalogue that names them."""

from __future__ import annotations

from labelgap.models.backbone import UNTRAINED, Backbone, InputSpec, Weights, parameter_count
from labelgap.models.catalogue import (
    BackboneRow,
    check_name,
    create,
    describe,
    describe_one,
    is_pretrained,
    names,
)
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
from labelgap.models.timm_backbone import TimmBackbone
from labelgap.models.timm_library import count_models as count_timm_models

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
    "TimmBackbone",
    "UNTRAINED",
    "Weights",
    "activation_maps",
    "backbone_parameters",
    "check_name",
    "count_timm_models",
    "create",
    "describe",
    "describe_one",
    "head_parameters",
    "is_pretrained",
    "names",
    "parameter_count",
    "parameter_groups",
]
