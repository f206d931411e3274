"""Revisions: values that a model or a person gives to labels, kept apart from what was observed.

Precedence: a person's decision, then the observation, then a model's revision. A model never overrules either.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from labelgap.core.errors import InputError
from labelgap.core.files import atomic_path
from labelgap.core.stored import column_values, read_table, reading
from labelgap.core.text import quote_formulas, truncate_text, unquote_formula
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN, as_codes
from labelgap.labels.sparse import NamedTable, as_indices

HUMAN_SOURCES: Final = frozenset({"review"})
_REMEDY: Final = "Restore it from a copy. Without the file a finished run can be used as before."

_SCHEMA = pa.schema(
    [
        ("image", pa.string()),
        ("class", pa.string()),
        ("value", pa.int8()),
        ("target", pa.float32()),
        ("source", pa.string()),
        ("epoch", pa.int32()),
        ("time", pa.timestamp("us", tz="UTC")),
        ("author", pa.string()),
    ]
)
_NO_REVISIONS: Final = pa.Table.from_batches([], _SCHEMA)


@dataclass(frozen=True)
class Revision:
    """One revised label.

    Attributes:
        image: name of the image.
        class_name: name of the class.
        value: PRESENT, ABSENT or UNKNOWN (a person is unsure); for a soft target the nearer of the two states.
        target: a soft target from 0 to 1, stored in single precision, or None for a hard value.
        source: the method, or "review" for a person.
        epoch: when a model made it, counted from 1.
        time: when a person made it, with its time zone.
        author: name of the person.
    """

    image: str
    class_name: str
    value: int
    source: str
    target: float | None = None
    epoch: int | None = None
    time: datetime | None = None
    author: str | None = None


class ResolvedRevisions(NamedTuple):
    """The value of every revised label, rows and classes ascending, and whether a person decided it: each ``(P,)``."""

    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    values: NDArray[np.int8]
    by_person: NDArray[np.bool_]


class Revisions(Sequence[Revision]):
    """A sequence of revisions in the order they were made, stored in columns.

    Example:
        >>> revisions = Revisions([Revision("a.jpg", "dog", PRESENT, "ll-cp", epoch=2)])
        >>> len(revisions), revisions[0].class_name
        (1, 'dog')
    """

    def __init__(self, revisions: Iterable[Revision] = ()) -> None:
        rows = [_row(revision) for revision in revisions]
        self._table = _checked(pa.Table.from_pylist(rows, schema=_SCHEMA)) if rows else _NO_REVISIONS

    @classmethod
    def from_table(cls, table: pa.Table) -> Revisions:
        """Wrap an Arrow table with the columns of ``to_table``."""
        missing = [name for name in _SCHEMA.names if name not in table.column_names]
        if missing:
            raise InputError(f"these are not revisions: the column {missing[0]!r} is missing.")
        try:
            return cls._of(_checked(table.select(_SCHEMA.names).cast(_SCHEMA)))
        except pa.ArrowException as error:
            raise InputError(f"these are not revisions: {error}") from None

    @classmethod
    def _of(cls, table: pa.Table) -> Revisions:
        revisions = cls.__new__(cls)
        revisions._table = table
        return revisions

    @classmethod
    def from_arrays(
        cls,
        table: NamedTable,
        rows: NDArray[np.int64],
        columns: NDArray[np.int64],
        *,
        values: NDArray[np.int8] | int | None = None,
        targets: NDArray[np.float32] | None = None,
        source: str,
        epoch: int | NDArray[np.int32] | None,
    ) -> Revisions:
        """Create revisions from row and class numbers of a table, without a Python loop.

        ``values`` and ``epoch`` are one number or ``(R,)``; without values a label is PRESENT, or the state nearer to
        its soft target.
        """
        rows = as_indices(rows, "row", len(table.images))
        columns = as_indices(columns, "class number", len(table.classes))
        if len(rows) != len(columns):
            raise InputError(f"{len(rows)} rows and {len(columns)} class numbers: one of each for a revision.")
        if values is None:
            values = PRESENT if targets is None else np.where(np.asarray(targets) < 0.5, ABSENT, PRESENT)
        count = len(rows)
        data = {
            "image": pa.array(table.images, pa.string()).take(pa.array(rows)),
            "class": pa.array(table.classes, pa.string()).take(pa.array(columns)),
            "value": pa.array(np.broadcast_to(as_codes(values, what="values"), count)),
            "target": pa.nulls(count) if targets is None else pa.array(np.asarray(targets, dtype=np.float32)),
            "source": pa.repeat(source, count),
            "epoch": pa.nulls(count) if epoch is None else pa.array(np.broadcast_to(np.int32(epoch), count)),
            "time": pa.nulls(count),
            "author": pa.nulls(count),
        }
        return cls.from_table(pa.table(data))

    def __len__(self) -> int:
        return int(self._table.num_rows)

    @overload
    def __getitem__(self, index: int) -> Revision: ...

    @overload
    def __getitem__(self, index: slice) -> Revisions: ...

    def __getitem__(self, index: int | slice) -> Revision | Revisions:
        if isinstance(index, slice):
            return self._of(self._table.take(np.arange(len(self))[index]))
        (only,) = self._table.slice(range(len(self))[index], 1).to_pylist()
        return _revision(only)

    def __iter__(self) -> Iterator[Revision]:
        for batch in self._table.to_batches():
            yield from map(_revision, batch.to_pylist())

    def __add__(self, other: Revisions) -> Revisions:
        return self._of(pa.concat_tables([self._table, other._table]))

    def __eq__(self, other: object) -> bool:
        return bool(self._table.equals(other._table)) if isinstance(other, Revisions) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        sources = sorted(set(self._table.column("source").to_pylist()))
        return f"Revisions({len(self):,}{' by ' + ', '.join(sources) if sources else ''})"

    def to_table(self) -> pa.Table:
        """Return the columns: image, class, value, target, source, epoch, time, author."""
        return self._table

    def indices(self, table: NamedTable) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the row and the class number of every revision in a table; an unknown name is an error."""
        rows = _numbers(self._table["image"], "image", table.images)
        return rows, _numbers(self._table["class"], "class", table.classes)

    def resolve(self, table: NamedTable, sources: Iterable[str] | None = None) -> ResolvedRevisions:
        """Return the final value of every revised label: a person's last decision, else a model's last revision.

        Soft targets are not labels and are skipped; only ``sources`` count where they are given.
        """
        hard = self._table.filter(self._table["target"].is_null())
        if sources is not None:
            hard = hard.filter(pc.is_in(hard["source"], _source_array(sources)))
        by_person = column_values(pc.is_in(hard["source"], _source_array(HUMAN_SOURCES)))
        row, column = self._of(hard).indices(table)
        order = np.argsort(by_person, kind="stable")[::-1]
        places, chosen = np.unique((row * len(table.classes) + column)[order], return_index=True)
        rows, columns = np.divmod(places, max(len(table.classes), 1))
        values = column_values(hard["value"])
        return ResolvedRevisions(rows, columns, values[order][chosen], by_person[order][chosen])

    def until(self, epoch: int) -> Revisions:
        """Return the revisions that models made up to and including ``epoch``."""
        return self._of(self._table.filter(pc.less_equal(self._table["epoch"], epoch)))

    def to_parquet(self, path: str | Path) -> None:
        """Write them atomically."""
        with atomic_path(path) as temporary:
            pq.write_table(self._table, temporary, write_page_checksum=True)

    @classmethod
    def from_parquet(cls, path: str | Path) -> Revisions:
        """Read what ``to_parquet`` wrote; a ``RunError`` says what is wrong with another file."""
        table = read_table(Path(path), dict(zip(_SCHEMA.names, _SCHEMA.types, strict=True)), remedy=_REMEDY)
        with reading(Path(path), _REMEDY):
            return cls.from_table(table)


