"""Mutations of Parquet: columns that are gone, renamed, of other types, with impossible cells; other metadata."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from benchmarks.fuzzing.base import Random, pick
from benchmarks.fuzzing.json_values import mutate_json


def mutate_table(random: Random, data: bytes) -> bytes:
    table = pq.read_table(io.BytesIO(data))
    metadata = dict(table.schema.metadata or {})
    at = int(random.integers(table.num_columns))
    name, column = table.column_names[at], table.column(at)
    kind = int(random.integers(9))
    if kind == 0:
        table = table.remove_column(at)
    elif kind == 1:
        names = table.column_names
        names[at] = pick(random, ["x", "", "a\0"])
        table = table.rename_columns(names)
    elif kind == 2:
        kinds = [pa.string(), pa.int64(), pa.float64(), pa.int8(), pa.bool_(), pa.binary(), pa.null()]
        kinds += [pa.large_string(), pa.list_(pa.int8()), pa.timestamp("s"), pa.decimal128(5)]
        kinds += [pa.dictionary(pa.int32(), pa.string())]
        wanted = pick(random, kinds)
        try:
            table = table.set_column(at, name, column.cast(wanted))
        except pa.ArrowException:
            table = table.set_column(at, name, pa.nulls(len(table), wanted))
    elif kind == 3:
        values = column.to_pylist()
        values[int(random.integers(len(values)))] = None
        table = table.set_column(at, name, pa.array(values, column.type))
    elif kind == 4:
        table = table.set_column(at, name, pa.array([_cell(random, column.type)] * len(table), column.type))
    elif kind == 5:
        table = table.append_column(pick(random, ["x", name]), column)
    elif kind == 6:
        rows = random.integers(0, max(len(table), 1), int(pick(random, [0, 1, 1000])))
        table = table.take(pa.array(rows))
    elif metadata:
        key = pick(random, sorted(metadata))
        metadata[key] = (
            mutate_json(random, metadata[key]) if random.random() < 0.8 else pick(random, [b"", b"\xff", b"[]"])
        )
    stream = io.BytesIO()
    pq.write_table(table.replace_schema_metadata(metadata), stream)
    return stream.getvalue()


def _cell(random: Random, kind: pa.DataType) -> Any:
    if pa.types.is_floating(kind):
        return pick(random, [float("nan"), float("inf"), -1.0, 2.0, 1e38])
    if pa.types.is_integer(kind):
        return pick(random, [-1, 0, 127, -128, 5])
    return pick(random, ["", "x", "a\0b", "../x", "\x1b[2J", "A" * 3000]) if pa.types.is_string(kind) else None
