from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labelgap.core.errors import InputError, RunError
from labelgap.labels import ABSENT, PRESENT, UNKNOWN, LabelTable, Revision, Revisions

CODES = (PRESENT, ABSENT, UNKNOWN)
NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)


def table() -> LabelTable:
    """Image a: cat present, dog absent, owl unknown; image b: all unknown; image c: all known."""
    return LabelTable.from_dense([[1, 0, -1], [-1, -1, -1], [0, 1, 0]], ["cat", "dog", "owl"], ["a", "b", "c"])


def person(image: str, name: str, value: int, **more: Any) -> Revision:
    return Revision(image, name, value, "review", time=NOON, author="Ada", **more)


def model(image: str, name: str, value: int, epoch: int = 1, **more: Any) -> Revision:
    return Revision(image, name, value, "ll-cp", epoch=epoch, **more)


def revised(*revisions: Revision, sources: list[str] | None = None) -> list[list[int]]:
    return table().revised(Revisions(revisions), sources).to_dense().tolist()  # type: ignore[no-any-return]


OBSERVED = [[1, 0, -1], [-1, -1, -1], [0, 1, 0]]


def test_only_the_sources_asked_for_are_applied() -> None:
    revisions = person("a", "cat", ABSENT), model("b", "cat", PRESENT), Revision("b", "dog", ABSENT, "apl", epoch=1)
    assert revised(*revisions, sources=["review"]) == [[0, 0, -1], *OBSERVED[1:]]
    assert revised(*revisions, sources=["ll-cp", "apl"]) == [OBSERVED[0], [1, 0, -1], OBSERVED[2]]
    assert revised(*revisions, sources=[]) == OBSERVED
    assert revised(Revision("nowhere", "cat", PRESENT, "apl", epoch=1), sources=["review"]) == OBSERVED


@settings(max_examples=25)
@given(
    st.lists(st.sampled_from(CODES), min_size=12, max_size=12),
    st.lists(st.tuples(*map(st.sampled_from, (range(4), range(3), CODES, (True, False), (None, 0.5)))), max_size=25),
)
def test_any_revisions_give_what_a_dictionary_of_labels_gives(flat: list[int], drawn: list[Any]) -> None:
    dense = np.array(flat, dtype=np.int8).reshape(4, 3)
    observed = LabelTable.from_dense(dense)
    revisions: list[Revision] = []
    by_model: dict[tuple[int, ...], int] = {}
    by_person: dict[tuple[int, ...], int] = {}
    for row, column, value, is_person, target in drawn:
        target = None if value == UNKNOWN else target
        source = "review" if is_person else "apl"
        revisions.append(Revision(str(row), str(column), value, source, target, epoch=1))
        if target is None:
            (by_person if is_person else by_model)[row, column] = value
    seen = {place: int(value) for place, value in np.ndenumerate(dense) if value != UNKNOWN}
    expected = np.full_like(dense, UNKNOWN)
    for place, value in {**by_model, **seen, **by_person}.items():
        expected[place] = value
    found = observed.revised(Revisions(revisions))
    assert (found.to_dense() == expected).all()
    assert found == LabelTable.from_dense(expected)


def several() -> Revisions:
    soft = model("b", "owl", ABSENT, 2, target=0.25)
    return Revisions([person("a", "cat", UNKNOWN), model("a", "owl", PRESENT), soft, person("c", "dog", ABSENT)])


def test_revisions_are_added_in_order_and_compared_by_what_they_hold() -> None:
    revisions = several()
    for part in (slice(1, 3), slice(None, None, -1), slice(3, 1), slice(-2, None), slice(0, 9, 2)):
        assert isinstance(revisions[part], Revisions) and list(revisions[part]) == list(revisions)[part]
    assert revisions[2].target == 0.25 and revisions[-1] == person("c", "dog", ABSENT)
    assert [[each.epoch for each in revisions.until(epoch)] for epoch in range(3)] == [[], [1], [1, 2]]
    assert revisions[:1] + revisions[1:] == revisions
    assert revisions + Revisions() == revisions == Revisions(list(revisions))
    assert revisions != revisions[::-1]
    assert revisions != list(revisions)
    with pytest.raises(TypeError, match="unhashable"):
        hash(revisions)


def test_revisions_come_back_from_a_file_with_the_same_moments(tmp_path: Path) -> None:
    for revisions in (several(), Revisions()):
        revisions.to_parquet(tmp_path / "revisions.parquet")
        assert Revisions.from_parquet(tmp_path / "revisions.parquet") == revisions
    assert pq.read_schema(tmp_path / "revisions.parquet").names == [
        *("image", "class", "value", "target", "source", "epoch", "time", "author")
    ]
    there = datetime(2024, 5, 1, 14, tzinfo=timezone(timedelta(hours=2)))
    (revision,) = Revisions([Revision("a", "cat", PRESENT, "review", time=there)])
    assert revision.time == NOON
    with pytest.raises(InputError, match="needs a time zone"):
        Revisions([Revision("a", "cat", PRESENT, "review", time=datetime(2024, 5, 1))])


def from_arrays(rows: Any, columns: Any, values: Any = 1, **more: Any) -> Revisions:
    return Revisions.from_arrays(
        table(), np.array(rows), np.array(columns), values=values, source="apl", epoch=1, **more
    )


@pytest.mark.parametrize(
    ("make", "named"),
    [
        *((lambda value=value: Revisions([person("a", "cat", value)]), "value") for value in (2, -2, None, "present")),
        (lambda: Revisions([model("a", "cat", UNKNOWN, target=0.5)]), "target|value"),
        *((lambda x=x: Revisions([model("a", "cat", PRESENT, target=x)]), "target") for x in (-0.1, 1.1, math.nan)),
        (lambda: from_arrays([0], [0], targets=np.array([1.1], np.float32)), "target"),
        (lambda: from_arrays([3], [0]), "row 3"),
        (lambda: from_arrays([-1], [0]), "row -1"),
        (lambda: from_arrays([0], [3]), "class number 3"),
        (lambda: from_arrays([0], [0], 5), "values holds 5"),
        (lambda: from_arrays([0, 1], [0]), "2 rows and 1 class numbers"),
        (lambda: revised(model("a", "cow", PRESENT)), "'cow'"),
        (lambda: revised(model("z", "cat", PRESENT)), "'z'"),
        (lambda: table().revised(several(), "review"), "'review'"),
    ],
)
def test_what_is_no_revision_of_the_table_is_refused(make: Callable[[], object], named: str) -> None:
    with pytest.raises(InputError, match=named):
        make()


def test_columns_that_no_revision_has_are_refused(tmp_path: Path) -> None:
    good = several().to_table()
    assert Revisions.from_table(good.append_column("note", pa.nulls(4))) == several()
    with pytest.raises(InputError, match="'author'"):
        Revisions.from_table(good.drop_columns(["author"]))
    with pytest.raises(InputError, match="'image'"):
        Revisions.from_table(good.set_column(0, "image", pa.nulls(4, pa.string())))
    for value in (7, 300):
        with pytest.raises(InputError):
            Revisions.from_table(good.set_column(2, "value", pa.array([value] * 4)))
    with pytest.raises(RunError, match="does not exist"):
        Revisions.from_parquet(tmp_path / "revisions.parquet")
    (tmp_path / "revisions.parquet").write_text("nothing")
    with pytest.raises(RunError, match="is damaged"):
        Revisions.from_parquet(tmp_path / "revisions.parquet")