def _numbers(column: pa.ChunkedArray, kind: str, names: Sequence[str]) -> NDArray[np.int64]:
    numbers = pc.index_in(column, pa.array(names, pa.string()))
    if numbers.null_count:
        name = column.filter(numbers.is_null())[0].as_py()
        raise InputError(f"a revision names the {kind} {name!r}, which is not in the table.")
    return column_values(numbers).astype(np.int64)


def _source_array(sources: Iterable[str]) -> pa.Array:
    if isinstance(sources, str):
        raise InputError(f"the sources come as a list of names; {sources!r} is a single text.")
    return pa.array(list(sources), pa.string())


def _checked(table: pa.Table) -> pa.Table:
    for name in ("image", "class", "value", "source"):
        if table[name].null_count:
            raise InputError(f"these are not revisions: the column {name!r} has an empty cell.")
    values = as_codes(column_values(table["value"]), what="the value of a revision")
    targets, soft = column_values(table["target"], np.nan), column_values(table["target"].is_valid())
    outside = soft & ~((targets >= 0) & (targets <= 1))
    if outside.any():
        raise InputError(f"a soft target of {targets[outside][0]}: it must lie between 0 and 1.")
    if (soft & (values == UNKNOWN)).any():
        raise InputError("a revision with a soft target says present or absent, not unknown.")
    return table


