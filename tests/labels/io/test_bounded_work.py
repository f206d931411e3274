"""Tables made to be slow: the work grows with the size of the file, counted and not timed."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import labelgap
from labelgap.core.errors import InputError
from labelgap.labels import LabelTable
from labelgap.labels.io.classes import implied_labels, resolve_aliases
from labelgap.labels.io.formats import read_csv
from labelgap.labels.io.table_file import TableOptions

PACKAGE = str(Path(labelgap.__file__).parent)


class Name(str):
    """A name that counts how often it is compared."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def work(act: Callable[[], object]) -> int:
    """Count the lines of labelgap that are executed, and the comparisons of names."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        count += event == "line"
        return trace

    Name.compared = 0
    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    except InputError:
        pass
    finally:
        sys.settrace(previous)
    return count + Name.compared


def is_linear(act: Callable[[int], Callable[[], object]], size: int) -> bool:
    """Whether twice the size is at most about twice the work."""
    return work(act(2 * size)) < 2.3 * work(act(size))


def chain(length: int) -> list[tuple[str, str]]:
    return [(Name(f"c{number}"), Name(f"c{number + 1}")) for number in range(length)]


def test_a_chain_of_aliases_is_followed_once() -> None:
    assert is_linear(lambda size: lambda: resolve_aliases(chain(size), "aliases"), 200)
    assert is_linear(lambda size: lambda: resolve_aliases(chain(size)[::-1], "aliases"), 200)
    names = resolve_aliases(chain(20_000), "aliases")
    assert len(names) == 20_000 and set(names.values()) == {"c20000"}


def test_a_chain_of_parents_is_followed_once() -> None:
    table = LabelTable.from_lists([["c0"], ["c1"]])
    assert is_linear(lambda size: lambda: implied_labels(table, chain(size)), 200)
    peaks = []
    for size in (400, 800):
        pairs = chain(size)
        tracemalloc.start()
        implied_labels(table, pairs)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 3 * peaks[0]
    revisions, _, unknown = implied_labels(table, chain(5_000))
    assert [(each.image, each.class_name) for each in revisions] == [("0", "c1")] and len(unknown) == 4_999


def test_parents_of_a_lattice_are_those_of_every_path() -> None:
    random = np.random.default_rng(0)
    names = [f"n{number}" for number in range(40)]
    pairs = [(names[a], names[b]) for a, b in random.integers(0, 40, (90, 2)).tolist() if a < b]
    table = LabelTable.from_dense(random.choice([1, 0, -1], (6, 25), p=[0.1, 0.1, 0.8]), names[:25])
    above: dict[str, set[str]] = {name: set() for name in names}
    for _ in names:
        for child, parent in pairs:
            above[child] |= {parent, *above[parent]}
    dense = table.to_dense()
    expected = {
        (row, parent)
        for row, child in np.argwhere(dense == 1).tolist()
        for parent in above[names[child]]
        if parent in table.classes
    }
    revisions, contradicted, unknown = implied_labels(table, pairs)
    found = {(int(each.image), each.class_name) for each in revisions}
    assert found == {(row, name) for row, name in expected if dense[row, table.classes.index(name)] == -1}
    assert contradicted == sum(dense[row, table.classes.index(name)] == 0 for row, name in expected)
    assert unknown == tuple(sorted({name for pair in pairs for name in pair} - {*table.classes}))


def test_a_hierarchy_that_implies_a_square_of_labels_is_refused() -> None:
    table = LabelTable.from_lists([[f"c{number}"] for number in range(3_000)])
    with pytest.raises(InputError, match="parents: "):
        implied_labels(table, chain(3_000))


@pytest.mark.parametrize(
    "header",
    [
        lambda size: ",".join(f"c{number}" for number in range(size)),
        lambda size: ",".join(["c"] * size),
        lambda size: "present," + ",".join(f"c{number}" for number in range(size)),
        lambda size: "," * size,
    ],
    ids=["many", "the same", "beside lists", "unnamed"],
)
def test_a_header_of_many_columns(tmp_path: Path, header: Callable[[int], str]) -> None:
    def read(size: int) -> Callable[[], object]:
        path = tmp_path / f"{size}.csv"
        path.write_text(f"image,{header(size)}\na.jpg{',1' * size}\n")
        return lambda: read_csv(path)

    assert is_linear(read, 200)


def test_unlisted_names_that_would_fill_the_memory_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("image,present\n" + "".join(f"{number}.jpg,{number}\n" for number in range(12_000)))
    with pytest.raises(InputError, match="12,000 images and 12,000 classes"):
        read_csv(path, TableOptions(unlisted="absent"))


@pytest.mark.parametrize("padding", [0, 40_000])
def test_a_long_name_of_many_images_is_refused_before_it_is_written_out(tmp_path: Path, padding: int) -> None:
    path = tmp_path / "a.parquet"
    names = pa.array(["a" * 4_000_000, *map(str, range(padding))])
    images = pa.DictionaryArray.from_arrays(pa.array(np.zeros(40_000, np.int32)), names)  # 160 GB in full
    lists = pa.ListArray.from_arrays(pa.array(np.arange(40_001, dtype=np.int32)), pa.array(["b"] * 40_000))
    pq.write_table(pa.table({"image": images, "present": lists}), path)
    with pytest.raises(InputError, match="is listed twice"):
        LabelTable.from_parquet(path)
