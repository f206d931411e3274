"""Backbones, heads, the classifier that joins them, and the catalogue that names them."""

from __future__ import annotations

from labelgap.models.backbone import RANDOM_WEIGHTS, Backbone, InputSpec, WeightsInfo, count_parameters
from labelgap.models.classifier import (
    Classifier,
    backbone_parameters,
    class_activation_maps,
    head_parameters,
    parameter_groups,
)
from labelgap.models.efficientnet_lite import EfficientNetLite
from labelgap.models.heads import BoostLU, Head, HeadName, LinearHead
from labelgap.models.registry import (
    BackboneInfo,
    backbone_info,
    backbone_names,
    check_backbone,
    create_backbone,
    is_pretrained,
    list_backbones,
)
from labelgap.models.small_cnn import SmallCNN
from labelgap.models.timm.backbone import TimmBackbone
from labelgap.models.timm.library import count_timm_models as count_timm_models

__all__ = [
    "Backbone",
    "BackboneInfo",
    "BoostLU",
    "Classifier",
    "EfficientNetLite",
    "Head",
    "HeadName",
    "InputSpec",
    "LinearHead",
    "RANDOM_WEIGHTS",
    "SmallCNN",
    "TimmBackbone",
    "WeightsInfo",
    "backbone_info",
    "backbone_names",
    "backbone_parameters",
    "check_backbone",
    "class_activation_maps",
    "count_parameters",
    "count_timm_models",
    "create_backbone",
    "head_parameters",
    "is_pretrained",
    "list_backbones",
    "parameter_groups",
]
