"""Networks: backbones by name, or any ``nn.Module``; heads; the classifier of both; class activation maps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from labelgap.core.lazy import lazy_names
from labelgap.models.info import (
    RANDOM_WEIGHTS,
    RECOMMENDED_MODELS,
    TIMM_PREFIX,
    UNSTATED_WEIGHTS,
    BackboneInfo,
    InputSpec,
    WeightsInfo,
    count_timm_models,
)
from labelgap.models.registry import (
    as_backbone,
    backbone_info,
    backbone_names,
    check_backbone,
    create_backbone,
    is_pretrained,
    list_backbones,
    names_address,
    register_backbone,
)

if TYPE_CHECKING:
    from labelgap.models.backbone import Backbone, ModuleBackbone, count_parameters
    from labelgap.models.batch_norm import BatchNormMode, has_average_pool, has_batch_norm
    from labelgap.models.efficientnet_lite import EfficientNetLite
    from labelgap.models.heads import (
        AttentionHead,
        BoostLU,
        Classifier,
        Head,
        HeadName,
        LinearHead,
        class_activation_maps,
    )
    from labelgap.models.open_clip import OpenClipBackbone
    from labelgap.models.small_cnn import SmallCNN
    from labelgap.models.timm import TimmBackbone

__all__ = [
    "AttentionHead",
    "Backbone",
    "BackboneInfo",
    "BatchNormMode",
    "BoostLU",
    "Classifier",
    "EfficientNetLite",
    "Head",
    "HeadName",
    "InputSpec",
    "LinearHead",
    "ModuleBackbone",
    "OpenClipBackbone",
    "RANDOM_WEIGHTS",
    "RECOMMENDED_MODELS",
    "SmallCNN",
    "TIMM_PREFIX",
    "TimmBackbone",
    "UNSTATED_WEIGHTS",
    "WeightsInfo",
    "as_backbone",
    "backbone_info",
    "backbone_names",
    "check_backbone",
    "class_activation_maps",
    "count_parameters",
    "count_timm_models",
    "create_backbone",
    "has_average_pool",
    "has_batch_norm",
    "is_pretrained",
    "list_backbones",
    "names_address",
    "register_backbone",
]

_MODULES = "backbone heads batch_norm small_cnn efficientnet_lite timm open_clip"
__getattr__ = lazy_names(__name__, *_MODULES.split())
