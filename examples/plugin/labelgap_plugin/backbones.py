"""A backbone: any ``nn.Module`` that returns feature maps or feature vectors."""

from __future__ import annotations

from torch import Tensor, nn

from labelgap.models import InputSpec


class StripeNet(nn.Module):
    """Two convolutions for gray images of 32 × 32 pixels."""

    input_spec = InputSpec(size=32, mean=(0.2,), std=(0.2,), channels=1)
    summary = "small gray images; an example"

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 16, 5, 2), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU())

    def forward(self, images: Tensor) -> Tensor:
        """Return feature maps ``(B, 32, h, w)`` of normalized images ``(B, 1, H, W)``."""
        maps: Tensor = self.layers(images)
        return maps
