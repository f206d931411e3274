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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from labelgap.core.errors import InputError
from labelgap.core.text import pluralize
from labelgap.data.parts import PartFolder, PartSummary
from labelgap.inference.predictor import Predictor
from labelgap.inference.sources import LABELS, InputShard, list_shards, read_shard, source_digest
from labelgap.training.progress import Reporter

_SHOWN: Final = 5
_READ_AT_ONCE: Final = 1024  # images of a shard

Outcome = PartSummary | str  # what became of a shard; a text says why it cannot be read
Engine = Callable[["PartJob", Sequence[InputShard]], Iterable[Outcome]]  # what computes shards, in any order: an engine


@dataclass(frozen=True)
class PartJob:
    """What is computed for every shard, and where it is written; it can be pickled."""

    predictor: Predictor
    out: str

    def compute(self, shard: InputShard) -> Outcome:
        """Write the part of a shard, and then its summary."""
        predictor = self.predictor
        tables = (part_table(batch, predictor(batch), predictor) for batch in read_shard(shard, _READ_AT_ONCE))
        try:
            return PartFolder(self.out).write_part(shard.number, shard.identity, predictor.digest, tables)
        except InputError as error:
            return str(error)


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
    own: int  # shards that this command was asked for
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
    """Predict a source (``inference.sources``) in parts; what is there of the same prediction is not computed again.

    The part (0, 64) is the first of 64 parts of the shards: other machines compute the others into the same folder or
    URL.
    """
    number, parts = part
    if not 0 <= number < parts:
        raise InputError(f"part {number}/{parts}: parts are counted from 0, so that the last of 64 is 63/64.")
    shards, folder, reporter = list_shards(source), PartFolder(os.fspath(out)), Reporter(quiet)
    about = predictor.parts_description(source_digest(shards), len(shards))
    folder.start(about, restart=restart, part=part)
    own, sources = shards[number::parts], {shard.number: shard.identity for shard in shards}
    done = {each.shard for each in folder.finished(sources, about.predictor)}
    missing = [shard for shard in own if shard.number not in done]
    if len(own) > len(missing):
        reporter.log(f"{len(own) - len(missing):,} of {pluralize(len(own), 'shard')} are there already")
    problems: list[str] = []
    with reporter.bar("shards", len(own), len(own) - len(missing)):
        for outcome in engine(PartJob(predictor, folder.address), missing) if missing else ():
            problems += [outcome] if isinstance(outcome, str) else []
            reporter.advance(1)
    finished = tuple(folder.finished(sources, about.predictor))
    result = PartsResult(folder.address, len(shards), len(own), finished, len(missing) - len(problems))
    if problems:
        listed = "".join(f"\n  {problem}" for problem in problems[:_SHOWN])
        raise InputError(
            f"{pluralize(len(problems), 'shard')} of {len(shards):,} cannot be read; the others are done:{listed}\n"
            "Repair or remove them, and run the command again."
        )
    if result.complete:
        folder.finish(about, result.summaries)
    return result
