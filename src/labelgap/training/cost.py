"""The cost of a run, estimated from a few batches before it starts: time, memory and disk."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from labelgap.core.distributed import is_distributed
from labelgap.core.errors import LabelGapError
from labelgap.core.system import format_bytes, used_memory
from labelgap.core.text import HOUR, format_duration
from labelgap.data.images import ImageSource, StoredImages
from labelgap.models import Classifier, count_parameters
from labelgap.models.inference import inference_backbone
from labelgap.training.config import RunConfig
from labelgap.training.features import CachedFeatures
from labelgap.training.heads.optimizers import StackedAdam, StackedParameter
from labelgap.training.loop.inputs import ImageInputs, fits_on_gpu
from labelgap.training.loop.optimizers import build_optimizer
from labelgap.training.plan import TrainingPlan
from labelgap.training.progress import Reporter

MAX_SECONDS = 4.0
BATCHES = 4


@dataclass(frozen=True)
class CostEstimate:
    """The estimated cost of a run."""

    seconds: float  # of features, epochs and val; not of cross-validation, nor of the results and the report at the end
    memory: int  # bytes; on a GPU the peak of a step and the images that are stored there, else of the process
    disk: int  # bytes of the run folder and of the feature cache
    device: str  # "cpu", "cuda" or "mps"
    protocol: str
    folds: int = 0  # of the cross-validation that chooses the settings; 0 for none

    def __str__(self) -> str:
        memory, disk = format_bytes(self.memory), format_bytes(self.disk)
        text = f"about {format_duration(self.seconds)}, {memory} of memory, {disk} of disk; the time is without "
        text += (f"cross-validation over {self.folds} folds and " if self.folds else "") + "the report"
        if self.device == "cpu" and self.seconds > HOUR and self.protocol != "linear":
            text += ". That is long for a CPU: --protocol linear trains a head on fixed features in a fraction of it"
        return text


def measure_cost(
    plan: TrainingPlan, network: Classifier, workers: int = 0, reporter: Reporter | None = None
) -> CostEstimate:
    """Measure a few batches, of which the fastest counts, and estimate the cost of a training."""
    data, config, device = plan.data, plan.config, plan.device
    total, width, classes = sum(map(len, data.splits)), network.backbone.num_features, len(data.classes)
    weights = count_parameters(network) * 4
    disk, memory, seconds = 6 * (width + 1) * classes * 4, plan.loss.state_bytes + total * width * 4, 0.0
    phase = config.linear_phase() if config.protocol == "linear-init" else config
    if config.protocol != "end-to-end":
        flips = config.protocol == "linear" and config.average_flips
        cache = CachedFeatures(network.backbone, device, average_flips=flips, precision=config.feature_precision)
        files = [split.images for split in data.splits if isinstance(split.images, StoredImages)]
        uncached = cache.count_missing(files, reporter)
        if sum(uncached):
            images = files[int(np.argmax(uncached))]
            seconds += _feature_seconds(images, plan, network) * sum(uncached) / max(workers, 1)
        seconds += phase.epochs * -(-len(data.train) // phase.batch_size) * _head_step(phase, width, classes, device)
        disk += (2 if flips else 1) * total * width * 4 + (0 if network.backbone.reproducible else 2 * weights)
    if config.protocol != "linear":
        seconds += config.epochs * _epoch_seconds(plan, network)
        disk += 10 * weights
        memory += 4 * weights + total * network.backbone.input_spec.size**2 * network.backbone.input_spec.channels
        if device.type == "cuda":
            memory = torch.cuda.max_memory_allocated(device) + _bytes_on_gpu(plan, network)
    own = used_memory() if device.type != "cuda" else 0
    return CostEstimate(seconds, memory + own, disk, device.type, config.protocol, config.folds)


def report_cost(plan: TrainingPlan, network: Classifier, workers: int, reporter: Reporter) -> None:
    """Log the estimated cost where the measurement is worth its seconds: for image files, in one process."""
    if reporter.quiet or is_distributed() or not isinstance(plan.data.train.images, StoredImages):
        return
    try:
        reporter.log(f"{measure_cost(plan, network, workers, reporter)}")
    except (LabelGapError, RuntimeError, OSError):
        return  # training will raise the same error


def _feature_seconds(images: ImageSource, plan: TrainingPlan, network: Classifier) -> float:
    backbone, was_training, device = network.backbone, network.backbone.training, plan.device
    fast = inference_backbone(backbone.eval(), device, plan.config.feature_precision)
    batches = ImageInputs(images, backbone, device).batches(_sample(len(images), 2 * BATCHES), batch_size=2)
    with torch.inference_mode():
        each = _fastest(fast.features, batches, device)
    backbone.train(was_training)
    return each


def _epoch_seconds(plan: TrainingPlan, network: Classifier) -> float:
    """Return the time of an epoch, from a few steps on a copy of the network, on a CPU of two images first, and val."""
    data, config, device, copy = plan.data, plan.config, plan.device, deepcopy(network).train()
    optimizer = build_optimizer([{"params": list(copy.parameters()), "lr": 1e-9}], config)
    inputs = ImageInputs(data.train.images, copy.backbone, device, config.flip, config.seed, 0, config.transform)
    size = min(config.batch_size, len(data.train))

    def step(values: Tensor) -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=config.precision == "bf16"):
            copy(values).float().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    each = math.inf
    for count in (min(2, size), size) if device.type == "cpu" else (size,):
        if math.isinf(each) or each * count * BATCHES < MAX_SECONDS:
            batches = inputs.batches(_sample(len(data.train), count * BATCHES), batch_size=count, epoch=1)
            each = _fastest(step, batches, device)
    val = 0 if data.val is None else len(data.val)
    return each * (len(data.train) + (2 if config.average_flips else 1) * val / 3)


def _bytes_on_gpu(plan: TrainingPlan, network: Classifier) -> int:
    """Return the bytes of the decoded images that training stores on a GPU, split by split as far as they fit."""
    spec, stored = network.backbone.input_spec, 0
    for split in plan.data.splits if plan.config.transform != "crop" else ():
        needed = len(split) * spec.channels * spec.size**2
        stored += needed if fits_on_gpu(stored + needed, plan.device) else 0
    return stored


def _head_step(phase: RunConfig, width: int, classes: int, device: torch.device) -> float:
    """Return the time of a step of a linear head; an optimizer of PyTorch would take two seconds to be imported."""
    head = [torch.zeros(1, *shape, device=device) for shape in ((classes, width), (classes,))]
    stacked, fused = [StackedParameter(each, [1e-3], [0]) for each in head], device.type == "cpu"
    optimizer = StackedAdam(stacked, torch.ones(1, dtype=torch.bool, device=device), fused=fused)
    targets = torch.zeros(phase.batch_size, classes, device=device)

    def step(values: Tensor) -> None:
        weight, bias = (each[0].detach().requires_grad_() for each in head)
        cost = functional.binary_cross_entropy_with_logits(functional.linear(values, weight, bias), targets)
        optimizer.step([each[None] for each in torch.autograd.grad(cost, (weight, bias))])

    features = torch.zeros(phase.batch_size, width, device=device)
    batches = ((torch.zeros(0), features) for _ in range(5 * BATCHES))
    return 1.3 * phase.batch_size * _fastest(step, batches, device)


def _sample(count: int, size: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.unique(np.linspace(0, count - 1, size).astype(np.int64))


def _fastest(work: Callable[[Tensor], object], batches: Iterator[tuple[Tensor, Tensor]], device: torch.device) -> float:
    """Return the seconds per image of the fastest batch, with its loading; the first is a warm-up, if there is time."""
    measured: list[float] = []
    begin = started = time.perf_counter()
    for _, values in batches:
        work(values)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        now = time.perf_counter()
        measured.append((now - started) / max(len(values), 1))
        if now - begin > MAX_SECONDS:
            break
        started = time.perf_counter()
    return min(measured[1:] or measured)
