from __future__ import annotations

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


def test_a_person_overrules_the_observation_and_the_model() -> None:
    assert revised(person("a", "cat", ABSENT), model("a", "cat", PRESENT, 9)) == [[0, 0, -1], *OBSERVED[1:]]
    assert revised(model("b", "cat", PRESENT), person("b", "cat", ABSENT)) == [OBSERVED[0], [0, -1, -1], OBSERVED[2]]
    assert revised(person("b", "cat", ABSENT), model("b", "cat", PRESENT)) == [OBSERVED[0], [0, -1, -1], OBSERVED[2]]


def test_only_the_sources_asked_for_are_applied() -> None:
    revisions = person("a", "cat", ABSENT), model("b", "cat", PRESENT), Revision("b", "dog", ABSENT, "apl", epoch=1)
    assert revised(*revisions, sources=["review"]) == [[0, 0, -1], *OBSERVED[1:]]
    assert revised(*revisions, sources=["ll-cp", "apl"]) == [OBSERVED[0], [1, 0, -1], OBSERVED[2]]
    assert revised(*revisions, sources=[]) == OBSERVED
    assert revised(Revision("nowhere", "cat", PRESENT, "apl", epoch=1), sources=["review"]) == OBSERVED
    with pytest.raises(InputError, match="the sources come as a list of names; 'review' is a single text"):
        table().revised(Revisions(revisions), "review")


def test_a_revision_of_what_is_not_in_the_table_is_refused() -> None:
    with pytest.raises(InputError, match="a revision names the class 'cow', which is not in the table"):
        revised(model("a", "cow", PRESENT))
    with pytest.raises(InputError, match=r"a revision names the image 'z', which is not in the table"):
        revised(model("z", "cat", PRESENT))


