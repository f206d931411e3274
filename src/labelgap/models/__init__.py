"""Backbones, the classifier around them, and the catalogue that names them."""

from __future__ import annotations

from labelgap.models.backbone import UNTRAINED, Backbone, InputSpec, Weights, parameter_count
from labelgap.models.catalogue import BackboneRow, create, describe, names
from labelgap.models.classifier import Classifier, backbone_parameters, head_parameters, parameter_groups
from labelgap.models.efficientnet_lite import EfficientNetLite
from labelgap.models.small import SmallCNN

__all__ = [
    "Backbone",
    "BackboneRow",
    "Classifier",
    "EfficientNetLite",
    "InputSpec",
    "SmallCNN",
    "UNTRAINED",
    "Weights",
    "backbone_parameters",
    "create",
    "describe",
    "head_parameters",
    "names",
    "parameter_count",
    "parameter_groups",
]
