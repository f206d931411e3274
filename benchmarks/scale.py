"""A synthetic OpenImages: time and peak memory of what labelgap does with millions of images.

    python benchmarks/scale.py                          # everything that 9 minutes on two cores allow
    python benchmarks/scale.py --minutes 60             # everything
    python benchmarks/scale.py --part observe drop --images 850000
    python benchmarks/scale.py --part audit --images 200000      # what the full run leaves out: much time

3.4 million images, 5,000 classes, 30 million known labels, long-tailed, and a quarter and a sixteenth of it; fewer
images where all images × classes are scored. Every measurement is a process of its own, so that its peak memory is that
of the operation and of what it needs; "before" is what the process held when the operation began. Seconds are those of
the process on the CPU: other programs on the machine do not count. Without ``--part`` and ``--images`` a measurement
that would not end within ``--minutes`` of the start, by its time at the size before, is left out, and one that does not
end is stopped; the last lines before the ratios say which.

``ratio linear-NAME VALUE`` is the time at the largest size divided by 4 × that at a quarter of it: 1 is linear growth.
``ratio memory-NAME VALUE`` is the same of the peak memory. ``ratio peer-NAME VALUE`` is the peer's time, measured in
the same run, divided by ours.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix

from labelgap.audit.candidates import rank_candidates
from labelgap.audit.scorers import HeadScorer
from labelgap.data.readers.common import FileProblems
from labelgap.data.readers.openimages import ClassList, format_ids, read_labels
from labelgap.labels import PRESENT, LabelTable, Revisions, paper_split
from labelgap.losses import loss

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.harness import parse_arguments, print_ratios

IMAGES, CLASSES, KNOWN = 3_400_000, 5_000, 30_000_000
BATCH, STEPS, BATCHES, WIDTH = 288, 10, 100, 64
SIZES = IMAGES // 16, IMAGES // 4, IMAGES
SCORED = 2_000, 8_000, 32_000
"""Sizes where every image is scored in all classes."""


def synthetic_table(images: int, seed: int = 0) -> LabelTable:
    """Long-tailed labels: class k is known with a frequency of about 1 / (k + 10); a third of them are present."""
    random = np.random.default_rng(seed)
    count = int(images * KNOWN / IMAGES * 1.08)  # a few are drawn twice
    places = random.integers(images, size=count) * CLASSES
    places += (10 * ((CLASSES / 10 + 1) ** random.random(count) - 1)).astype(np.int64)
    places.sort()
    rows, columns = np.divmod(places[np.diff(places, prepend=-1) > 0], CLASSES)
    starts = np.searchsorted(rows, np.arange(images + 1))
    values = (random.random(len(rows)) < 0.35).astype(np.int8)
    return LabelTable(
        starts, columns.astype(np.int32), values, [f"class {k}" for k in range(CLASSES)], image_names(images)
    )


def image_names(images: int) -> list[str]:
    return [f"{number:07d}.jpg" for number in range(images)]


def stored_table(images: int, folder: Path) -> LabelTable:
    """Return the synthetic table; it is drawn once for each size."""
    file = folder / f"{images}.npz"
    if not file.exists():
        table = synthetic_table(images)
        np.savez(file, starts=table.starts, columns=table.columns, values=table.values)
        return table
    with np.load(file) as arrays:
        starts, columns, values = (arrays[name] for name in ("starts", "columns", "values"))
    return LabelTable(starts, columns, values, [f"class {k}" for k in range(CLASSES)], image_names(images))


def parquet_file(images: int, folder: Path) -> Path:
    """Return the Parquet file of the table."""
    file = folder / f"{images}.parquet"
    if not file.exists():
        stored_table(images, folder).to_parquet(file)
    return file


def csv_file(images: int, folder: Path) -> Path:
    """Return a CSV with the lists of present and absent classes."""
    file = folder / f"{images}.csv"
    if not file.exists():
        table = stored_table(images, folder)
        names = np.array(table.classes, dtype=object)[table.columns]
        present, starts = table.values == PRESENT, table.starts.tolist()
        with file.open("w") as out:
            out.write("image,present,absent\n")
            for row, image in enumerate(table.images):
                own = slice(starts[row], starts[row + 1])
                lists = (";".join(names[own][present[own] == state].tolist()) for state in (True, False))
                out.write(f"{image},{','.join(lists)}\n")
    return file


def openimages_file(images: int, folder: Path) -> Path:
    """Return the labels as Open Images has them: a row per known label, those of an image together."""
    import pyarrow as pa
    from pyarrow import csv

    file = folder / f"{images}.openimages"
    if not file.exists():
        table = stored_table(images, folder)
        ids = np.sort(np.random.default_rng(4).choice(2**62, size=images, replace=False)).astype(np.uint64)
        names, rows = pa.array(format_ids(ids)), table.rows
        classes = pa.array([f"/m/{number:05x}" for number in range(CLASSES)])
        schema = pa.schema(
            [(name, pa.string()) for name in ("ImageID", "Source", "LabelName")] + [("Confidence", "i1")]
        )
        with csv.CSVWriter(file, schema, write_options=csv.WriteOptions(quoting_style="none")) as out:
            for start in range(0, len(rows), 1 << 20):
                part = slice(start, start + (1 << 20))
                source = pa.array(["verification"]).take(pa.array(np.zeros(len(rows[part]), np.int8)))
                label = classes.take(pa.array(table.columns[part]))
                out.write_table(
                    pa.table([names.take(pa.array(rows[part])), source, label, table.values[part]], schema=schema)
                )
    return file


def read_openimages(file: Path) -> None:
    """Read the labels as ``labelgap.load("openimages")`` does."""
    classes = tuple(f"/m/{number:05x}" for number in range(CLASSES))
    problems = FileProblems(file.parent)
    read_labels(file, None, ClassList(classes, classes, {}, complete=True), problems)
    problems.refuse()


def read_openimages_peer(file: Path) -> Any:
    """Read the labels with pandas into a sparse matrix of scipy; nothing is checked."""
    import pandas

    frame = pandas.read_csv(file, usecols=["ImageID", "LabelName", "Confidence"])
    rows, images = pandas.factorize(frame["ImageID"])
    columns, classes = pandas.factorize(frame["LabelName"])
    return images, classes, csr_matrix((frame["Confidence"].to_numpy(np.int8) + 1, (rows, columns)))


def python_lists(images: int, folder: Path) -> tuple[LabelTable, list[list[str]]]:
    """Return the table, and for each image the names of its known classes."""
    table = stored_table(images, folder)
    names = np.array(table.classes, dtype=object)[table.columns].tolist()
    starts = table.starts.tolist()
    return table, [names[starts[row] : starts[row + 1]] for row in range(images)]


def read_parquet_peer(file: Path) -> Any:
    """Read the lists with pyarrow into a sparse matrix of scipy; names are numbered, nothing is checked."""
    import pyarrow.parquet as pq

    content = pq.read_table(file, read_dictionary=["present.list.element", "absent.list.element"])
    parts = []
    for name in ("present", "absent"):
        lists = content[name].combine_chunks()
        flat = lists.flatten()
        flat = flat.combine_chunks() if hasattr(flat, "combine_chunks") else flat
        numbers = flat.dictionary_encode().indices.to_numpy(zero_copy_only=False)
        rows = np.repeat(np.arange(len(lists)), np.diff(lists.offsets.to_numpy()))
        parts.append(csr_matrix((np.ones(len(rows), np.int8), (rows, numbers)), shape=(len(lists), CLASSES)))
    return content["image"].to_pylist(), parts


def read_csv_peer(file: Path) -> Any:
    """Read the lists with pandas into a sparse matrix of scipy; names are numbered, nothing is checked."""
    import pandas

    frame = pandas.read_csv(file)
    parts = []
    for name in ("present", "absent"):
        lists = frame[name].str.split(";").explode().dropna()
        numbers, _ = pandas.factorize(lists)
        parts.append(csr_matrix((np.ones(len(numbers), np.int8), (lists.index.to_numpy(), numbers))))
    return frame["image"].tolist(), parts


def lists_peer(given: tuple[LabelTable, list[list[str]]]) -> Any:
    """Turn the lists into a sparse matrix with scikit-learn."""
    from sklearn.preprocessing import MultiLabelBinarizer

    return MultiLabelBinarizer(classes=given[0].classes, sparse_output=True).fit_transform(given[1])


def batches(table: LabelTable) -> None:
    """Take batches of random images."""
    random = np.random.default_rng(1)
    for _ in range(BATCHES):
        table.batch(random.integers(len(table), size=BATCH))


def sparse_matrix(images: int, folder: Path) -> Any:
    """Return the table as a sparse matrix of scipy: 1 present, 2 absent."""
    table = stored_table(images, folder)
    return csr_matrix((2 - table.values, table.columns, table.starts), shape=table.shape)


def batches_peer(matrix: Any) -> None:
    """Take the same batches from a sparse matrix of scipy, dense."""
    random = np.random.default_rng(1)
    for _ in range(BATCHES):
        torch.from_numpy(matrix[random.integers(matrix.shape[0], size=BATCH)].toarray())


def observe_peer(table: LabelTable) -> None:
    """Draw one known present label of every image with pandas."""
    import pandas

    frame = pandas.DataFrame({"row": table.rows, "column": table.columns, "value": table.values})
    frame[frame["value"] == PRESENT].groupby("row").sample(1, random_state=0)


def split(table: LabelTable) -> list[LabelTable]:
    """Divide the images as the papers do."""
    return [table.select(index) for index in paper_split(len(table))]


def write_revisions(revisions: Revisions, folder: str) -> None:
    """Write the revisions of an epoch."""
    revisions.to_parquet(Path(folder) / "revisions.parquet")


def correct(table: LabelTable) -> None:
    """Let `ll-cp` commit one correction for each image, batch by batch, and write the revisions of the epoch."""
    loss_fn: Any = loss("ll-cp", delta_rel=0.1)
    loss_fn.prepare(table, epochs=2)
    loss_fn.set_epoch(2)
    random = np.random.default_rng(2)
    for rows in torch.split(torch.from_numpy(random.permutation(len(table))), BATCH):
        mask = torch.zeros(len(rows), CLASSES, dtype=torch.bool)
        mask[torch.arange(len(rows)), torch.from_numpy(random.integers(CLASSES, size=len(rows)))] = True
        loss_fn.commit(rows, mask)
    with tempfile.TemporaryDirectory() as folder:
        write_revisions(loss_fn.end_epoch(), folder)


def features(images: int) -> torch.Tensor:
    return torch.randn(images, WIDTH, generator=torch.Generator().manual_seed(0))


def pseudo_label(table: LabelTable) -> None:
    """Hold a round of `em-apl`: the logits of all images and classes, and its revisions written."""
    loss_fn: Any = loss("em-apl", warmup=1)
    loss_fn.prepare(table, epochs=6)
    loss_fn.set_epoch(1)
    vectors, weight = features(len(table)), torch.randn(WIDTH, CLASSES) / 8

    def scores() -> Any:
        for rows in torch.split(torch.arange(len(table)), 2048):
            yield rows, vectors[rows] @ weight - 5

    with tempfile.TemporaryDirectory() as folder:
        write_revisions(loss_fn.end_epoch(scores), folder)


def steps(name: str, **options: Any) -> Callable[[LabelTable], None]:
    """Return a function that takes steps with a loss, without a network, on images that it has not seen."""

    def run(table: LabelTable) -> None:
        loss_fn = loss(name, **options)
        loss_fn.prepare(table, epochs=2)
        loss_fn.set_epoch(2)
        groups = loss_fn.parameter_groups(1e-3)
        optimizer = torch.optim.Adam(groups) if groups else None
        logits = torch.randn(BATCH, CLASSES, generator=torch.Generator().manual_seed(0)) - 4
        order = torch.from_numpy(np.random.default_rng(2).permutation(len(table)))
        for index in torch.split(order[: STEPS * BATCH], BATCH):
            cost = loss_fn(logits.roll(1, 0).requires_grad_(), table.batch(index), index=index)
            torch.autograd.backward(cost)
            if optimizer is not None:
                optimizer.step()
            loss_fn.after_step()

    return run


def audit(table: LabelTable) -> None:
    """Rank the unknown labels with random heads of five folds: three passes over images × classes scores."""
    random = np.random.default_rng(3)
    vectors = features(len(table)).numpy()
    weight = random.normal(0, 1 / 8, (5, CLASSES, WIDTH)).astype(np.float32)
    bias = np.full((5, CLASSES), -6, np.float32)
    scorer = HeadScorer({"train": vectors}, random.integers(5, size=len(table)), weight, bias, torch.device("cpu"))
    rank_candidates({"train": table}, [scorer])


Prepare = Callable[[int, Path], Any]


@dataclass(frozen=True)
class Part:
    """What is measured: ``run`` on what ``prepare`` returns; the peer likewise."""

    run: Callable[[Any], Any]
    prepare: Prepare = stored_table
    sizes: tuple[int, ...] = SIZES
    peer: Callable[[Any], Any] | None = None
    prepare_peer: Prepare | None = None


PARTS = {  # two at a time: the longest first
    "csv": Part(LabelTable.from_csv, csv_file, peer=read_csv_peer),
    "audit": Part(audit, sizes=SCORED),
    "ll-cp": Part(correct),
    "openimages": Part(read_openimages, openimages_file, peer=read_openimages_peer),
    "parquet": Part(LabelTable.from_parquet, parquet_file, peer=read_parquet_peer),
    "observe": Part(lambda table: table.observe(1, 0), peer=observe_peer),
    "lists": Part(
        lambda given: LabelTable.from_lists(given[1], classes=given[0].classes), python_lists, peer=lists_peer
    ),
    "em-apl": Part(pseudo_label, sizes=SCORED),
    "drop": Part(lambda table: table.drop(0.9)),
    "drop-per-class": Part(lambda table: table.drop(0.9, per_class=True)),
    "split": Part(split),
    "batch": Part(batches, peer=batches_peer, prepare_peer=sparse_matrix),
    "ll-cp-steps": Part(steps("ll-cp", delta_rel=0.1)),
    "role-steps": Part(steps("role", expected_positives=8.0, storage="compact")),
}


def measure(part: Part, images: int, folder: Path, *, peer: bool, prepare_only: bool) -> None:
    """Measure one part in this process, and print the numbers as JSON; only prepare its files if ``prepare_only``."""
    torch.set_num_threads(1)
    prepare = part.prepare_peer if peer and part.prepare_peer else part.prepare
    run = part.peer if peer and part.peer else part.run
    given = prepare(images, folder)
    if prepare_only:
        return
    before, started = _peak(), time.process_time()
    run(given)
    print(json.dumps({"seconds": time.process_time() - started, "before": before, "peak": _peak()}))


def _peak() -> float:
    """Return the largest memory that this process has held so far, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e9


