"""``candidates.parquet``: what an audit found, a row for each candidate, for the review page and for anybody else."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from labelgap.audit.ranking import CandidateRanking
from labelgap.audit.top_candidates import class_ranks
from labelgap.core.errors import RunError
from labelgap.core.files import atomic_path, make_folder
from labelgap.labels import UNKNOWN, LabelTable

__all__ = ["Audit", "FILE", "FORMAT", "KINDS", "open_audit", "write_candidates"]

FILE: Final = "candidates.parquet"
FORMAT: Final = 1
KINDS: Final = ("missing", "wrong", "random")
_META: Final = b"labelgap"


class Audit:
    """The candidates of a file.

    Attributes:
        path: the file.
        about: what is written with them: runs, data, how many labels are unknown, the estimate, and so on.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            stored = (pq.read_schema(path).metadata or {})[_META]
            self.about: dict[str, Any] = json.loads(stored)
        except FileNotFoundError:
            raise RunError(f"{path} does not exist: `labelgap audit RUN` makes it.") from None
        except (KeyError, ValueError, pa.ArrowException, OSError) as error:
            raise RunError(f"{path} is no file of candidates ({error}). Audit the run again.") from None
        if self.about.get("format") != FORMAT:
            raise RunError(f"{path} is of format {self.about.get('format')}; this labelgap reads format {FORMAT}.")

    @cached_property
    def table(self) -> pa.Table:
        """All candidates: image, split, class, score, kind, observed, rank, class_rank."""
        return pq.read_table(self.path)

    def of_kind(self, kind: str) -> pa.Table:
        """Return the candidates of a kind, "missing", "wrong" or "random", in the order of their ranks."""
        return self.table.filter(pc.equal(self.table["kind"], kind)).sort_by("rank")

    @property
    def estimate(self) -> dict[str, Any] | None:
        """How many labels are missing, and on what assumption; None where too little is known to tell."""
        found: dict[str, Any] | None = self.about["estimate"]
        return found

    def __len__(self) -> int:
        return int(pq.read_metadata(self.path).num_rows)

    def __repr__(self) -> str:
        return f"Audit({str(self.path)!r}: {len(self):,} candidates)"


def open_audit(path: str | os.PathLike[str]) -> Audit:
    """Open the candidates of a run's folder, or a file of candidates."""
    given = Path(path)
    return Audit(given / FILE if given.is_dir() else given)


def write_candidates(
    path: Path, ranking: CandidateRanking, tables: Mapping[str, LabelTable], about: Mapping[str, Any]
) -> Audit:
    """Write what was found, whole or not at all.

    Args:
        path: the file; its folder is made when it is not there.
        ranking: what was found.
        tables: labels of the splits that were looked at, in the order in which rows are counted.
        about: what to write with them.
    """
    wrong, random, missing = ranking.wrong, ranking.random, ranking.missing
    unknown = [np.full(len(found.rows), UNKNOWN, dtype=np.int8) for found in (missing, random)]
    parts = [
        _columns("missing", missing.rows, missing.columns, ranking.scores, unknown[0], tables),
        _columns("wrong", wrong.rows, wrong.columns, wrong.scores, wrong.observed, tables),
        _columns("random", random.rows, random.columns, random.scores, unknown[1], tables),
    ]
    table = pa.concat_tables(parts).replace_schema_metadata({_META: json.dumps(dict(about), ensure_ascii=False)})
    make_folder(path.absolute().parent)
    with atomic_path(path) as temporary:
        pq.write_table(table, temporary)
    return Audit(path)


def _columns(
    kind: str,
    rows: NDArray[np.int64],
    columns: NDArray[np.integer[Any]],
    scores: NDArray[np.float32],
    observed: NDArray[np.int8],
    tables: Mapping[str, LabelTable],
) -> pa.Table:
    """Lay out the candidates of a kind, which come in the order of their ranks."""
    starts = np.cumsum([0, *map(len, tables.values())])
    split = np.searchsorted(starts, rows, side="right") - 1
    names = [table.images for table in tables.values()]
    images = [names[which][row] for which, row in zip(split.tolist(), (rows - starts[split]).tolist(), strict=True)]
    order = np.argsort(columns, kind="stable")
    within = np.empty(len(order), dtype=np.int32)
    within[order] = class_ranks(np.asarray(columns, dtype=np.int32)[order])
    return pa.table(
        {
            "image": pa.array(images, pa.string()),
            "split": _named(list(tables), split),
            "class": _named(next(iter(tables.values())).classes, columns),
            "score": pa.array(scores, pa.float32()),
            "kind": pa.array([kind] * len(rows), pa.string()),
            "observed": pa.array(observed, pa.int8()),
            "rank": pa.array(np.arange(1, len(rows) + 1, dtype=np.int32)),
            "class_rank": pa.array(within),
        }
    )


def _named(names: Sequence[str], numbers: NDArray[np.integer[Any]]) -> pa.Array:
    """Return names by their numbers."""
    return pa.array(list(names), pa.string()).take(pa.array(numbers, pa.int64()))
