"""Images per second of the training of a network, against a bare loop in the same run.

    python benchmarks/training.py                        # a GPU: ResNet-50 at 448 and 224 px; a CPU: a tiny network
    python benchmarks/training.py --seconds 4 --sizes 448 --batches 16,64 --images photos/

``--seconds`` are those of each measurement; after ``--limit`` seconds nothing new is started; ``--count`` are the
training images at most; without a folder of JPEGs some are made.

The bare loop trains the same network on one batch that is always the same, already normalized and on the device:
channels last, bfloat16 autocast on a GPU, fused SGD, cuDNN's fastest kernels, binary cross-entropy, nothing that waits.
labelgap trains from JPEGs: decoded once and stored on the device where they fit, else in the memory of the machine,
else decoded in every epoch. It shuffles, crops, turns, changes colors, normalizes, follows its schedule and checks for
losses that are not finite; ``same_work`` is the ratio to a bare loop that crops, turns, changes colors and normalizes
as well, and has labelgap's head. ``graph`` and the ratio ``captured`` are against the bare loop replayed from a CUDA
graph. The time for images is what an epoch takes longer than one that trains on its first batch only: the wait for
data, and their gathering, changes and normalization.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import labelgap as lg
from labelgap.data.dataset import Dataset, Split
from labelgap.data.images import ArrayImages, FileImages
from labelgap.models import as_backbone
from labelgap.training.checkpoint import TrainingState
from labelgap.training.loop.inputs import ImageInputs, Inputs
from labelgap.training.loop.network_trainer import NetworkTrainer
from labelgap.training.loop.trainer import TrainingContext
from labelgap.training.network import build_classifier
from labelgap.training.plan import TrainingRequest, plan_training
from labelgap.training.progress import Reporter

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.bare_loop import CLASSES, FeatureMaps, Settings, bare_graph_speed, bare_speed, say
from benchmarks.harness import parse_arguments, print_ratios, write_photos

PHOTOS: Final = 48
LARGE: Final = 256
"""From this batch size on, launching takes little of a step: less is measured."""


def make_data(settings: Settings, train: int, val: int) -> Dataset:
    """Return a data set whose files are the photos, each many times; random labels, one present known per image."""
    random = np.random.default_rng(1)
    files = sorted(path.name for path in settings.photos.iterdir() if path.suffix.lower() in (".jpg", ".jpeg"))

    def split(name: str, count: int, codes: NDArray[np.int8]) -> Split:
        names = [f"{name}/{number:06d}.jpg" for number in range(count)]
        images = FileImages(settings.photos, names, files=[files[number % len(files)] for number in range(count)])
        return Split(name, images, lg.LabelTable.from_dense(codes, classes=[f"c{k}" for k in range(CLASSES)]))

    observed = np.full((train, CLASSES), -1, np.int8)
    observed[np.arange(train), random.integers(0, CLASSES, train)] = 1
    truth = (random.random((val, CLASSES)) < 0.1).astype(np.int8)
    truth[:CLASSES] |= np.eye(CLASSES, dtype=np.int8)[: len(truth)]
    return Dataset("photos", split("train", train, observed), split("val", val, truth))


def make_trainer(settings: Settings, data: Dataset, inputs: dict[str, Inputs], size: int, batch: int) -> NetworkTrainer:
    """Build the trainer as ``fit`` does, with the method whose cost is binary cross-entropy."""
    request = TrainingRequest(
        method="an",
        backbone=as_backbone(FeatureMaps(size, tiny=not settings.cuda)),
        protocol="end-to-end",
        training={"batch_size": batch, "epochs": 100, "lr": 1e-3, "optimizer": "sgd", "transform": "augment"},
    )
    plan = plan_training(data, request, settings.device)
    config, selection, loss_fn = plan.config, plan.selection, plan.loss
    loss_fn.to(settings.device).prepare(data.train.labels, epochs=config.epochs, seed=0)
    network = build_classifier(config, None, backbone=request.backbone).to(settings.device)  # type: ignore[arg-type]
    if settings.cuda:
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    folder = settings.out / f"run{time.monotonic_ns()}"
    folder.mkdir()
    context = TrainingContext(
        folder, data, config, selection, network, settings.device, settings.workers, Reporter(quiet=True)
    )
    return NetworkTrainer(context, loss_fn, inputs)


class OneBatch:
    """Inputs whose batches are all the first one: training without the time that images take."""

    def __init__(self, inputs: Inputs) -> None:
        self.inputs = inputs

    def __len__(self) -> int:
        return len(self.inputs)

    def batches(
        self, rows: NDArray[np.int64] | None = None, *, batch_size: int, epoch: int | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the rows asked for, with the images of the first batch."""
        order = np.arange(len(self)) if rows is None else rows
        _, first = next(iter(self.inputs.batches(order[:batch_size], batch_size=batch_size, epoch=epoch)))
        for index in torch.split(torch.from_numpy(order), batch_size):
            yield index, first[: len(index)]