def _file(prepare: Prepare, images: int, folder: Path) -> Path:
    """Return the file that ``prepare`` reads."""
    kinds: dict[Prepare, str] = {parquet_file: "parquet", csv_file: "csv", openimages_file: "openimages"}
    return folder / f"{images}.{kinds.get(prepare, 'npz')}"


class Runner:
    """Measures in processes of their own.

    Args:
        folder: of the tables and files.
        deadline: what does not end before this, by ``time.monotonic``, is left out.
    """

    def __init__(self, folder: Path, deadline: float) -> None:
        self.folder, self.deadline = folder, deadline
        self.left_out: list[str] = []

    def start(self, name: str, images: int, *, peer: bool = False, expected: float = 0.0) -> dict[str, float] | None:
        """Measure; None where it fails or is left out, which is printed. ``expected`` are the seconds it may take."""
        label, began = f"{name}{', peer' if peer else ''}", time.monotonic()
        if began + expected > self.deadline:
            why = f": it would take about {expected:.0f} s" if expected else ""
            self.left_out.append(f"{label} of {images:,} images, not begun{why}")
            return None
        command = [sys.executable, __file__, "--part", name, "--images", str(images), "--within", str(self.folder)]
        try:
            if not _file(PARTS[name].prepare, images, self.folder).exists():  # to write them takes memory of its own
                self.run([*command, "--prepare"])
            done = self.run([*command, *(["--peer"] if peer else [])])
        except subprocess.TimeoutExpired:
            self.left_out.append(f"{label} of {images:,} images, stopped after {time.monotonic() - began:.0f} s")
            return None
        if done.returncode:
            print(f"{label:20} {images:>10,}  failed: {(done.stderr.strip() or 'killed').splitlines()[-1]}", flush=True)
            return None
        found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        seconds, before, peak = found["seconds"], found["before"], found["peak"]
        print(f"{label:20} {images:>10,} {seconds:9.2f} s  peak {peak:5.2f} GB (before {before:.2f})", flush=True)
        return found | {"images": images, "wall": time.monotonic() - began}

    def run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        """Run a command until the deadline."""
        left = self.deadline - time.monotonic()
        return subprocess.run(
            command, capture_output=True, text=True, timeout=max(0.0, left) if left < np.inf else None
        )

    def measure_part(self, name: str, sizes: tuple[int, ...]) -> dict[str, float]:
        """Measure a part at its sizes, and return the ratios."""
        found: list[dict[str, float]] = []
        ratios: dict[str, float] = {}
        for number, size in enumerate(sizes):
            expected = found[-1]["wall"] * size / found[-1]["images"] if found else 0.0
            ours = self.start(name, size, expected=expected)
            found += [ours] if ours else []
            if PARTS[name].peer and ours and number == len(sizes) // 2 and (other := self.start(name, size, peer=True)):
                ratios[f"peer-{name}"] = other["seconds"] / ours["seconds"]
        if len(found) > 1:
            factor = found[-1]["images"] / found[-2]["images"]
            ratios[f"linear-{name}"] = found[-1]["seconds"] / (factor * found[-2]["seconds"])
            ratios[f"memory-{name}"] = found[-1]["peak"] / (factor * found[-2]["peak"])
        return ratios


