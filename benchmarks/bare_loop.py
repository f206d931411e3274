"""The bare loop that ``training.py`` measures labelgap against, and the network that both train.

The loop trains on one batch that is always the same, already normalized and on the device: channels last, bfloat16
autocast on a GPU, fused SGD, cuDNN's fastest kernels, binary cross-entropy, nothing that waits. With labelgap's own
classifier it changes and normalizes that batch in every step as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

import labelgap as lg
from labelgap.data.transforms import Augmentation, smallest_crop
from labelgap.models import InputSpec
from labelgap.models.heads import Classifier
from labelgap.models.timm import import_timm

CLASSES: Final = 20


class FeatureMaps(nn.Module):
    """The feature maps of ResNet-50 with random weights; on a CPU those of a tiny network."""

    def __init__(self, size: int, tiny: bool) -> None:
        super().__init__()
        self.input_spec = InputSpec(size, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
        self.network = _tiny_network() if tiny else _resnet50()

    def forward(self, images: Tensor) -> Tensor:
        """Return ``(B, D, h, w)``."""
        maps: Tensor = self.network(images)
        return maps


def _tiny_network() -> nn.Module:
    widths = [3, 16, 32]
    layers = [
        nn.Sequential(nn.Conv2d(before, after, 3, 2, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(inplace=True))
        for before, after in pairwise(widths)
    ]
    return nn.Sequential(*layers)


def _resnet50() -> nn.Module:
    try:
        model: Any = import_timm().create_model("resnet50", num_classes=0, global_pool="")
        return model  # type: ignore[no-any-return]
    except lg.LabelGapError:
        from torchvision.models import resnet50

        return nn.Sequential(*list(resnet50(weights=None).children())[:-2])


class Bare(nn.Module):
    """What a plain script trains: the network, the average over all positions, a linear layer."""

    def __init__(self, maps: nn.Module, features: int) -> None:
        super().__init__()
        self.maps, self.head = maps, nn.Linear(features, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits."""
        logits: Tensor = self.head(self.maps(images).mean((-2, -1)))
        return logits


@dataclass
class Settings:
    """What is measured, and how."""

    device: torch.device
    seconds: float
    workers: int
    photos: Path
    out: Path
    deadline: float
    ratios: dict[str, float] = field(default_factory=dict)

    @property
    def cuda(self) -> bool:
        """Whether there is a GPU."""
        return self.device.type == "cuda"

    def synchronize(self) -> None:
        """Wait for the GPU."""
        if self.cuda:
            torch.cuda.synchronize(self.device)


def say(text: str) -> None:
    print(text, flush=True)


def timed(settings: Settings, step: Callable[[], None]) -> float:
    """Return the seconds of a step: as many as fit into half of the given time, twice; the faster time counts."""
    settings.synchronize()
    started = time.perf_counter()
    for _ in range(3):
        step()
    settings.synchronize()
    steps = max(int(settings.seconds / 2 / ((time.perf_counter() - started) / 3)), 3)
    best = float("inf")
    for _ in range(2):
        started = time.perf_counter()
        for _ in range(steps):
            step()
        settings.synchronize()
        best = min(best, (time.perf_counter() - started) / steps)
    return best


def bare_speed(
    settings: Settings, size: int, batch: int, *, graph: bool = False, classifier: Classifier | None = None
) -> float:
    """Return images per second of the bare loop, or of one with this classifier and labelgap's random changes."""
    device, cuda = settings.device, settings.cuda
    torch.backends.cudnn.benchmark = cuda
    maps = FeatureMaps(size, tiny=not cuda).to(device)
    network = classifier or Bare(maps, maps(torch.zeros(2, 3, size, size, device=device)).shape[1]).to(device)
    images = torch.randn(batch, 3, size, size, device=device)
    pixels = torch.randint(256, images.shape, dtype=torch.uint8, device=device)
    change = Augmentation(0, min_area=smallest_crop(size))
    drawn = [each.to(device) for each in change.draw(range(batch), 1)]
    if cuda:
        network, images, pixels = (part.to(memory_format=torch.channels_last) for part in (network, images, pixels))  # type: ignore
    targets = (torch.rand(batch, CLASSES, device=device) < 0.1).float()
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-4, fused=True)

    def passes() -> None:
        given = classifier.backbone.normalize_(change.apply(pixels, *drawn)) if classifier else images
        with torch.autocast(device.type, torch.bfloat16, enabled=cuda, cache_enabled=not graph):
            logits = network(given)
        binary_cross_entropy_with_logits(logits.float(), targets).backward()  # type: ignore[no-untyped-call]

    def step() -> None:
        passes()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for _ in range(3):
        step()
    if not graph:
        return batch / timed(settings, step)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        passes()

    def replayed() -> None:
        captured.replay()
        optimizer.step()

    return batch / timed(settings, replayed)


def bare_graph_speed(settings: Settings, size: int, batch: int) -> float:
    """Return images per second of the bare loop replayed from a CUDA graph; NaN where there is none."""
    try:
        return bare_speed(settings, size, batch, graph=True) if settings.cuda else float("nan")
    except RuntimeError as error:
        say(f"    the bare loop cannot be captured: {error}")
        return float("nan")
