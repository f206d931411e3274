"""A prediction in parts: a Parquet file for each shard of a source, in a folder or a bucket.

A part is written beside, and then renamed; ``_part-000017.json``, written after it, has its rows and its digest. So a
shard is done or not, whoever was killed, and whoever starts again computes what is not done. When all are, there is
``_manifest.json``. A worker needs a ``PartJob`` and a shard and nothing else: Ray, Slurm and a plain loop run the same.

A part has a row per image: ``image`` and its ``path`` if it has one; ``logit``, ``score``, ``label`` and, where the run
has any, ``probability``, lists with an entry for each class; ``error``; and what was asked for or known: ``feature``,
``split``, ``present``, ``absent``. The metadata of its schema name the classes.
"""

from __future__ import annotations

import json
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from labelgap.core.errors import InputError, LabelGapError, RunError
from labelgap.core.files import file_digest
from labelgap.core.stored import READ_ERRORS, parse_json
from labelgap.core.text import pluralize
from labelgap.data.addresses import file_system, is_url
from labelgap.inference.columns import PredictionColumns
from labelgap.inference.predictor import Predictor
from labelgap.inference.sources import LABELS, InputShard, list_shards, read_shard, source_digest
from labelgap.labels import ABSENT, PRESENT
from labelgap.training.progress import Reporter

DESCRIPTION: Final = "_prediction.json"
MANIFEST: Final = "_manifest.json"
FORMAT: Final = 1
_SHOWN: Final = 5
_TEXT: Final = {"split": pa.string(), "present": pa.list_(pa.string()), "absent": pa.list_(pa.string())}
_READ_AT_ONCE: Final = 1024  # images of a shard

Summary = dict[str, Any]
Engine = Callable[["PartJob", Sequence[InputShard]], Iterable[Summary]]
"""What computes shards, in any order: an engine."""


class PartFolder:
    """A folder or a bucket of files that are complete or not there."""

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/") if is_url(address) else os.path.abspath(address)  # noqa: PTH100
        self.system, self.path = file_system(self.address)

    def make(self) -> None:
        """Create it, where a file system has folders."""
        self.system.makedirs(self.path, exist_ok=True)

    def sizes(self) -> dict[str, int]:
        """Return the size of every file by its name."""
        self.system.invalidate_cache()
        found = self.system.ls(self.path, detail=True) if self.system.exists(self.path) else []
        return {each["name"].rstrip("/").rpartition("/")[2]: each["size"] for each in found if each["type"] == "file"}

    def put(self, file: Path, name: str) -> None:
        """Copy a file of this disk here, under a name that appears when it is complete."""
        partial = f"{self.path}/_{secrets.token_hex(8)}.partial"
        self.system.put_file(os.fspath(file), partial)
        self.system.mv(partial, f"{self.path}/{name}")

    def write(self, name: str, value: Any) -> None:
        """Write JSON."""
        with tempfile.TemporaryDirectory(prefix="labelgap-") as folder:
            file = Path(folder) / name
            file.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            self.put(file, name)

    def read(self, names: Sequence[str]) -> list[Any]:
        """Read files of JSON, many at once where the file system can; ``RunError`` where one is damaged."""
        found = self.system.cat([f"{self.path}/{name}" for name in names]) if names else {}
        try:
            return [parse_json(content) for _, content in sorted(found.items())]
        except READ_ERRORS as error:
            raise RunError(f"{self.address} has a damaged file ({error}): --restart removes it.") from None

    def open(self, name: str) -> Any:
        """Open a file to read it."""
        return self.system.open(f"{self.path}/{name}", "rb")

    def remove(self, names: Iterable[str]) -> None:
        """Remove files."""
        for name in names:
            self.system.rm_file(f"{self.path}/{name}")


@dataclass(frozen=True)
class PartJob:
    """What is computed for every shard, and where it is written; it can be pickled."""

    predictor: Predictor
    out: str

    def compute(self, shard: InputShard) -> Summary:
        """Write the part of a shard, and return its summary; with a "problem" where the shard cannot be read."""
        started, folder, predictor = time.perf_counter(), PartFolder(self.out), self.predictor
        summary: Summary = {"shard": shard.number, "source": shard.identity, "rows": 0, "unreadable": 0, "errors": []}
        summary |= {"labels": [0, 0]}
        try:
            with tempfile.TemporaryDirectory(prefix="labelgap-") as temporary:
                path, writer = Path(temporary) / part_name(shard.number), None
                for batch in read_shard(shard, _READ_AT_ONCE):
                    found = predictor(batch)
                    table = part_table(batch, found, predictor)
                    writer = writer or pq.ParquetWriter(path, table.schema, compression="zstd")
                    writer.write_table(table.cast(writer.schema))
                    bad = found["error"] != ""
                    summary["rows"] += len(bad)
                    summary["unreadable"] += int(bad.sum())
                    summary["errors"] += found["error"][bad][: _SHOWN - len(summary["errors"])].tolist()
                    if "label" in found:
                        counts = [int((found["label"][~bad] == state).sum()) for state in (PRESENT, ABSENT)]
                        summary["labels"] = [old + new for old, new in zip(summary["labels"], counts, strict=True)]
                if writer is not None:
                    writer.close()
                    summary |= {"bytes": path.stat().st_size, "digest": file_digest(path).hex()}
                    folder.put(path, path.name)
        except LabelGapError as error:
            return {**summary, "problem": str(error)}
        summary["seconds"] = round(time.perf_counter() - started, 3)
        folder.write(summary_name(shard.number), summary)
        return summary


def part_name(number: int) -> str:
    """Return the name of a part."""
    return f"part-{number:06d}.parquet"


