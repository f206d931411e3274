"""The cost of filling cells, estimated before anything is trained."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from labelgap.core.text import DAY, format_duration, pluralize
from labelgap.data.dataset import Dataset
from labelgap.data.feature_vectors import FEATURES
from labelgap.studies.reproduce.linear import linear_groups, train_linear
from labelgap.studies.reproduce.networks import network_runs
from labelgap.studies.reproduce.runner import Plan
from labelgap.studies.reproduce.tables import Training
from labelgap.training.devices import choose_device
from labelgap.training.fit import dry_run

__all__ = ["describe_cost"]

SAMPLE: Final = 256
"""Training images of a linear trial."""
EPOCHS: Final = 2


def describe_cost(plan: Plan, *, device: str = "auto", workers: int | None = None) -> Iterator[str]:
    """Yield what will be trained, and about how long it takes; trials of a few batches are run for that.

    Of heads that are there already the time is counted, too, and of the networks of further seeds.
    """
    settings, execution = plan.reproduction.settings, {"device": device, "workers": workers}
    for group in linear_groups(plan.trainings("linear"), settings):
        data = plan.data(group[0])
        heads = plan.seeds * sum(max(len(each.learning_rates) * len(each.batch_sizes), 1) for each in group)
        if settings.grid == "preset":
            heads = plan.seeds * len(group)
        text = f"{pluralize(heads, 'linear head')} on {data.name}"
        if data.backbone == FEATURES:
            text += f": at most about {format_duration(_linear_seconds(group, data, plan, execution))}"
        yield f"cost      {text}"
    measured: dict[tuple[str, str], float] = {}
    count, seconds = 0, 0.0
    for training in plan.trainings("end-to-end", "linear-init"):
        runs = network_runs(training, plan.data(training), plan.reproduction.path, settings)
        left = sum(not run.finished for run in runs) + plan.seeds - 1
        kind = training.data, training.protocol
        if left and kind not in measured:
            measured[kind] = dry_run(runs[0].data, runs[0].request, device=device, workers=workers).seconds
        count += left
        seconds += left * measured.get(kind, 0.0)
    if count:
        processor = choose_device(device).type
        about = format_duration(seconds)
        yield f"cost      {pluralize(count, 'network')} to train, one at a time: at most about {about}"
        yield f"          (from a few steps of a network of each protocol, measured on this machine: {processor})"
        if processor == "cpu" and seconds > DAY:
            yield "          Too slow on a CPU: fill fewer cells (--cells) with --seeds 1, or use a machine with a GPU"


def _linear_seconds(group: Sequence[Training], data: Dataset, plan: Plan, execution: dict[str, Any]) -> float:
    """Return the time of the heads of a group: that of an epoch, from trials of two lengths on a sample."""
    step = max(len(data.train) // SAMPLE, 1)
    splits = {split.name: replace(split.select(np.arange(0, len(split), step)), origin=None) for split in data.splits}
    small, taken = replace(data, **splits), dict[int, float]()  # type: ignore[arg-type]
    for epochs in (1, 1 + EPOCHS):
        settings = replace(plan.reproduction.settings, epochs=epochs)
        with tempfile.TemporaryDirectory() as folder:
            started = time.perf_counter()
            train_linear(group, small, Path(folder), settings, 1, quiet=True, **execution)
            taken[epochs] = time.perf_counter() - started
    epoch = max(taken[1 + EPOCHS] - taken[1], 0.0) / EPOCHS * len(data.train) / len(small.train)
    return plan.seeds * (taken[1] + epoch * (plan.reproduction.settings.epochs or 25))