def our_speed(settings: Settings, trainer: NetworkTrainer) -> tuple[float, float, float]:
    """Train three epochs; return images per second of the second, its share for images, the first one's seconds."""
    seconds = []
    for epoch in (1, 2, 3):
        train = OneBatch(trainer.inputs["train"]) if epoch == 3 else trainer.inputs["train"]
        with patch.object(trainer, "inputs", {**trainer.inputs, "train": train}):
            settings.synchronize()
            started = time.perf_counter()
            trainer._train(TrainingState(), epoch)
            settings.synchronize()
            seconds.append(time.perf_counter() - started)
    return len(trainer.table) / seconds[1], 1 - seconds[2] / seconds[1], seconds[0]


def whole_epoch(settings: Settings, trainer: NetworkTrainer) -> str:
    """Train an epoch with val and checkpoint; return its speed and where its time goes."""
    parts: dict[str, float] = {}

    @contextmanager
    def measured(name: str) -> Iterator[None]:
        settings.synchronize()
        started = time.perf_counter()
        yield
        settings.synchronize()
        parts[name] = time.perf_counter() - started

    def wrapped(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any, **named: Any) -> Any:
            with measured(name):
                return work(*given, **named)

        return run

    state = TrainingState()
    with (
        patch.object(trainer, "_train", wrapped("steps", trainer._train)),
        patch.object(trainer, "_score_val", wrapped("val", trainer._score_val)),
        patch.object(trainer, "finish_epoch", wrapped("files", trainer.finish_epoch)),
        measured("all"),
    ):
        trainer.train_epoch(state, 1)
    count, val = len(trainer.table), len(trainer.inputs["val"])
    speed = (count + val) / parts["all"]
    return (
        f"{speed:.0f} images/s of train and val ({count} + {val}): {parts['steps']:.2f} s of steps, "
        f"{parts['val']:.2f} s of val ({val / parts['val']:.0f} images/s), {parts['files']:.2f} s of files"
    )


def measure(settings: Settings, size: int, batch: int, stored: dict[str, ImageInputs], data: Dataset) -> None:
    """Measure one size and batch."""
    bare = bare_speed(settings, size, batch)
    graph = bare_graph_speed(settings, size, batch) if batch < LARGE else float("nan")
    torch.backends.cudnn.benchmark = False
    count = int(min(max(bare * settings.seconds, 5 * batch), len(data.train))) // batch * batch
    count -= batch // 2  # the last batch is smaller
    part = replace(data, train=data.train.select(np.arange(count)))
    pixels = stored["train"].pixels
    assert pixels is not None
    own = replace(stored["train"], images=part.train.images, pixels=pixels[:count])
    inputs: dict[str, Inputs] = {**stored, "train": own}
    if settings.cuda:
        torch.cuda.reset_peak_memory_stats(settings.device)
    trainer = make_trainer(settings, part, inputs, size, batch)
    ours, images, first = our_speed(settings, trainer)
    peaks = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    best = max(bare, bare_speed(settings, size, batch)) if settings.seconds > 1 else bare
    same = bare_speed(settings, size, batch, classifier=deepcopy(trainer.network).train())
    say(
        f"{size} px, batch {batch}: bare {best:.0f} (graph {graph:.0f}) images/s; "
        f"labelgap {ours:.0f}, ratio {ours / best:.3f}, to a bare loop with the same changes and head "
        f"{ours / same:.3f}; {100 * images:.1f} % of the time for images; "
        f"first epoch {first:.2f} s"
    )
    settings.ratios[f"training_{size}_{batch}"] = ours / best
    settings.ratios[f"training_{size}_{batch}_same_work"] = ours / same
    if np.isfinite(graph):
        settings.ratios[f"training_{size}_{batch}_captured"] = ours / graph
    why = trainer.graphed_step.disabled
    say(f"    {'a CUDA graph' if trainer.graphed_step.graph is not None else f'no CUDA graph: {why}'}; {count} images")
    if settings.cuda:
        say(f"    memory: at most {peaks[0] / 2**30:.1f} GiB used, {peaks[1] / 2**30:.1f} GiB reserved")
    say(f"    whole epoch: {whole_epoch(settings, trainer)}")
    trainer.graphed_step.release()