def _row(revision: Revision) -> dict[str, Any]:
    as_codes(revision.value, what="the value of a revision")
    if revision.time is not None and revision.time.tzinfo is None:
        raise InputError("the time of a revision needs a time zone: datetime.now(UTC).")
    row = {name: getattr(revision, name) for name in _SCHEMA.names if name != "class"}
    return {**row, "class": revision.class_name}


def _revision(row: dict[str, Any]) -> Revision:
    return Revision(class_name=row.pop("class"), **row)


_COLUMNS: Final = ("image", "split", "class", "before", "after", "source", "author", "time", "epoch", "run")
_STATES: Final = {PRESENT: "present", ABSENT: "absent", UNKNOWN: "unknown"}
_CODES: Final = {text: code for code, text in _STATES.items()}


@dataclass(frozen=True)
class ProvenanceEntry:
    """A label that was decided by a person, or changed by a model: its revision, and the observed code ``before``."""

    split: str
    revision: Revision
    before: int
    run: str = ""

    @property
    def by_person(self) -> bool:
        """Whether a person decided the label."""
        return self.revision.source in HUMAN_SOURCES


def provenance_path(path: Path) -> Path:
    """Return the path of the list that belongs to a table."""
    return path.with_name(f"{path.stem}.provenance.csv")


def write_provenance(path: Path, entries: Iterable[ProvenanceEntry]) -> None:
    """Write ``NAME.provenance.csv``, who decided which labels of a table, beside it; an audit reads it."""
    with atomic_path(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_COLUMNS)
        for entry in entries:
            revision = entry.revision
            time = "" if revision.time is None else revision.time.isoformat(timespec="seconds")
            epoch = "" if revision.epoch is None else revision.epoch
            label = (revision.image, entry.split, revision.class_name, _STATES[entry.before], _STATES[revision.value])
            origin = (revision.source, revision.author or "", time, epoch, entry.run)
            writer.writerow(quote_formulas([*label, *origin]))


def read_provenance(path: Path) -> list[ProvenanceEntry]:
    """Return the entries of a list; none where the file does not exist, ``InputError`` for another file."""
    if not path.is_file():
        return []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file, restval="")
            return [_entry(row, path, reader.line_num) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise _unreadable(path, str(error)) from None


def _entry(row: dict[str, str], path: Path, line: int) -> ProvenanceEntry:
    cells = {name: unquote_formula(row.get(name) or "") for name in _COLUMNS}
    try:
        time = datetime.fromisoformat(cells["time"]) if cells["time"] else None
        epoch = int(cells["epoch"]) if cells["epoch"] else None
        value, before = _CODES[cells["after"]], _CODES[cells["before"]]
    except (KeyError, ValueError) as error:
        raise _unreadable(path, f"line {line}: {truncate_text(str(error))}") from None
    author = cells["author"] or None
    revision = Revision(cells["image"], cells["class"], value, cells["source"], epoch=epoch, time=time, author=author)
    return ProvenanceEntry(cells["split"], revision, before, cells["run"])


def _unreadable(path: Path, reason: str) -> InputError:
    return InputError(
        f"{path} is not a list that `labelgap apply` wrote ({reason}). Restore it, or move it away: without it nothing "
        "is known of which labels people decided."
    )
