"""A data set knows itself again, and says what has changed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from labelgap.data.dataset import Dataset, Split
from labelgap.data.feature_vectors import FeatureVectors
from labelgap.data.identity import COLUMNS, DataChanges, DataIdentity
from labelgap.data.images import ArrayImages
from labelgap.data.readers.table import load_csv
from labelgap.labels import LabelTable

NAMES = tuple(f"{number}.png" for number in range(8))
CODES = np.array([[1, 0, -1], [0, 1, -1], [-1, -1, 1], [1, 1, 1], [0, 0, 0], [1, -1, 0], [-1, 1, 0], [0, -1, 1]])
VECTORS = np.random.default_rng(0).normal(size=(8, 5)).astype(np.float32)


def data_of(
    codes: np.ndarray = CODES, vectors: np.ndarray = VECTORS, names: tuple[str, ...] = NAMES, **other: Any
) -> Dataset:
    table = LabelTable.from_dense(codes, other.get("classes", ("cat", "dog", "owl")), names)
    border = other.get("border", 5)
    rows = {"train": np.arange(border), "test": np.arange(border, len(names))}
    train, test = (Split(name, FeatureVectors(vectors[each]), table.select(each)) for name, each in rows.items())
    return Dataset("x", train, None, test)


def changes(after: Dataset, before: Dataset | None = None) -> DataChanges:
    return DataIdentity.of(before or data_of()).changes(DataIdentity.of(after))


def test_the_same_data_have_not_changed() -> None:
    assert not changes(data_of())
    assert str(changes(data_of())) == "no change"
    identity = DataIdentity.of(data_of())
    stored = DataIdentity.from_table(identity.to_table())
    assert dict(zip(identity.to_table().schema.names, identity.to_table().schema.types, strict=True)) == dict(COLUMNS)
    assert not stored.changes(identity) and not identity.changes(stored)
    assert {stored.images[row] for row in stored.trained_rows()} == {*NAMES[:5]}


def test_what_was_trained_on_before_a_change_stays_known() -> None:
    before, moved = DataIdentity.of(data_of()), DataIdentity.of(data_of(border=3))
    kept = DataIdentity.from_table(moved.after(before).to_table())
    assert kept.changed and not before.changed
    assert {kept.images[row] for row in kept.trained_rows()} == {*NAMES[:5]}
    assert not kept.changes(moved), "what is no longer in train is no image of the data"
    assert len(kept.keys()) == 10


def test_each_kind_of_change_is_counted() -> None:
    fewer = data_of(CODES[:7], VECTORS[:7], NAMES[:7])
    assert changes(fewer) == DataChanges(removed=1)
    assert changes(data_of(), fewer) == DataChanges(added=1)
    assert changes(data_of(border=4)) == DataChanges(moved=1)
    relabeled = CODES.copy()
    relabeled[0, 2] = 1
    assert changes(data_of(relabeled)) == DataChanges(relabeled=1)
    assert changes(data_of(vectors=VECTORS[::-1])) == DataChanges(replaced=8)
    back = data_of(CODES[::-1], VECTORS[::-1], NAMES[::-1], border=3)
    assert changes(back) == DataChanges(moved=8, reordered=True)
    assert str(changes(fewer)) == "1 image removed"
    exchanged = data_of(classes=("dog", "cat", "owl"))
    assert changes(exchanged).relabeled == 5  # of the others the two labels are equal
    assert not changes(data_of(CODES[:, ::-1], classes=("owl", "dog", "cat"))), "reordered columns"


def test_hidden_labels_are_part_of_the_identity() -> None:
    full = data_of(np.abs(CODES))
    hidden = full.observe(positives=1, negatives=0, seed=1)
    other = full.observe(positives=1, negatives=0, seed=2)
    assert changes(other, hidden).relabeled > 0
    train = replace(hidden.train, truth=None)
    assert changes(replace(hidden, train=train), hidden).relabeled == 5


def test_pixels_and_files_are_known_again(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (8, 6, 6), dtype=np.uint8)
    table = LabelTable.from_dense(CODES, images=NAMES)
    before = Dataset("x", Split("train", ArrayImages(pixels), table))
    pixels = pixels.copy()
    pixels[3] += 1
    assert changes(Dataset("x", Split("train", ArrayImages(pixels), table)), before) == DataChanges(replaced=1)
    for number, image in enumerate(pixels):
        Image.fromarray(image).save(tmp_path / f"{number}.png")
    (tmp_path / "tags.csv").write_text("image,split,cat\n" + "".join(f"{n}.png,train,{n % 2}\n" for n in range(8)))
    identity = DataIdentity.of(load_csv(tmp_path / "tags.csv"))
    Image.fromarray(np.zeros((40, 40), np.uint8)).save(tmp_path / "2.png")
    assert identity.changes(DataIdentity.of(load_csv(tmp_path / "tags.csv"))) == DataChanges(replaced=1)


@pytest.mark.parametrize("count", [0, 1])
def test_names_that_repeat_in_two_splits_are_told_apart(count: int) -> None:
    table = LabelTable.from_dense(CODES[:4], images=NAMES[:4])
    splits = [Split(name, FeatureVectors(VECTORS[:4]), table) for name in ("train", "test")]
    before = Dataset("x", splits[0], None, splits[1])
    codes = CODES[:4].copy()
    codes[:count] = -1
    test = replace(splits[1], labels=LabelTable.from_dense(codes, images=NAMES[:4]))
    assert changes(replace(before, test=test), before) == DataChanges(relabeled=count)