def summary_name(number: int) -> str:
    """Return the name of the summary of a part."""
    return f"_part-{number:06d}.json"


def part_table(batch: Mapping[str, Any], found: Mapping[str, Any], predictor: Predictor) -> pa.Table:
    """Return the rows of a part: what a predictor says about a batch, and what the batch says itself."""
    bad, width = found["error"] != "", len(predictor.classes)
    columns = {name: pa.array(batch[name], pa.string()) for name in ("image", "path") if name in batch}
    for name in ("logit", "score", "probability", "label", "feature"):
        if name not in found or (name == "probability" and predictor.calibration is None):
            continue
        values = np.ascontiguousarray(found[name])
        flat = pa.array(values.ravel(), from_pandas=False)
        columns[name] = pa.FixedSizeListArray.from_arrays(flat, values.shape[1], mask=pa.array(bad))
    columns["error"] = pa.array(found["error"], pa.string(), mask=~bad)
    columns |= {name: pa.array(batch[name], _TEXT[name]) for name in LABELS if name in batch}
    metadata = {}
    if width:
        about = PredictionColumns(predictor.classes, predictor.thresholds, predictor.calibration).to_json()
        metadata = {b"labelgap": json.dumps(about, ensure_ascii=False)}
    return pa.table(columns).replace_schema_metadata(metadata)


def compute_in_turn(job: PartJob, shards: Sequence[InputShard]) -> Iterable[Summary]:
    """Compute shards in this process: the engine that needs none."""
    return map(job.compute, shards)


@dataclass(frozen=True)
class PartsResult:
    """What is done of a prediction in parts."""

    address: str
    shards: int
    summaries: tuple[Summary, ...]  # of the shards that are done
    computed: int  # shards, by this command

    def total(self, name: str) -> int:
        """Return the sum of a number over all shards that are done."""
        return sum(int(each[name]) for each in self.summaries)

    @property
    def complete(self) -> bool:
        """Whether every shard is done."""
        return len(self.summaries) == self.shards


def predict_parts(
    predictor: Predictor,
    source: str,
    out: str | os.PathLike[str],
    *,
    engine: Engine = compute_in_turn,
    part: tuple[int, int] = (0, 1),
    restart: bool = False,
    quiet: bool = True,
) -> PartsResult:
    """Predict a source in parts; what is there of the same prediction is not computed again.

    Args:
        predictor: what is computed for every image.
        source: see ``labelgap.inference.sources``.
        out: a folder, or a URL of one.
        engine: what computes the shards.
        part: (0, 64) is the first of 64 parts of the shards; other machines compute the others into the same folder.
        restart: remove what is there.
        quiet: show no progress.
    """
    number, parts = part
    if not 0 <= number < parts:
        raise InputError(f"part {number}/{parts}: parts are counted from 0, so that the last of 64 is 63/64.")
    shards, folder, reporter = list_shards(source), PartFolder(os.fspath(out)), Reporter(quiet)
    about = {"format": FORMAT, "source": source_digest(shards), "shards": len(shards), "predictor": predictor.digest}
    about |= {"classes": list(predictor.classes), "features": predictor.features}
    _open(folder, about, restart)
    own = shards[number::parts]
    done = {each["shard"] for each in _finished(folder, shards)}
    missing = [shard for shard in own if shard.number not in done]
    if len(own) > len(missing):
        reporter.log(f"{len(own) - len(missing):,} of {pluralize(len(own), 'shard')} are there already")
    problems: list[str] = []
    with reporter.bar("shards", len(own), len(own) - len(missing)):
        for summary in engine(PartJob(predictor, folder.address), missing) if missing else ():
            problems += [summary["problem"]] if "problem" in summary else []
            reporter.advance(1)
    result = PartsResult(folder.address, len(shards), tuple(_finished(folder, shards)), len(missing) - len(problems))
    if problems:
        listed = "".join(f"\n  {problem}" for problem in problems[:_SHOWN])
        raise InputError(
            f"{pluralize(len(problems), 'shard')} of {len(shards):,} cannot be read; the others are done:{listed}\n"
            "Repair or remove them, and run the command again."
        )
    if result.complete:
        rows = {name: result.total(name) for name in ("rows", "unreadable")}
        folder.write(MANIFEST, {**about, **rows, "parts": list(result.summaries)})
        folder.remove(name for name in folder.sizes() if name.endswith(".partial"))  # of killed workers
    return result


def _open(folder: PartFolder, about: dict[str, Any], restart: bool) -> None:
    """Start a prediction in a folder, or go on with the same one."""
    folder.make()
    names = folder.sizes()
    foreign = [name for name in names if not name.startswith(("part-", "_", "."))]
    if foreign and DESCRIPTION not in names:
        raise RunError(f"{folder.address} has other files ({foreign[0]}): choose an empty folder with --out.")
    if DESCRIPTION in names and restart:
        folder.remove(sorted((name for name in names if name.startswith(("part-", "_"))), reverse=True))
    elif DESCRIPTION in names:
        if folder.read([DESCRIPTION]) != [about]:
            raise RunError(
                f"{folder.address} holds predictions of another run or source: choose another --out, or remove "
                "them with --restart."
            )
        return
    folder.write(DESCRIPTION, about)


def _finished(folder: PartFolder, shards: Sequence[InputShard]) -> list[Summary]:
    """Return the summaries of the shards that are done: those of which the part is there, in its size."""
    sizes, by_number = folder.sizes(), {shard.number: shard for shard in shards}
    names = [name for name in map(summary_name, by_number) if name in sizes]
    return [
        summary
        for summary in folder.read(names)
        if summary["source"] == by_number[summary["shard"]].identity
        and sizes.get(part_name(summary["shard"])) == summary.get("bytes")
    ]