def measure_all(names: list[str], images: list[int] | None, runner: Runner) -> None:
    """Measure parts at their sizes, two at a time, and print the ratios."""
    sizes = {name: tuple(images) if images else PARTS[name].sizes for name in names}
    tables = map(str, sorted(set().union(*sizes.values())))  # two parts may need the same table
    prepare = ["--part", "batch", "--within", str(runner.folder), "--prepare", "--images", *tables]
    subprocess.run([sys.executable, __file__, *prepare], check=True)
    with ThreadPoolExecutor(2) as pool:
        ratios = list(pool.map(lambda name: runner.measure_part(name, sizes[name]), names))
    for what in runner.left_out:
        print(f"left out: {what}")
    for part in ratios:
        print_ratios(part)


def main() -> None:
    """Measure all parts, or one."""
    options: dict[str, Any] = {"part": (*PARTS,), "images": (0,), "minutes": 9.0}
    arguments = parse_arguments(__doc__, within=Path, prepare=False, peer=False, **options)  # these three for itself
    if arguments.within is not None:
        part = PARTS[arguments.part[0]]
        for images in arguments.images:
            measure(part, images, arguments.within, peer=arguments.peer, prepare_only=arguments.prepare)
        return
    sizes = None if arguments.images == (0,) else arguments.images
    everything = len(arguments.part) == len(PARTS) and not sizes
    deadline = time.monotonic() + 60 * arguments.minutes if everything else np.inf
    with tempfile.TemporaryDirectory() as folder:
        measure_all(arguments.part, sizes, Runner(Path(folder), deadline))


if __name__ == "__main__":
    main()
