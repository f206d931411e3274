"""Predictions in parts: what Ray costs beside a plain loop, and how many images a second workers score.

    python benchmarks/engines.py                        # 2,000 small JPEGs, some minutes on two cores
    python benchmarks/engines.py --images 20000 --workers 1 2 4
    python benchmarks/engines.py --linear 300000        # instead: train a linear head on so many features in parts

The images are small (160 × 120), and so is their input (64 pixels of ``efficientnet-lite0``): the smaller the work, the
more an engine counts. A worker has one thread, like the loop. The start of Ray and of its actors is printed, and is not
in the ratio: rates are those between the first shard that is done and the last, medians of alternating rounds.

``ratio ray-overhead VALUE`` is the time of one Ray worker divided by that of the loop, in the same rounds; ``ratio
ray-gaps VALUE`` the time of all shards divided by that in which a worker computes them, which other programs on the
machine change little; ``ratio workers-N VALUE`` how much faster N workers are than one. The load is printed.

``--linear`` prints the memory of the process that is not of files, at most, beside the size of the features.
"""

from __future__ import annotations

import logging
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "RAY_worker_niceness": "0"}  # Ray's workers are nice to other programs else

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import ray
import torch
from PIL import Image

import labelgap as lg
from labelgap.core.files import file_digest
from labelgap.data.parts import (
    DESCRIPTION,
    MANIFEST,
    PartFolder,
    PartsDescription,
    PartsManifest,
    PartSummary,
    part_name,
)
from labelgap.inference.engines.ray import RayEngine, Workers
from labelgap.inference.parts import Outcome, PartJob, compute_in_turn
from labelgap.inference.sources import list_shards

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.harness import parse_arguments, print_ratios

SHARD, ROUNDS = 100, 3


def write_images(folder: Path, count: int) -> None:
    """Write small JPEGs into Parquet files of ``SHARD``."""
    random = np.random.default_rng(0)
    for start in range(0, count, SHARD):
        rows = []
        for number in range(start, min(start + SHARD, count)):
            coarse = random.integers(0, 256, (8, 10, 3), dtype=np.uint8)
            sink = pa.BufferOutputStream()
            Image.fromarray(coarse).resize((160, 120)).save(sink, "JPEG", quality=85)
            rows.append({"image": f"{number}.jpg", "bytes": sink.getvalue().to_pybytes()})
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{start:08d}.parquet")


def rate(summaries: Iterable[Outcome]) -> tuple[float, float, float]:
    """Return images per second after the first shard, the seconds until it was done, and how much longer all took.

    The last is the time between the first shard and the last, divided by the seconds that a worker computed.
    """
    began, rows, first, work = time.perf_counter(), 0, 0.0, 0.0
    for summary in summaries:
        if first:
            assert isinstance(summary, PartSummary), summary
            rows, work = rows + summary.rows, work + summary.seconds
        first = first or time.perf_counter()
    elapsed = time.perf_counter() - first
    return rows / elapsed, first - began, elapsed / work


