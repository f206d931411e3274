"""A synthetic OpenImages: time and peak memory of what labelgap does with millions of images.

    python benchmarks/scale.py            # 1/64, 1/16 and 1/4 of it, minutes on two cores
    python benchmarks/scale.py --full     # 1/16, 1/4 and all: 3.4 million images, 5,000 classes, 30 million labels
    python benchmarks/scale.py --part tables|state|audit|end-to-end

Each line says the seconds and the peak memory of one operation at one size. ``ratio NAME VALUE`` is the time per label
(of an audit: per image) at the largest size divided by that at the smallest: 1 is linear growth. Times are those of the
process on the CPU, so that other programs on the machine do not count.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from labelgap.audit.ranking import rank_candidates
from labelgap.audit.scorers import HeadScorer
from labelgap.labels import LabelTable, paper_split
from labelgap.losses import Loss, loss
from labelgap.training.heads import HeadPlan, train_heads

IMAGES, CLASSES, KNOWN = 3_400_000, 5_000, 30_000_000
BATCH, STEPS = 288, 10
Times = dict[str, list[float]]
Rows = NDArray[np.int64]


def synthetic_table(images: int, seed: int = 0) -> LabelTable:
    """Long-tailed labels: class k is known with a frequency of about 1 / (k + 10); a third of them are present."""
    random = np.random.default_rng(seed)
    count = int(images * KNOWN / IMAGES * 1.08)  # a few are drawn twice
    rows = random.integers(images, size=count)
    columns = (10 * ((CLASSES / 10 + 1) ** random.random(count) - 1)).astype(np.int64)
    places = np.sort(rows * CLASSES + columns)
    rows, columns = np.divmod(places[np.diff(places, prepend=-1) > 0], CLASSES)
    names = [f"{number:07d}.jpg" for number in range(images)]
    values = (random.random(len(rows)) < 0.35).astype(np.int8)
    return LabelTable.from_entries(rows, columns, values, [f"class {k}" for k in range(CLASSES)], names)


def measure(name: str, size: int, times: Times, call: Callable[[], Any], per: int = 1) -> Any:
    """Call, print seconds and the peak memory of the process so far, and keep the time per unit."""
    start = time.process_time()
    result = call()
    seconds = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{name:24} {size:>10,} {seconds:9.2f} s  {peak:5.2f} GB", flush=True)
    times.setdefault(name, []).append(seconds / per)
    return result


def tables(images: int, times: Times, folder: Path) -> None:
    """Import, batches, masks and splits."""
    table = synthetic_table(images)
    labels = len(table.values)
    file = folder / "labels.parquet"
    measure("write Parquet", images, times, lambda: table.to_parquet(file), labels)
    measure("read Parquet", images, times, lambda: LabelTable.from_parquet(file), labels)
    names = np.asarray(table.classes, dtype=object)[table.columns].tolist()
    starts = table.starts.tolist()
    lists = [names[first:last] for first, last in pairwise(starts)]
    measure("lists", images, times, partial(LabelTable.from_lists, lists, classes=table.classes), labels)
    part = min(images, 100_000)
    csv = folder / "lists.csv"
    csv.write_text("image,present\n" + "".join(f"{i}.jpg,{';'.join(row)}\n" for i, row in enumerate(lists[:part])))
    measure("CSV, 100,000 images", part, times, lambda: LabelTable.from_csv(csv), starts[part])
    del lists, names
    random = np.random.default_rng(1)
    rows = [random.integers(images, size=BATCH) for _ in range(100)]
    measure("100 batches of 288", images, times, lambda: [table.batch(index) for index in rows], 100)
    measure("observe", images, times, lambda: table.observe(1, 0), labels)
    measure("drop", images, times, lambda: table.drop(0.9), labels)
    measure("drop per class", images, times, lambda: table.drop(0.9, per_class=True), labels)
    measure("split", images, times, lambda: [table.select(index) for index in paper_split(images)], labels)


def state(images: int, times: Times) -> None:
    """Steps of the methods that keep something for each image, without a network."""
    table = synthetic_table(images)
    logits = torch.randn(BATCH, CLASSES, generator=torch.Generator().manual_seed(0)) - 4
    order = np.random.default_rng(2).permutation(images)
    for name, options in (("role", {"expected_positives": 8.0, "storage": "compact"}), ("ll-cp", {"delta_rel": 0.1})):
        loss_fn = loss(name, **options)
        loss_fn.prepare(table, epochs=2)
        loss_fn.set_epoch(2)
        groups = loss_fn.parameter_groups(1e-3)
        optimizer = torch.optim.Adam(groups) if groups else None

        steps = partial(_train, loss_fn, optimizer, logits, table, order)
        steps()
        measure(f"{STEPS} steps of {name}", images, times, steps, STEPS)
        if name == "ll-cp":
            measure("revisions of ll-cp", images, times, loss_fn.end_epoch, STEPS)


def _train(
    loss_fn: Loss, optimizer: torch.optim.Optimizer | None, logits: torch.Tensor, table: LabelTable, order: Rows
) -> None:
    for step in range(STEPS):
        index = torch.from_numpy(order[step * BATCH : (step + 1) * BATCH])
        cost = loss_fn(logits.roll(step, 0).requires_grad_(), table.batch(index), index=index)
        torch.autograd.backward(cost)
        if optimizer is not None:
            optimizer.step()
        loss_fn.after_step()


def audit(images: int, times: Times, width: int = 32) -> None:
    """Rank the unknown labels with random heads of five folds: three passes over images × classes scores."""
    table = synthetic_table(images)
    random = np.random.default_rng(3)
    features = random.normal(size=(images, width)).astype(np.float32)
    weight = random.normal(0, 1 / 8, (5, CLASSES, width)).astype(np.float32)
    scorer = HeadScorer(
        {"train": features},
        random.integers(5, size=images),
        weight,
        np.full((5, CLASSES), -6, np.float32),
        torch.device("cpu"),
    )
    measure("audit", images, times, lambda: rank_candidates({"train": table}, [scorer]), images)


def end_to_end(images: int, times: Times, width: int = 32) -> None:
    """A training by the linear engine and an audit, on synthetic features × 5,000 classes."""
    table = synthetic_table(images)
    features = torch.randn(images, width, generator=torch.Generator().manual_seed(0))
    plans = [HeadPlan("an", {}, 1e-3, table)]
    (head,) = measure(
        "training, 1 epoch", images, times, lambda: train_heads(features, plans, epochs=1, batch_size=BATCH), images
    )
    weight, bias = np.stack([head.weight] * 2), np.stack([head.bias] * 2)
    fold = np.arange(images) % 2
    scorer = HeadScorer({"train": features.numpy()}, fold, weight, bias, torch.device("cpu"))
    measure("audit after training", images, times, lambda: rank_candidates({"train": table}, [scorer]), images)


def main() -> None:
    """Measure all parts, or one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="up to 3.4 million images")
    parser.add_argument("--part", choices=("tables", "state", "audit", "end-to-end"), help="one part alone")
    parser.add_argument("--images", type=int, default=8_000, help="images of the end-to-end part (200,000 in the docs)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    sizes = [IMAGES // part for part in ((16, 4, 1) if arguments.full else (64, 16, 4))]
    chosen: str | None = arguments.part
    times: Times = {}
    with tempfile.TemporaryDirectory() as folder:
        for images in sizes:
            if chosen in (None, "tables"):
                tables(images, times, Path(folder))
            if chosen in (None, "state"):
                state(images, times)
        for images in (2_000, 8_000):
            if chosen in (None, "audit"):
                audit(images, times)
        if chosen in (None, "end-to-end"):
            end_to_end(arguments.images, times)
    for name, values in times.items():
        if len(values) > 1:
            print(f"ratio {name.replace(' ', '-')} {values[-1] / values[0]:.2f}")


if __name__ == "__main__":
    main()
