"""Folds: stratified by class, duplicates in one fold."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import labelgap as lg
from labelgap.core.errors import InputError
from labelgap.data.feature_vectors import FeatureVectors
from labelgap.training.folds import assign_folds, duplicate_groups


def single(columns: list[int], classes: int) -> lg.LabelTable:
    codes = np.full((len(columns), classes), lg.UNKNOWN)
    codes[np.arange(len(columns)), columns] = lg.PRESENT
    return lg.LabelTable.from_dense(codes)


def test_every_class_is_shared_out_as_evenly_as_its_number_allows() -> None:
    random = np.random.default_rng(0)
    columns = random.choice(5, size=503, p=[0.6, 0.2, 0.1, 0.07, 0.03])
    table = single(columns.tolist(), 5)
    fold = assign_folds(table, folds=4)
    assert np.array_equal(fold, assign_folds(table, folds=4)) and (fold != assign_folds(table, 4, seed=1)).any()
    assert set(fold.tolist()) == {0, 1, 2, 3}
    for number in range(5):
        sizes = np.bincount(fold[columns == number], minlength=4)
        assert sizes.max() - sizes.min() <= 1


def test_images_of_a_group_are_in_one_fold() -> None:
    random = np.random.default_rng(1)
    groups = random.integers(40, size=200)
    fold = assign_folds(single(random.integers(3, size=200).tolist(), 3), folds=5, groups=groups)
    for group in range(40):
        assert len(set(fold[groups == group].tolist())) <= 1
    assert np.bincount(fold).min() > 20


@pytest.mark.parametrize("folds", [1, 9])
def test_too_few_or_too_many_folds_are_refused(folds: int) -> None:
    with pytest.raises(InputError, match="folds"):
        assign_folds(single([0, 1] * 4, 2), folds)


def test_vectors_that_are_equal_to_the_last_bit_are_copies() -> None:
    vectors = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float16)
    vectors[4] = vectors[1]
    vectors[5] = np.nextafter(vectors[1], np.float16(9))
    data = lg.Dataset("made", lg.Split("train", FeatureVectors(vectors), lg.LabelTable.from_dense([[1]] * 6)))
    assert duplicate_groups(data, "train", vectors).tolist() == [0, 1, 2, 3, 1, 4]
    assert duplicate_groups(data, "train").tolist() == [0, 1, 2, 3, 4, 5]


def test_near_duplicate_photos_share_a_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABELGAP_CACHE", str(tmp_path / "cache"))
    random = np.random.default_rng(0)
    names = [f"{number}.png" for number in range(6)]
    for name in names[:5]:
        large = random.integers(0, 256, (8, 8, 3), dtype=np.uint8).repeat(12, 0).repeat(12, 1)
        Image.fromarray(large).save(tmp_path / name)
    Image.open(tmp_path / "2.png").resize((64, 64)).save(tmp_path / "5.png")
    rows = [f"{name},train,{int(place < 3)},{int(place >= 3)}" for place, name in enumerate(names[:5])]
    table = "\n".join(["image,split,a,b", *rows, "5.png,train,1,0", ""])
    (tmp_path / "tags.csv").write_text(table)
    data = lg.load("csv", tmp_path / "tags.csv", images=tmp_path)
    found = duplicate_groups(data, data.train.name)
    where = {name: int(found[row]) for row, name in enumerate(data.train.labels.images)}
    assert where["2.png"] == where["5.png"] and len(set(where.values())) == len(where) - 1
    off = dataclasses.replace(data, recipe={**data.recipe, "options": {"duplicates": "off"}})
    assert len(set(duplicate_groups(off, "train").tolist())) == len(data.train)
