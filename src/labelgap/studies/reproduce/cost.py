"""The cost of filling cells, estimated before anything is trained."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from labelgap.core.errors import LabelGapError
from labelgap.core.text import DAY, format_duration, pluralize
from labelgap.data.dataset import Dataset
from labelgap.data.feature_vectors import FEATURES
from labelgap.models import create_backbone
from labelgap.models.timm.pretrained import UnavailableWeightsError
from labelgap.models.weight_files import NO_WEIGHTS
from labelgap.studies.reproduce.linear import backbone_settings, linear_grid, linear_groups, train_linear
from labelgap.studies.reproduce.networks import NetworkRun, count_left, network_runs
from labelgap.studies.reproduce.runner import Plan
from labelgap.studies.reproduce.tables import Training
from labelgap.training.devices import choose_device
from labelgap.training.fit import dry_run

SAMPLE: Final = 256
"""Training images of a linear trial."""
EPOCHS: Final = (2, 8, 32)
"""Further epochs of the trials that are tried one after the other."""
MIN_SECONDS: Final = 0.5


def describe_cost(
    plan: Plan, *, device: str = "auto", workers: int | None = None, tolerate_missing: bool = False
) -> Iterator[str]:
    """Yield what will be trained, and about how long it takes; trials of a few batches are run for that.

    Of heads that are there already the time is counted, too.

    Args:
        plan: what is to be trained.
        device: "auto", "cpu", "cuda", "mps".
        workers: processes that decode images.
        tolerate_missing: whether to name what networks cannot be trained without, e.g. weights; else it is an error.
    """
    settings, execution = plan.reproduction.settings, {"device": device, "workers": workers}
    for group in linear_groups(plan.trainings("linear"), settings):
        data = plan.data(group[0])
        grids = [linear_grid(each, settings) for each in group]
        heads = plan.seeds * sum(max(len(rates) * len(batches), 1) for rates, batches in grids)
        batches = " and ".join(map(str, sorted({batch for _, sizes in grids for batch in sizes})))
        text = f"{pluralize(heads, 'linear head')} on {data.name} ({', '.join(each.method for each in group)}; "
        text += f"batch {batches})"
        if data.backbone == FEATURES:
            text += f": about {format_duration(_linear_seconds(group, data, plan, execution))}"
        yield f"cost      {text}"
        if tolerate_missing and (error := _missing_weights(backbone_settings(group[0], data, settings))) is not None:
            yield f"missing   for {pluralize(heads, 'linear head')}: {error}"
    measured: dict[tuple[str, str], _NetworkCost] = {}
    counts = Counter[tuple[str, str]]()
    for training in plan.trainings("end-to-end", "linear-init"):
        runs = network_runs(training, plan.data(training), plan.reproduction.path, settings)
        left = count_left(training, runs, plan.seeds)
        kind = training.data, training.protocol
        counts[kind] += left
        if left and kind not in measured:
            measured[kind] = _measure(runs[0], execution, tolerate_missing=tolerate_missing)
    yield from _describe_networks(measured, counts, choose_device(device).type)


class _NetworkCost(NamedTuple):
    """The time of a network, None where it cannot be measured; and the error that its training would end with."""

    seconds: float | None
    missing: LabelGapError | None = None


def _measure(run: NetworkRun, execution: dict[str, Any], *, tolerate_missing: bool) -> _NetworkCost:
    """Measure a few steps of a network; with random weights, which take as long, where its own are missing."""
    try:
        return _NetworkCost(dry_run(run.data, run.request, **execution).seconds)
    except LabelGapError as error:
        if not tolerate_missing:
            raise
        if isinstance(error, UnavailableWeightsError):
            with suppress(LabelGapError):
                request = replace(run.request, weights=NO_WEIGHTS)
                return _NetworkCost(dry_run(run.data, request, **execution).seconds, error)
        return _NetworkCost(None, error)


def _missing_weights(network: dict[str, Any]) -> LabelGapError | None:
    """Return the error of a backbone that cannot be built; None where it can, and for data that are features."""
    if network:
        try:
            create_backbone(network["backbone"], weights=network["weights"], size=network["size"])
        except LabelGapError as error:
            return error
    return None


def _describe_networks(
    measured: Mapping[tuple[str, str], _NetworkCost], counts: Mapping[tuple[str, str], int], processor: str
) -> Iterator[str]:
    known = {kind: cost.seconds for kind, cost in measured.items() if cost.seconds is not None}
    if known:
        seconds = sum(counts[kind] * each for kind, each in known.items())
        networks, about = pluralize(sum(counts[kind] for kind in known), "network"), format_duration(seconds)
        yield f"cost      {networks} to train: about {about} if one at a time"
        yield f"          (from a few steps of a network of each protocol, measured on this machine: {processor})"
        if processor == "cpu" and seconds > DAY:
            yield "          Too slow on a CPU: fill fewer cells (--cells) with --seeds 1, or use a machine with a GPU"
    if unknown := [kind for kind in measured if kind not in known]:
        yield f"cost      {pluralize(sum(counts[kind] for kind in unknown), 'network')} to train: not measured"
    missing = {kind: str(cost.missing) for kind, cost in measured.items() if cost.missing is not None}
    for reason in dict.fromkeys(missing.values()):
        count = sum(counts[kind] for kind, each in missing.items() if each == reason)
        yield f"missing   for {pluralize(count, 'network')}: {reason}"


def _linear_seconds(group: Sequence[Training], data: Dataset, plan: Plan, execution: dict[str, Any]) -> float:
    """Return the time of the heads of a group, evaluated after each epoch, from trials of two lengths on a sample.

    The first trial is a warm-up. The long one gets more epochs until they take ``MIN_SECONDS`` in all: what takes a few
    milliseconds cannot be measured on a busy machine. The evaluation at the end is counted as one more epoch.
    """
    step = max(len(data.train) // SAMPLE, 1)
    splits = {split.name: replace(split.select(np.arange(0, len(split), step)), origin=None) for split in data.splits}
    small = replace(data, **splits)  # type: ignore[arg-type]

    def measure(epochs: int) -> float:
        settings = replace(plan.reproduction.settings, epochs=epochs)
        with tempfile.TemporaryDirectory() as folder:
            started = time.perf_counter()
            train_linear(group, small, Path(folder), settings, 1, quiet=True, **execution)
            return time.perf_counter() - started

    measure(1)
    short, more, longer = measure(1), 0, 0.0
    for more in EPOCHS:
        longer = max(measure(1 + more) - short, 0.0)
        if longer >= MIN_SECONDS:
            break
    epoch = longer / more * len(data.train) / len(small.train)
    return plan.seeds * (short + epoch * (1 + (plan.reproduction.settings.epochs or 25)))
