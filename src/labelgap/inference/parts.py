"""A prediction in parts, a Parquet file for each shard of a source; ``labelgap.data.parts`` has their folder.

A shard is done or not, whoever was killed, and whoever starts again computes what is not done. A worker needs a
``PartJob`` and a shard and nothing else: Ray, Slurm and a plain loop run the same.

A part has a row per image: ``image`` and its ``path`` if it has one; ``logit``, ``score``, ``label`` and, where the run
has any, ``probability``, lists with an entry for each class; ``error``; and what was asked for or known: ``feature``,
``split``, ``present``, ``absent``. The metadata of its schema name the classes.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from labelgap.core.errors import InputError, RunError
from labelgap.core.files import file_digest
from labelgap.core.text import pluralize
from labelgap.data.parts import (
    DESCRIPTION,
    MANIFEST,
    PartFolder,
    PartsDescription,
    PartsManifest,
    PartSummary,
    part_name,
    summary_name,
)
from labelgap.inference.predictor import Predictor
from labelgap.inference.sources import LABELS, InputShard, list_shards, read_shard, source_digest
from labelgap.labels import ABSENT, PRESENT
from labelgap.training.progress import Reporter

_SHOWN: Final = 5
_READ_AT_ONCE: Final = 1024  # images of a shard

Outcome = PartSummary | str
"""What became of a shard; a text says why it cannot be read."""
Engine = Callable[["PartJob", Sequence[InputShard]], Iterable[Outcome]]
"""What computes shards, in any order: an engine."""


@dataclass(frozen=True)
class PartJob:
    """What is computed for every shard, and where it is written; it can be pickled."""

    predictor: Predictor
    out: str

    def compute(self, shard: InputShard) -> Outcome:
        """Write the part of a shard, and then its summary."""
        started, folder, predictor = time.perf_counter(), PartFolder(self.out), self.predictor
        rows, errors, labels = 0, list[str](), np.zeros(2, dtype=np.int64)
        try:
            with folder.writing(part_name(shard.number)) as path:
                writer: pq.ParquetWriter | None = None
                for batch in read_shard(shard, _READ_AT_ONCE):
                    found = predictor(batch)
                    table = part_table(batch, found, predictor)
                    writer = writer or pq.ParquetWriter(path, table.schema, compression="zstd")
                    writer.write_table(table.cast(writer.schema))
                    rows += len(table)
                    errors += table["error"].drop_null().to_pylist()
                    for place, state in enumerate((PRESENT, ABSENT)):
                        labels[place] += np.count_nonzero(found["label"] == state) if "label" in found else 0
                if writer is not None:
                    writer.close()
                size, digest = path.stat().st_size, file_digest(path).hex()
        except InputError as error:
            return str(error)
        summary = PartSummary(
            shard=shard.number,
            source=shard.identity,
            predictor=predictor.digest,
            rows=rows,
            unreadable=len(errors),
            errors=tuple(errors[:_SHOWN]),
            labels=(int(labels[0]), int(labels[1])),
            bytes=size,
            digest=digest,
            seconds=round(time.perf_counter() - started, 3),
        )
        folder.write(summary_name(shard.number), summary)
        return summary


def part_table(batch: Mapping[str, Any], found: Mapping[str, Any], predictor: Predictor) -> pa.Table:
    """Return the rows of a part: what a predictor says about a batch, and what the batch says itself."""
    bad = found["error"] != ""
    columns = {name: _texts(batch[name]) for name in ("image", "path") if name in batch}
    for name in ("logit", "score", "probability", "label", "feature"):
        if name not in found or (name == "probability" and predictor.calibration is None):
            continue
        values = np.ascontiguousarray(found[name])
        flat = pa.array(values.ravel(), from_pandas=False)
        columns[name] = pa.FixedSizeListArray.from_arrays(flat, values.shape[1], mask=pa.array(bad))
    columns["error"] = _texts([error or None for error in found["error"].tolist()])
    columns |= {name: batch[name] for name in LABELS if name in batch}
    about = {b"labelgap": json.dumps(predictor.columns.to_json(), ensure_ascii=False)} if predictor.classes else {}
    return pa.table(columns).replace_schema_metadata(about)


def _texts(values: Sequence[Any]) -> pa.Array:
    """Return texts; of names that are not in UTF-8 what is not."""
    texts = (value.encode(errors="backslashreplace") if isinstance(value, str) else None for value in values)
    return pa.array(texts, pa.binary()).cast(pa.string())


def compute_in_turn(job: PartJob, shards: Sequence[InputShard]) -> Iterable[Outcome]:
    """Compute shards in this process: the engine that needs none."""
    return map(job.compute, shards)


@dataclass(frozen=True)
class PartsResult:
    """What is done of a prediction in parts."""

    address: str
    shards: int
    summaries: tuple[PartSummary, ...]  # of the shards that are done
    computed: int  # shards, by this command

    def total(self, name: str) -> int:
        """Return the sum of a number over all shards that are done."""
        return sum(int(getattr(each, name)) for each in self.summaries)

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
    about = PartsDescription(
        source=source_digest(shards),
        predictor=predictor.digest,
        shards=len(shards),
        classes=predictor.classes,
        features=predictor.features,
    )
    _open(folder, about, restart)
    own = shards[number::parts]
    done = {each.shard for each in _finished(folder, shards, about.predictor)}
    missing = [shard for shard in own if shard.number not in done]
    if len(own) > len(missing):
        reporter.log(f"{len(own) - len(missing):,} of {pluralize(len(own), 'shard')} are there already")
    problems: list[str] = []
    with reporter.bar("shards", len(own), len(own) - len(missing)):
        for outcome in engine(PartJob(predictor, folder.address), missing) if missing else ():
            problems += [outcome] if isinstance(outcome, str) else []
            reporter.advance(1)
    finished = tuple(_finished(folder, shards, about.predictor))
    result = PartsResult(folder.address, len(shards), finished, len(missing) - len(problems))
    if problems:
        listed = "".join(f"\n  {problem}" for problem in problems[:_SHOWN])
        raise InputError(
            f"{pluralize(len(problems), 'shard')} of {len(shards):,} cannot be read; the others are done:{listed}\n"
            "Repair or remove them, and run the command again."
        )
    if result.complete:
        folder.write(MANIFEST, PartsManifest(**dict(about), parts=result.summaries))
        folder.remove_abandoned()
    return result


def _open(folder: PartFolder, about: PartsDescription, restart: bool) -> None:
    """Start a prediction in a folder, or go on with the same one."""
    folder.make()
    names = folder.sizes()
    foreign = [name for name in names if not name.startswith(("part-", "_", "."))]
    if foreign and DESCRIPTION not in names:
        raise RunError(f"{folder.address} has other files ({foreign[0]}): choose an empty folder with --out.")
    if DESCRIPTION in names and restart:
        folder.remove(sorted((name for name in names if name.startswith(("part-", "_"))), reverse=True))
    elif DESCRIPTION in names:
        if folder.read(PartsDescription, [DESCRIPTION]) != [about]:
            raise RunError(
                f"{folder.address} holds predictions of another run or source: choose another --out, or remove "
                "them with --restart."
            )
        return
    folder.write(DESCRIPTION, about)


def _finished(folder: PartFolder, shards: Sequence[InputShard], predictor: str) -> list[PartSummary]:
    """Return the summaries of the shards that are done: those of which the part is there, in its size."""
    sizes, expected = folder.sizes(), {shard.number: (shard.identity, predictor) for shard in shards}
    names = [name for name in map(summary_name, expected) if name in sizes]
    return [
        summary
        for summary in folder.read(PartSummary, names)
        if (summary.source, summary.predictor) == expected.get(summary.shard)
        and sizes.get(part_name(summary.shard)) == summary.bytes
    ]