def measure_elsewhere(settings: Settings, size: int, batch: int, data: Dataset) -> None:
    """Measure images that do not fit on the device: in the memory of the machine, or decoded in every epoch."""
    bare = bare_speed(settings, size, batch)
    count = int(min(max(bare * settings.seconds, 4 * batch), len(data.train)))
    part = replace(data, train=data.train.select(np.arange(count)), val=None)
    files = image_inputs(settings, part, size)["train"]
    pixels = np.random.default_rng(0).integers(0, 256, (count, size, size, 3), np.uint8)
    memory = replace(files, images=ArrayImages(pixels, files.images.names), workers=0)
    for name, inputs in {"memory": memory, "files": files}.items():
        trainer = make_trainer(settings, part, {"train": inputs}, size, batch)
        ours, images, _ = our_speed(settings, trainer)
        say(
            f"{size} px, batch {batch}, from {name}: bare {bare:.0f}, labelgap {ours:.0f} images/s, ratio "
            f"{ours / bare:.3f}; {100 * images:.1f} % of the time for images; {settings.workers} processes"
        )
        settings.ratios[f"training_{name}_{size}_{batch}"] = ours / bare
        trainer.graphed_step.release()


def image_inputs(settings: Settings, data: Dataset, size: int) -> dict[str, ImageInputs]:
    backbone = deepcopy(as_backbone(FeatureMaps(size, tiny=True))).to(settings.device)
    return {
        split.name: ImageInputs(split.images, backbone, settings.device, True, 0, settings.workers, "augment")
        for split in data.splits
    }


def attempt(settings: Settings, name: str, work: Callable[[], None]) -> None:
    """Run a part of the benchmark; what fails is printed, and the next part follows."""
    if time.monotonic() > settings.deadline:
        say(f"{name}: left out, the time is over")
        return
    started = time.perf_counter()
    try:
        work()
    except Exception as error:
        say(f"{name}: failed, {type(error).__name__}: {error}")
        say("    " + " | ".join(line.strip() for line in traceback.format_exc().splitlines()[-9:-1]))
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    say(f"    ({name}: {time.perf_counter() - started:.1f} s)")


def store(settings: Settings, size: int, data: Dataset) -> dict[str, ImageInputs]:
    """Decode all images and store them on the device."""
    started = time.perf_counter()
    stored = {name: inputs.store(inputs.device) for name, inputs in image_inputs(settings, data, size).items()}
    settings.synchronize()
    taken, images = time.perf_counter() - started, sum(map(len, data.splits))
    say(f"{size} px: {images} JPEGs decoded and stored on the device in {taken:.1f} s, {images / taken:.0f} images/s")
    return stored


def main() -> None:
    """Measure every size and batch, and print the ratios at the end."""
    cuda = torch.cuda.is_available()
    options: dict[str, Any] = {"seconds": 0.5, "sizes": "64,32", "batches": "8,16", "count": 192, "workers": 0}
    if cuda:
        options = {"seconds": 1.0, "sizes": "448,224", "batches": "16,64,256", "count": 2048}
        options["workers"] = min(16, os.cpu_count() or 1)
    given = parse_arguments(__doc__, limit=540.0, images=Path, **options)
    device = torch.device("cuda", 0) if cuda else torch.device("cpu")
    name = torch.cuda.get_device_name(device) if cuda else f"a CPU with {torch.get_num_threads()} threads"
    say(f"torch {torch.__version__}, {name}, {os.cpu_count()} processors, {given.workers} loader processes")
    with tempfile.TemporaryDirectory() as temporary:
        photos = given.images or Path(temporary) / "photos"
        if given.images is None:
            photos.mkdir()
            write_photos(photos, PHOTOS)
        out = Path(temporary) / "runs"
        out.mkdir()
        deadline = time.monotonic() + given.limit
        settings = Settings(device, given.seconds, given.workers, photos, out, deadline)
        data = make_data(settings, given.count, max(given.count // 8, CLASSES))
        sizes, batches = (sorted(map(int, text.split(","))) for text in (given.sizes, given.batches))
        stored = {size: store(settings, size, data) for size in reversed(sizes)}
        for batch, size in product(batches, stored):
            work = partial(measure, settings, size, batch, stored[size], data)
            attempt(settings, f"{size} px, batch {batch}", work)
        for size in stored:
            middle = batches[len(batches) // 2]
            work = partial(measure_elsewhere, settings, size, middle, data)
            attempt(settings, f"{size} px, batch {middle}, elsewhere", work)
    print_ratios(settings.ratios, 3)


if __name__ == "__main__":
    main()
