"""What a run will cost, measured on a few batches before it begins: time, memory and disk."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from labelgap.core.errors import LabelGapError
from labelgap.core.system import format_bytes, used_memory
from labelgap.data.dataset import Dataset
from labelgap.data.images import FileImages
from labelgap.losses import Loss
from labelgap.models import Classifier, count_parameters
from labelgap.training.config.schema import LinearPhase, RunConfig
from labelgap.training.features.extract import features_cached
from labelgap.training.features.precomputed import saves_backbone
from labelgap.training.loop.inputs import ImageInputs
from labelgap.training.loop.optimizers import build_optimizer
from labelgap.training.progress import Reporter

__all__ = ["CostEstimate", "format_duration", "measure_cost", "report_cost"]

MAX_SECONDS = 4.0
"""Seconds after which measuring stops, whatever was seen by then."""
BATCHES = 4
HOUR = 3600.0


@dataclass(frozen=True)
class CostEstimate:
    """What a run is going to take.

    Attributes:
        seconds: from beginning to end.
        memory: bytes: on a GPU what a step took at most; else what the program has now, with the network and a few
            batches in it, and what will be kept for pictures, features and the method.
        disk: bytes of the run's folder and of the feature cache.
        device: "cpu", "cuda" or "mps".
        protocol: of the run.
    """

    seconds: float
    memory: int
    disk: int
    device: str
    protocol: str

    @property
    def long(self) -> bool:
        """Whether it takes over an hour on a CPU."""
        return self.device == "cpu" and self.seconds > HOUR

    def __str__(self) -> str:
        memory, disk = format_bytes(self.memory), format_bytes(self.disk)
        text = f"about {format_duration(self.seconds)}, {memory} of memory, {disk} of disk"
        if self.long and self.protocol != "linear":
            text += ". That is long for a CPU: --protocol linear trains a head on fixed features in a fraction of it"
        return text


def measure_cost(
    data: Dataset, config: RunConfig, network: Classifier, made: Loss, device: torch.device, workers: int = 0
) -> CostEstimate:
    """Measure the work of a few batches and reckon what the run will take.

    A machine that is busy at the moment makes it look longer than it will be; the quickest batch counts.
    """
    total, width, classes = sum(map(len, data.splits)), network.backbone.num_features, len(data.classes)
    weights = count_parameters(network) * 4
    disk, memory, seconds = 6 * (width + 1) * classes * 4, made.state_bytes + total * width * 4, 0.0
    phase = config.linear or LinearPhase(epochs=config.epochs, lr=config.lr, batch_size=config.batch_size)
    if config.protocol != "end-to-end":
        seconds += _feature_seconds(data, network, device, workers)
        seconds += phase.epochs * -(-len(data.train) // phase.batch_size) * _head_step(phase, width, classes, device)
        disk += total * width * 4 + (2 * weights if saves_backbone(config, network.backbone) else 0)
    if config.protocol != "linear":
        seconds += config.epochs * _epoch_seconds(data, config, network, device)
        disk += 10 * weights
        memory += 4 * weights + total * network.backbone.input_spec.size**2 * network.backbone.input_spec.channels
        if device.type == "cuda":
            memory = torch.cuda.max_memory_allocated(device)
    own = used_memory() if device.type != "cuda" else 0
    return CostEstimate(seconds, memory + own, disk, device.type, config.protocol)


def report_cost(
    data: Dataset,
    config: RunConfig,
    network: Classifier,
    made: Loss,
    device: torch.device,
    workers: int,
    reporter: Reporter,
) -> None:
    """Tell a person what the run is going to take, where that is worth the seconds of measuring: for photos."""
    if reporter.quiet or not isinstance(data.train.images, FileImages):
        return
    try:
        reporter.log(f"{measure_cost(data, config, network, made, device, workers)}")
    except (LabelGapError, RuntimeError, OSError):
        return  # the training will say why


def format_duration(seconds: float) -> str:
    """Return a time that does not pretend to be exact.

    Example:
        >>> format_duration(20), format_duration(1260), format_duration(8000)
        ('half a minute', '21 min', '2.2 h')
    """
    if seconds < 45:
        return "half a minute"
    return f"{max(round(seconds / 60), 1)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _feature_seconds(data: Dataset, network: Classifier, device: torch.device, workers: int) -> float:
    """Return how long it takes to look at every image once; those in the cache take no time."""
    backbone = network.backbone
    photos = [split for split in data.splits if isinstance(split.images, FileImages)]
    new = [split for split in photos if not features_cached(split.images, backbone)]
    if not new:
        return 0.0
    images = new[0].images
    was_training = backbone.training
    backbone.eval()
    batches = ImageInputs(images, backbone, device).batches(_sample(len(images), 2 * BATCHES), batch_size=2)
    with torch.inference_mode():
        each = _quickest(lambda values: backbone.features(values), batches, device)
    backbone.train(was_training)
    return each * sum(map(len, new)) / max(workers, 1)


def _epoch_seconds(data: Dataset, config: RunConfig, network: Classifier, device: torch.device) -> float:
    """Return how long an epoch takes: a few steps on a copy of the network, and val."""
    copy = deepcopy(network).train()
    optimizer = build_optimizer([{"params": list(copy.parameters()), "lr": 1e-9}], config)
    inputs = ImageInputs(data.train.images, copy.backbone, device, config.flip, config.seed, 0, config.transform)
    size = min(config.batch_size, len(data.train))

    def step(values: Tensor) -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=config.precision == "bf16"):
            copy(values).float().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    batches = inputs.batches(_sample(len(data.train), size * BATCHES), batch_size=size, epoch=1)
    each = _quickest(step, batches, device)
    val = 0 if data.val is None else len(data.val)
    return each * (len(data.train) + val / 3)


def _head_step(phase: LinearPhase, width: int, classes: int, device: torch.device) -> float:
    """Return how long a step of a linear head takes."""
    head = torch.nn.Linear(width, classes, device=device)
    optimizer = torch.optim.Adam(head.parameters(), fused=True)
    targets = torch.zeros(phase.batch_size, classes, device=device)

    def step(values: Tensor) -> None:
        optimizer.zero_grad(set_to_none=True)
        torch.nn.functional.binary_cross_entropy_with_logits(head(values), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    features = torch.zeros(phase.batch_size, width, device=device)
    batches = ((torch.zeros(0), features) for _ in range(5 * BATCHES))
    return 1.3 * phase.batch_size * _quickest(step, batches, device)


def _sample(count: int, wanted: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.unique(np.linspace(0, count - 1, wanted).astype(np.int64))


def _quickest(
    work: Callable[[Tensor], object], batches: Iterator[tuple[Tensor, Tensor]], device: torch.device
) -> float:
    """Return the seconds an image took in the quickest batch, with the reading of it; the first batch warms up."""
    taken: list[float] = []
    first = 0.0
    began = started = time.perf_counter()
    for number, (_, values) in enumerate(batches):
        work(values)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        now = time.perf_counter()
        each = (now - started) / max(len(values), 1)
        if number:
            taken.append(each)
        else:
            first = each
        if now - began > MAX_SECONDS:
            break
        started = time.perf_counter()
    return min(taken) if taken else first