@settings(max_examples=25)
@given(
    st.lists(st.sampled_from([PRESENT, ABSENT, UNKNOWN]), min_size=12, max_size=12),
    st.lists(
        st.tuples(
            st.integers(0, 3),
            st.integers(0, 2),
            st.sampled_from([1, 0, -1]),
            st.booleans(),
            st.sampled_from([None, 0.5]),
        ),
        max_size=25,
    ),
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


def test_revisions_are_a_sequence_of_what_was_put_in() -> None:
    revisions = several()
    assert len(revisions) == 4
    assert revisions[0] == person("a", "cat", UNKNOWN)
    assert revisions[-1] == revisions[3] == person("c", "dog", ABSENT)
    assert list(revisions) == [revisions[number] for number in range(4)]
    assert revisions[2].target == 0.25
    assert model("a", "owl", PRESENT) in revisions
    assert revisions[np.int64(1)].epoch == 1  # type: ignore[call-overload]
    for number in (4, -5):
        with pytest.raises(IndexError, match="out of range"):
            revisions[number]


@pytest.mark.parametrize("part", [slice(1, 3), slice(None, None, -1), slice(3, 1), slice(-2, None), slice(0, 9, 2)])
def test_a_slice_of_revisions_is_revisions(part: slice) -> None:
    assert isinstance(several()[part], Revisions)
    assert list(several()[part]) == list(several())[part]


def test_revisions_are_added_in_order_and_compared_by_what_they_hold() -> None:
    revisions = several()
    assert revisions[:1] + revisions[1:] == revisions
    assert revisions + Revisions() == revisions == Revisions(list(revisions))
    assert revisions != revisions[::-1]
    assert revisions != list(revisions)
    with pytest.raises(TypeError, match="unhashable"):
        hash(revisions)


def test_revisions_until_an_epoch_are_those_of_models_up_to_it() -> None:
    assert list(several().until(1)) == [model("a", "owl", PRESENT)]
    assert [revision.epoch for revision in several().until(2)] == [1, 2]
    assert len(several().until(0)) == 0


def test_revisions_come_back_from_a_file(tmp_path: Path) -> None:
    for revisions in (several(), Revisions()):
        revisions.to_parquet(tmp_path / "revisions.parquet")
        assert Revisions.from_parquet(tmp_path / "revisions.parquet") == revisions
    assert pq.read_schema(tmp_path / "revisions.parquet").names == [
        *("image", "class", "value", "target", "source", "epoch", "time", "author")
    ]


def test_a_time_is_kept_as_the_same_moment_and_needs_a_zone() -> None:
    there = datetime(2024, 5, 1, 14, tzinfo=timezone(timedelta(hours=2)))
    (revision,) = Revisions([Revision("a", "cat", PRESENT, "review", time=there)])
    assert revision.time == NOON
    with pytest.raises(InputError, match="needs a time zone"):
        Revisions([Revision("a", "cat", PRESENT, "review", time=datetime(2024, 5, 1))])


@pytest.mark.parametrize("value", [2, -2, None, "present"])
def test_a_value_that_is_no_state_is_refused(value: Any) -> None:
    with pytest.raises(InputError, match="the value of a revision"):
        Revisions([Revision("a", "cat", value, "review")])
    with pytest.raises(InputError):
        Revisions([model("a", "cat", UNKNOWN, target=0.5)])


@pytest.mark.parametrize("target", [-0.1, 1.1, float("nan")])
def test_a_target_outside_of_zero_and_one_is_refused(target: float) -> None:
    with pytest.raises(InputError, match=r"a soft target of"):
        Revisions([model("a", "cat", PRESENT, target=target)])
    with pytest.raises(InputError, match=r"a soft target of"):
        Revisions.from_arrays(
            table(), np.array([0]), np.array([0]), targets=np.array([target], np.float32), source="apl", epoch=1
        )


def test_models_make_revisions_from_arrays() -> None:
    rows, columns = np.array([1, 0]), np.array([2, 0])
    revisions = Revisions.from_arrays(table(), rows, columns, source="ll-cp", epoch=3)
    assert list(revisions) == [model("b", "owl", PRESENT, 3), model("a", "cat", PRESENT, 3)]
    revisions = Revisions.from_arrays(
        table(), rows, columns, values=np.array([0, 1], np.int8), source="apl", epoch=np.array([1, 2], np.int32)
    )
    assert [(each.value, each.epoch) for each in revisions] == [(ABSENT, 1), (PRESENT, 2)]
    assert Revisions.from_arrays(table(), rows[:0], columns[:0], source="apl", epoch=1) == Revisions()


@pytest.mark.parametrize(
    ("rows", "columns", "values", "message"),
    [
        ([3], [0], 1, "row 3 is outside the table"),
        ([-1], [0], 1, "row -1 is outside"),
        ([0], [3], 1, "class number 3 is outside"),
        ([0], [0], 5, "values holds 5"),
        ([0, 1], [0], 1, "2 rows and 1 class numbers"),
    ],
)
def test_arrays_that_do_not_fit_the_table_are_refused(rows: Any, columns: Any, values: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Revisions.from_arrays(table(), np.array(rows), np.array(columns), values=values, source="apl", epoch=1)


def test_columns_that_no_revision_has_are_refused(tmp_path: Path) -> None:
    good = several().to_table()
    assert Revisions.from_table(good.append_column("note", pa.nulls(4))) == several()
    with pytest.raises(InputError, match="these are not revisions: the column 'author' is missing"):
        Revisions.from_table(good.drop_columns(["author"]))
    with pytest.raises(InputError, match="these are not revisions: the column 'image' has an empty cell"):
        Revisions.from_table(good.set_column(0, "image", pa.nulls(4, pa.string())))
    for value in (7, 300):
        with pytest.raises(InputError, match=r"the value of a revision|these are not revisions"):
            Revisions.from_table(good.set_column(2, "value", pa.array([value] * 4)))
    with pytest.raises(RunError, match="does not exist"):
        Revisions.from_parquet(tmp_path / "revisions.parquet")
    (tmp_path / "revisions.parquet").write_text("nothing")
    with pytest.raises(RunError, match="is damaged"):
        Revisions.from_parquet(tmp_path / "revisions.parquet")
