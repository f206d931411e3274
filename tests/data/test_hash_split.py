"""Our own split: by the name of the image, so that what was trained on is never measured on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labelgap.core.errors import InputError
from labelgap.data.split import hash_split
from labelgap.labels import PRESENT, UNKNOWN, LabelTable


def random_table(count: int, classes: int, seed: int, share: float = 0.3) -> LabelTable:
    random = np.random.default_rng(seed)
    codes = random.choice([PRESENT, UNKNOWN], (count, classes), p=[share, 1 - share])
    return LabelTable.from_dense(codes, images=[f"photos/{number:05d}.jpg" for number in range(count)])


def splits(table: LabelTable, seed: int = 0) -> dict[str, int]:
    return {table.images[row]: split for split, part in enumerate(hash_split(table, 2, seed)) for row in part}


@settings(max_examples=30)
@given(count=st.integers(0, 60), classes=st.integers(1, 5), tenths=st.integers(1, 2), seed=st.integers(0, 10_000))
def test_every_row_is_in_one_split_and_every_class_in_the_first(
    count: int, classes: int, tenths: int, seed: int
) -> None:
    table = random_table(count, classes, seed)
    parts = hash_split(table, tenths, seed)
    assert len(parts) == tenths + 1
    assert sorted(np.concatenate(parts).tolist()) == list(range(count))
    known, train = (each.counts().present > 0 for each in (table, table.select(parts[0])))
    assert count < 10 or (known == train).all()
    assert count < 5 or all(map(len, parts))


@settings(max_examples=12)
@given(seed=st.integers(0, 10_000), data=st.data())
def test_rows_that_are_added_removed_moved_or_relabeled_leave_the_others_where_they_are(
    seed: int, data: st.DataObject
) -> None:
    table = random_table(300, 3, seed)
    before = splits(table)
    rows = data.draw(st.permutations(range(300)))
    fewer = table.select(rows[: data.draw(st.integers(200, 300))])
    added = LabelTable.from_dense(np.ones((7, 3)), images=[f"new-{seed}-{n}.jpg" for n in range(7)])
    relabeled = LabelTable.from_dense(np.ones((300, 3)), images=table.images)
    for changed in (fewer, LabelTable.concatenate([added, table]), relabeled):
        after = splits(changed)
        assert all(after[name] == split for name, split in before.items() if name in after)


def test_a_tenth_is_held_out_twice_and_classes_come_out_evenly_as_chance_has_it() -> None:
    table = random_table(20_000, 2, 0)
    parts = hash_split(table, 2)
    assert [len(part) / 20_000 for part in parts] == pytest.approx([0.8, 0.1, 0.1], abs=0.01)
    for part in parts:
        assert table.select(part).counts().present / len(part) == pytest.approx([0.3, 0.3], abs=0.04)


def test_the_only_image_of_a_class_is_trained_on() -> None:
    names = [f"{number}.jpg" for number in range(200)]
    first = LabelTable.from_dense(np.zeros((200, 1)), images=names)
    val = hash_split(first, 2)[1]
    codes = np.zeros((200, 1))
    codes[val[0]] = PRESENT
    assert val[0] in hash_split(LabelTable.from_dense(codes, images=names), 2)[0]


def test_groups_stay_together_and_need_one_number_a_row() -> None:
    table, group = random_table(400, 2, 0), np.arange(400) // 4
    parts = hash_split(table, 2, 0, group)
    assert sum(len({*group[part].tolist()}) for part in parts) == 100
    with pytest.raises(InputError, match="one number for every row"):
        hash_split(table, 2, 0, [1, 2])
