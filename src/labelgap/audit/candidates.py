"""``candidates.parquet``: the result of an audit, one row per candidate, for the review page and other programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from labelgap.audit.ranking import CandidateList
from labelgap.audit.top_candidates import class_ranks
from labelgap.core.errors import RunError
from labelgap.core.files import atomic_path, make_folder
from labelgap.labels import LabelTable

__all__ = ["Audit", "FILE", "FORMAT", "KINDS", "read_metadata", "write_candidates"]

FILE: Final = "candidates.parquet"
FORMAT: Final = 1
KINDS: Final = ("missing", "wrong", "random")
COLUMNS: Final = ("image", "split", "class", "score", "kind", "observed", "rank", "class_rank")
_METADATA_KEY: Final = b"labelgap"


class Audit:
    """The candidates in a file.

    Attributes:
        path: the file.
        metadata: runs, data, how many labels are unknown, the estimate, and so on.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata = read_metadata(path)

    @cached_property
    def table(self) -> pa.Table:
        """All candidates: image, split, class, score, kind, observed, rank, class_rank."""
        return pq.read_table(self.path)

    def of_kind(self, kind: str) -> pa.Table:
        """Return the candidates of a kind, "missing", "wrong" or "random", in the order of their ranks."""
        return self.table.filter(pc.equal(self.table["kind"], kind)).sort_by("rank")

    @property
    def estimate(self) -> dict[str, Any] | None:
        """How many labels are missing, and under which assumption; None where too few labels are known."""
        estimate: dict[str, Any] | None = self.metadata["estimate"]
        return estimate

    def __len__(self) -> int:
        return int(pq.read_metadata(self.path).num_rows)

    def __repr__(self) -> str:
        return f"Audit({str(self.path)!r}: {len(self):,} candidates)"


def read_metadata(path: Path) -> dict[str, Any]:
    """Return the metadata of a file of candidates; ``RunError`` where it is missing, damaged or something else."""
    try:
        schema = pq.read_schema(path)
    except FileNotFoundError:
        raise RunError(
            f"{path.parent} has no {path.name} yet: `labelgap audit {path.parent}` looks for missing labels."
        ) from None
    except (pa.ArrowException, OSError) as error:
        raise RunError(f"{path} is damaged ({error}). Audit the run again.") from None
    missing = [name for name in COLUMNS if name not in schema.names]
    if missing:
        raise RunError(f"{path} has no column {missing[0]!r}: it holds no candidates. Audit the run again.")
    try:
        metadata = dict(json.loads((schema.metadata or {})[_METADATA_KEY]))
        version = metadata["format"]
    except (KeyError, TypeError, ValueError):
        raise RunError(f"{path} has no metadata of labelgap. Audit the run again.") from None
    if version != FORMAT:
        raise RunError(f"{path} is of format {version}; this version of labelgap reads format {FORMAT}.")
    return metadata


def write_candidates(
    path: Path, lists: Mapping[str, CandidateList], tables: Mapping[str, LabelTable], metadata: Mapping[str, Any]
) -> Audit:
    """Write candidates by kind, and metadata, atomically; ``tables`` are in the order in which rows are counted."""
    parts = [_table(kind, candidates, tables) for kind, candidates in lists.items()]
    schema_metadata = {_METADATA_KEY: json.dumps(dict(metadata), ensure_ascii=False)}
    make_folder(path.absolute().parent)
    with atomic_path(path) as temporary:
        pq.write_table(pa.concat_tables(parts).replace_schema_metadata(schema_metadata), temporary)
    return Audit(path)


def _table(kind: str, candidates: CandidateList, tables: Mapping[str, LabelTable]) -> pa.Table:
    """Return the rows of the candidates of a kind."""
    rows, columns = candidates.rows, candidates.columns
    starts = np.cumsum([0, *map(len, tables.values())])
    split = np.searchsorted(starts, rows, side="right") - 1
    names = [table.images for table in tables.values()]
    images = [names[which][row] for which, row in zip(split.tolist(), (rows - starts[split]).tolist(), strict=True)]
    order = np.argsort(columns, kind="stable")
    class_rank = np.empty(len(order), dtype=np.int32)
    class_rank[order] = class_ranks(np.asarray(columns, dtype=np.int32)[order])
    return pa.table(
        {
            "image": pa.array(images, pa.string()),
            "split": _names(list(tables), split),
            "class": _names(next(iter(tables.values())).classes, columns),
            "score": pa.array(candidates.scores, pa.float32()),
            "kind": pa.array([kind] * len(rows), pa.string()),
            "observed": pa.array(candidates.observed, pa.int8()),
            "rank": pa.array(np.arange(1, len(rows) + 1, dtype=np.int32)),
            "class_rank": pa.array(class_rank),
        }
    )


def _names(names: Sequence[str], numbers: NDArray[np.integer[Any]]) -> pa.Array:
    return pa.array(list(names), pa.string()).take(pa.array(numbers, pa.int64()))
