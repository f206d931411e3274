"""A backbone and a head: the network that every image protocol trains."""

from __future__ import annotations

from typing import Literal, final, overload

import torch
from torch import Tensor, nn

from labelgap.models.backbone import Backbone
from labelgap.models.heads import create_head


@final
class Classifier(nn.Module):
    """One logit per class for every image.

    .. math:: x = W\\,\\mathrm{features}(\\mathrm{images}) + b

    with the linear head; see ``BoostLU`` for the other. A head is initialized like ``nn.Linear``, uniform on
    :math:`\\pm 1/\\sqrt D`, from torch's generator.

    Args:
        backbone: gives the features.
        classes: how many logits, ``K``.
        head: "linear", "boostlu" or "zero-shot".
        average_flips: in eval mode, whether logits are the mean of those of an image and of its mirror image.

    Example:
        >>> import torch
        >>> from labelgap.models import create_backbone
        >>> model = Classifier(create_backbone("small-cnn"), classes=10)
        >>> images = torch.zeros(2, 1, 64, 64, dtype=torch.uint8)
        >>> model(model.normalize(images)).shape
        torch.Size([2, 10])
    """

    def __init__(self, backbone: Backbone, classes: int, head: str = "linear", *, average_flips: bool = False) -> None:
        super().__init__()
        self.backbone = backbone
        self.average_flips = average_flips
        self.head = create_head(head, backbone.num_features, classes)

    @property
    def reads_features(self) -> bool:
        """Whether the logits of an image are the head's of one vector: with averaged flips, the mean of two."""
        return not self.head.needs_feature_maps

    @overload
    def forward(self, images: Tensor, *, return_features: Literal[False] = False) -> Tensor: ...

    @overload
    def forward(self, images: Tensor, *, return_features: Literal[True]) -> tuple[Tensor, Tensor]: ...

    def forward(self, images: Tensor, *, return_features: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """Return logits ``(B, K)`` of normalized images ``(B, C, H, W)``.

        With ``return_features``, also the pooled vectors ``(B, D)``: both from one call of ``forward``, the only method
        that ``DistributedDataParallel`` synchronizes.
        """
        if not self.head.needs_feature_maps:
            inputs = features = self.backbone.features(images)
        elif return_features:
            inputs, features = self.backbone.maps_and_features(images)
        else:
            inputs = features = self.backbone.feature_maps(images)
        logits = self._head_in_own_precision(inputs)
        if self.average_flips and not self.training:
            logits = (logits + self._logits(images.flip(-1))) / 2
        return (logits, features) if return_features else logits

    def _logits(self, images: Tensor) -> Tensor:
        backbone = self.backbone
        maps = self.head.needs_feature_maps
        return self._head_in_own_precision(backbone.feature_maps(images) if maps else backbone.features(images))

    def _head_in_own_precision(self, inputs: Tensor) -> Tensor:
        """Apply the head outside autocast: logits rounded to bfloat16 would tie ranks."""
        device = inputs.device.type
        if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
            logits: Tensor = self.head(inputs)
            return logits
        with torch.autocast(device, enabled=False):
            logits = self.head(inputs.to(self.head.weight.dtype))
        return logits

    def normalize(self, images: Tensor) -> Tensor:
        """Turn bytes ``(B, C, H, W)`` into what ``forward`` takes, on their device."""
        return self.backbone.normalize(images)
