"""Whether a network has batch normalization, on which the default optimizer depends."""

from __future__ import annotations

from functools import cache

import torch
from torch import nn

from labelgap.models.registry import create_backbone, names_address

__all__ = ["has_batch_norm"]


def has_batch_norm(backbone: str | nn.Module) -> bool:
    """Return whether a network has batch normalization; one that is given by its name is built for that.

    Models of timm and open_clip are built without memory for their weights: a large one takes a second.

    Example:
        >>> has_batch_norm("efficientnet-lite0"), has_batch_norm("small-cnn")
        (True, False)
    """
    if isinstance(backbone, str):
        return _named_has_batch_norm(backbone)
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.SyncBatchNorm)
    return any(isinstance(module, kinds) for module in backbone.modules())


@cache
def _named_has_batch_norm(name: str) -> bool:
    with torch.random.fork_rng(devices=[]), torch.device("meta" if names_address(name) else "cpu"):
        return has_batch_norm(create_backbone(name, pretrained=False))