def anonymous_memory() -> int:
    """Return the bytes of this process that are in no file."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("RssAnon")))


def train_linear(count: int, width: int = 1280, classes: int = 20) -> None:
    """Train a linear head on random features in parts, and print its memory."""
    names, peak, ended = np.array([f"class {number}" for number in range(classes)]), [0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.05):
            peak[0] = max(peak[0], anonymous_memory())

    with tempfile.TemporaryDirectory() as temporary:
        os.environ["LABELGAP_CACHE"] = temporary
        folder, random = Path(temporary) / "parts", np.random.default_rng(0)
        folder.mkdir()
        parts = list[PartSummary]()
        weight = random.normal(size=(width, classes)).astype(np.float32)
        for number, start in enumerate(range(0, count, 10_000)):
            size = min(10_000, count - start)
            vectors = random.normal(size=(size, width)).astype(np.float32)
            present = [names[row > 20].tolist() for row in vectors @ weight]
            columns = {"image": [f"{start + row}.jpg" for row in range(size)], "present": present}
            columns["absent"] = [[names[0]] if names[0] not in each else [] for each in present]
            columns["split"] = ["val" if row % 100 == 0 else "train" for row in range(size)]
            table = pa.table({**columns, "error": pa.array([None] * size, pa.string())})
            lists = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), width)
            path = folder / part_name(number)
            pq.write_table(table.append_column("feature", lists), path)
            stored: dict[str, Any] = {"rows": size, "bytes": path.stat().st_size, "digest": file_digest(path).hex()}
            unused: dict[str, Any] = {"unreadable": 0, "errors": (), "labels": (0, 0), "seconds": 0}
            parts.append(PartSummary(shard=number, source="", predictor="", **stored, **unused))
        about = PartsDescription(source="", predictor="", shards=len(parts), classes=(), features=True)
        PartFolder(str(folder)).write(DESCRIPTION, about)
        PartFolder(str(folder)).write(MANIFEST, PartsManifest(**dict(about), parts=tuple(parts)))
        before, started = anonymous_memory(), time.perf_counter()
        threading.Thread(target=watch, daemon=True).start()
        data = lg.load(folder)
        loaded = time.perf_counter()
        lg.fit(data, "an", out=Path(temporary) / "run", quiet=True, device="cpu", trace="off", epochs=2)
        ended.set()
        print(f"{count:,} x {width:,} features, {4e-9 * count * width:.1f} GB: read {loaded - started:.0f} s, trained")
        print(f"{time.perf_counter() - loaded:.0f} s; at most {(peak[0] - before) / 1e9:.2f} GB of memory, of no file")


def main() -> None:
    arguments = parse_arguments(__doc__ or "", images=2000, workers=(1, 2), linear=0)
    if arguments.linear:
        return train_linear(arguments.linear)
    torch.set_num_threads(1)
    started = time.perf_counter()
    ray.init(num_cpus=max(arguments.workers) + 1, logging_level=logging.ERROR, log_to_driver=False)
    print(f"ray.init {time.perf_counter() - started:.1f} s, load {os.getloadavg()[0]:.1f}", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "images").mkdir()
        write_images(folder / "images", arguments.images)
        data = lg.load("digits", train=20, val=5, test=5)
        how: dict[str, Any] = {"backbone": "efficientnet-lite0", "size": 64, "protocol": "linear", "epochs": 1}
        run = lg.fit(data, "an", out=folder / "run", quiet=True, device="cpu", trace="off", **how)
        shards, predictor = list_shards(str(folder / "images")), lg.Predictor(run, device="cpu")
        rates: dict[str, list[float]] = {}
        gaps: list[float] = []
        for number in range(ROUNDS):
            part = shards[number::ROUNDS]
            for count in (0, *arguments.workers):
                (folder / f"{number}-{count}").mkdir()
                job = PartJob(predictor, str(folder / f"{number}-{count}"))
                engine = RayEngine(Workers(count, count)) if count else compute_in_turn
                found, start, spent = rate(engine(job, part))
                name = f"{count} workers" if count else "loop"
                rates.setdefault(name, []).append(found)
                if count == arguments.workers[0]:
                    gaps.append(count * spent)
                print(
                    f"{name:<12}{found:>8.1f} images/s, first shard after {start:.1f} s, load {os.getloadavg()[0]:.1f}"
                )
                sys.stdout.flush()
    ray.shutdown()
    median = {name: statistics.median(values) for name, values in rates.items()}
    one = rates[f"{arguments.workers[0]} workers"]
    overhead = statistics.median(loop / worker for loop, worker in zip(rates["loop"], one, strict=True))
    ratios = {"ray-overhead": overhead, "ray-gaps": statistics.median(gaps)}
    for count in arguments.workers[1:]:
        ratios[f"workers-{count}"] = median[f"{count} workers"] / statistics.median(one)
    print_ratios(ratios)


if __name__ == "__main__":
    main()
