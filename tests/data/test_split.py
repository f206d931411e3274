"""Splits: no image on two sides, groups and copies stay together, and a hash of the name holds out val."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tests.data.sentences import sentences
from tests.data.test_scanning import scene

from labelgap.core.errors import InputError, ProblemsError
from labelgap.data.dataset import Dataset
from labelgap.data.findings import LeaksAllowed
from labelgap.data.readers.table import load_csv
from labelgap.data.split import hash_split, hold_out_val
from labelgap.labels import PRESENT, UNKNOWN, LabelTable


def image(seed: int, size: tuple[int, int] = (160, 120)) -> Image.Image:
    """An image with shapes of its own, at any size."""
    return scene(seed).resize(size, Image.Resampling.LANCZOS)


def album(folder: Path, rows: list[str], header: str = "image,split,cat") -> Path:
    """Write a table; images that are not there yet are drawn, each its own."""
    for number, row in enumerate(rows):
        if not (folder / row.split(",")[0]).exists():
            image(number).save(folder / row.split(",")[0])
    (folder / "tags.csv").write_text("\n".join([header, *rows]) + "\n")
    return folder / "tags.csv"


def split_of(data: Dataset) -> dict[str, str]:
    return {name: split.name for split in data.splits for name in split.labels.images}


def group_of(data: Dataset) -> dict[str, int]:
    assert data.train.groups is not None
    return dict(zip(data.train.labels.images, data.train.groups.tolist(), strict=True))


def test_the_images_of_a_group_are_kept_together_and_blanks_are_no_group(tmp_path: Path) -> None:
    rows = [f"{number:02d}.png,{'' if number < 20 else number // 5},{number % 2}" for number in range(60)]
    data = load_csv(album(tmp_path, rows, "image,group,cat"))
    for placed in (group_of(data), split_of(hold_out_val(data))):
        for group in range(4, 12):
            assert len({placed[f"{number:02d}.png"] for number in range(group * 5, group * 5 + 5)}) == 1
        assert len({placed[f"{number:02d}.png"] for number in range(20)}) > 1
    assert "8 groups" in sentences(data)[-1]


def test_copies_are_kept_together(tmp_path: Path) -> None:
    rows = [f"{number:02d}.png,{number % 2}" for number in range(40)]
    album(tmp_path, rows, "image,cat")
    for number in range(8):
        (tmp_path / f"copy{number}.png").write_bytes((tmp_path / f"{number:02d}.png").read_bytes())
        image(number, (240, 180)).save(tmp_path / f"large{number}.jpg", quality=92)
    extra = [f"{name},1" for number in range(8) for name in (f"copy{number}.png", f"large{number}.jpg")]
    data = load_csv(album(tmp_path, rows + extra, "image,cat"))
    placed = group_of(data)
    for number in range(8):
        assert len({placed[name] for name in (f"{number:02d}.png", f"copy{number}.png", f"large{number}.jpg")}) == 1
    assert len(set(placed.values())) == 40
    assert sentences(data)[-1].startswith("8 exact and 8 near")
    exact_only = load_csv(tmp_path / "tags.csv", duplicates="exact")
    assert sentences(exact_only)[-1].startswith("8 exact duplicates")
    held = split_of(hold_out_val(data))
    assert "val" in held.values() and all(held[f"{n:02d}.png"] == held[f"copy{n}.png"] for n in range(8))
    assert "duplicate" not in sentences(load_csv(tmp_path / "tags.csv", duplicates="off"))[-1]


def test_a_split_of_the_file_that_leaks_is_a_problem_unless_allowed(tmp_path: Path) -> None:
    image(1).save(tmp_path / "a.png")
    image(1).save(tmp_path / "b.png")
    image(1, (240, 180)).save(tmp_path / "c.jpg", quality=92)
    rows = ["x.png,train,1", "b.png,test,1", "a.png,train,1", "y.png,val,0", "c.jpg,val,1"]
    table = album(tmp_path, rows)
    with pytest.raises(ProblemsError) as caught:
        load_csv(table)
    assert [each.line for each in caught.value.problems] == [3, 6] and "--allow-leaks" in str(caught.value)
    assert all("a.png (train, line 4)" in each.message for each in caught.value.problems)
    data = load_csv(table, allow_leaks=True)
    assert [len(split) for split in data.splits] == [2, 2, 1]
    assert any(isinstance(each, LeaksAllowed) for each in data.findings)
    with pytest.raises(ProblemsError, match="1 problem,"):
        load_csv(table, duplicates="exact")
    assert len(load_csv(table, duplicates="off").splits) == 3


def random_table(count: int, classes: int, seed: int, share: float = 0.3) -> LabelTable:
    random = np.random.default_rng(seed)
    codes = random.choice([PRESENT, UNKNOWN], (count, classes), p=[share, 1 - share])
    return LabelTable.from_dense(codes, images=[f"photos/{number:05d}.jpg" for number in range(count)])


def splits(table: LabelTable, seed: int = 0) -> dict[str, int]:
    return {table.images[row]: split for split, part in enumerate(hash_split(table, 2, seed)) for row in part}


@settings(max_examples=30)
@given(count=st.integers(0, 60), classes=st.integers(1, 5), tenths=st.integers(1, 2), seed=st.integers(0, 10_000))
def test_a_row_is_in_one_split_and_a_class_in_the_first(count: int, classes: int, tenths: int, seed: int) -> None:
    table = random_table(count, classes, seed)
    parts = hash_split(table, tenths, seed)
    assert len(parts) == tenths + 1
    assert sorted(np.concatenate(parts).tolist()) == list(range(count))
    known, train = (each.counts().present > 0 for each in (table, table.select(parts[0])))
    assert count < 10 or (known == train).all()
    assert count < 5 or all(map(len, parts))


@settings(max_examples=12)
@given(seed=st.integers(0, 10_000), data=st.data())
def test_rows_that_change_leave_the_others_where_they_are(seed: int, data: st.DataObject) -> None:
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


def test_groups_stay_together_and_need_one_number_a_row() -> None:
    table, group = random_table(400, 2, 0), np.arange(400) // 4
    parts = hash_split(table, 2, 0, group)
    assert sum(len({*group[part].tolist()}) for part in parts) == 100
    with pytest.raises(InputError, match="every row"):
        hash_split(table, 2, 0, [1, 2])


def test_the_only_image_of_a_class_is_trained_on() -> None:
    names = [f"{number}.jpg" for number in range(200)]
    first = LabelTable.from_dense(np.zeros((200, 1)), images=names)
    val = hash_split(first, 2)[1]
    codes = np.zeros((200, 1))
    codes[val[0]] = PRESENT
    assert val[0] in hash_split(LabelTable.from_dense(codes, images=names), 2)[0]
