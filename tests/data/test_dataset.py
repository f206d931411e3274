"""Splits that fit together, and hiding labels as the papers do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.data.sentences import sentences

from labelgap.core.errors import InputError
from labelgap.data import load
from labelgap.data.dataset import Boxes, Dataset, Split
from labelgap.data.images import ArrayImages
from labelgap.labels import ABSENT, PRESENT, UNKNOWN, LabelTable, paper_split


def pixels(count: int) -> ArrayImages:
    return ArrayImages(np.zeros((count, 1, 1), dtype=np.uint8))


def split(name: str, table: LabelTable, origin: NDArray[np.int64] | None = None) -> Split:
    return Split(name, pixels(len(table)), table, origin=origin)


def full_labels(count: int, classes: int = 6, seed: int = 0) -> NDArray[np.int8]:
    return (np.random.default_rng(seed).random((count, classes)) < 0.4).astype(np.int8)


def papers_draw(labels: NDArray[np.int8], positives: int, negatives: int, seed: int = 1200) -> NDArray[np.int8]:
    """The draw as METHODS tell it, image after image, over the whole official set."""
    random = np.random.RandomState(seed)
    observed = np.full_like(labels, UNKNOWN)
    for row, known in enumerate(labels):
        for state, amount in ((PRESENT, positives), (ABSENT, negatives)):
            numbers = np.flatnonzero(known == state)
            random.shuffle(numbers)
            observed[row, numbers[:amount]] = state
    return observed


def official(count: int = 50, shuffle: bool = False) -> tuple[Dataset, NDArray[np.int8], NDArray[np.int8]]:
    """A data set cut from an official one of ``count`` rows, with the labels of that set and of its test rows."""
    labels, test = full_labels(count), full_labels(20, seed=1)
    table = LabelTable.from_dense(labels, images=[f"official-{row}" for row in range(count)])
    train, val = paper_split(count)
    if shuffle:
        train = np.random.default_rng(5).permutation(train)
    data = Dataset(
        "official",
        split("train", table.select(train), train),
        split("val", table.select(val), val),
        split("test", LabelTable.from_dense(test)),
    )
    return data, labels, test


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(("positives", "negatives"), [(1, 0), (1, 1), (2, 0)])
def test_labels_are_drawn_on_the_whole_official_set_and_split_afterwards(
    positives: int, negatives: int, shuffle: bool
) -> None:
    data, labels, _ = official(shuffle=shuffle)
    observed = papers_draw(labels, positives, negatives)
    drawn = data.observe(positives, negatives)
    assert data.train.origin is not None
    assert np.array_equal(drawn.train.labels.to_dense(), observed[data.train.origin])
    assert drawn.train.labels.images == data.train.labels.images


def test_val_is_drawn_in_the_same_pass_and_test_on_its_own() -> None:
    data, labels, test = official()
    drawn = data.observe(splits=("train", "val", "test"))
    assert drawn.val is not None and drawn.test is not None and data.val is not None and data.val.origin is not None
    assert np.array_equal(drawn.val.labels.to_dense(), papers_draw(labels, 1, 0)[data.val.origin])
    assert np.array_equal(drawn.test.labels.to_dense(), papers_draw(test, 1, 0))


def test_a_test_split_with_an_origin_is_a_set_of_its_own() -> None:
    data, labels, test = official()
    rows = np.array([3, 1, 2])
    table = LabelTable.from_dense(test[rows])
    data = Dataset("official", data.train, data.val, split("test", table, rows))
    drawn = data.observe(splits=("test", "train"))
    assert drawn.test is not None and data.train.origin is not None
    in_order = papers_draw(test[[1, 2, 3]], 1, 0)
    assert np.array_equal(drawn.test.labels.to_dense(), in_order[[2, 0, 1]])
    assert np.array_equal(drawn.train.labels.to_dense(), papers_draw(labels, 1, 0)[data.train.origin])


def test_what_was_known_is_kept_as_truth_and_the_other_splits_stay() -> None:
    data, _, _ = official()
    drawn = data.observe()
    assert drawn.train.truth is data.train.labels and drawn.train.evaluation_labels is data.train.labels
    assert drawn.val is data.val and drawn.test is data.test
    assert data.train.truth is None


def test_observing_twice_draws_from_the_truth_not_from_what_is_left() -> None:
    data, _, _ = official()
    again = data.observe(positives=1, negatives=0).observe(positives="all", negatives="all")
    assert again.train.labels == data.train.labels
    assert [rule for rule in sentences(again) if rule.startswith("train shows")] == [sentences(again)[-1]]


def test_revealing_undoes_observing_and_says_so() -> None:
    data, _, _ = official()
    whole = data.observe(splits=("train", "val")).reveal()
    assert whole.train.labels is data.train.labels and whole.train.truth is data.train.labels
    assert whole.val is not None and not whole.val.labels.complete
    assert sentences(whole)[-1] == "train shows every label that is known" and len(sentences(whole)) == 2


def test_the_real_voc_labels_come_out_bit_for_bit(shared_data: Path) -> None:
    with np.load(shared_data / "voc2012_resnet50_448.npz") as stored:
        train_ids, val_ids, classes = (stored[name].tolist() for name in ("train_ids", "val_ids", "classes"))
        train, val, observed = (stored[name] for name in ("train_truth", "val_truth", "train_observed"))
    rank = {name: row for row, name in enumerate(sorted(train_ids + val_ids))}
    origins = [np.array([rank[image] for image in ids]) for ids in (train_ids, val_ids)]
    data = Dataset(
        "voc2012",
        split("train", LabelTable.from_dense(train, classes, train_ids), origins[0]),
        split("val", LabelTable.from_dense(val, classes, val_ids), origins[1]),
    )
    assert [rows.tolist() for rows in origins] == [rows.tolist() for rows in paper_split(len(rank))]
    assert np.array_equal(data.observe(positives=1, negatives=0, seed=1200).train.labels.to_dense(), observed)


def boxed(part: Split, areas: NDArray[np.int64]) -> Split:
    """Give every label of a split two boxes, present or not, the larger of which has the area of ``areas``."""
    rows, columns = (np.repeat(places, 2) for places in np.nonzero(areas))
    widths = areas[rows, columns] - np.arange(len(rows)) % 2
    corners = np.stack([np.full(len(rows), 3), np.zeros(len(rows)), widths + 2, np.zeros(len(rows))], axis=1)
    return replace(part, boxes=Boxes(rows.astype(np.int64), columns.astype(np.int64), corners.astype(np.float64)))


@pytest.mark.parametrize("shuffle", [False, True])
def test_the_largest_boxes_of_the_official_set_decide_what_is_salient(shuffle: bool) -> None:
    data, labels, _ = official(shuffle=shuffle)
    areas = np.random.default_rng(2).permutation(50 * 6).reshape(50, 6) + 2
    assert data.train.origin is not None and data.val is not None and data.val.origin is not None
    train, val = data.train.origin, data.val.origin
    data = replace(data, train=boxed(data.train, areas[train]), val=boxed(data.val, areas[val]))
    drawn = data.observe("salient", seed=0, splits=("train", "val"))
    largest = np.where(labels == PRESENT, areas, 0).max(axis=1, keepdims=True)
    expected = np.where((labels == PRESENT) & (areas == largest), PRESENT, UNKNOWN)
    assert drawn.val is not None and drawn.train.truth is data.train.labels
    assert np.array_equal(drawn.train.labels.to_dense(), expected[train])
    assert np.array_equal(drawn.val.labels.to_dense(), expected[val])
    kept, known = (table.counts().total[0] for table in (drawn.train.labels, data.train.labels))
    assert f"train shows {kept} of {known} present labels (salient, seed 0: " in sentences(drawn)[-2]
    again = data.observe("small-overlooked", negatives="all", share=0.5, side=10)
    table = LabelTable.from_dense(labels)
    whole = table.observe("small-overlooked", "all", sizes=areas[table.rows, table.columns], share=0.5, side=10)
    assert np.array_equal(again.train.labels.to_dense(), whole.to_dense()[train])


def test_a_rule_by_size_asks_for_boxes_and_the_others_do_not() -> None:
    data, _, _ = official()
    for rule in ("salient", "small-overlooked"):
        with pytest.raises(InputError, match=f"official: train has no boxes, and '{rule}' draws .*--annotations"):
            data.observe(rule)
    assert all(data.observe(rule).train.truth is data.train.labels for rule in ("rare-overlooked", "annotators"))


def test_a_split_that_is_not_there_cannot_be_observed() -> None:
    data = Dataset("plain", split("train", LabelTable.from_dense(full_labels(5))))
    with pytest.raises(InputError, match="plain has no split 'val': there is train"):
        data.observe(splits=("val",))
    assert repr(data) == "Dataset(plain: 5 train; 6 classes)"
    other = split("test", LabelTable.from_dense(full_labels(5), classes=list("bacdef")))
    with pytest.raises(InputError, match="test has other classes than train"):
        Dataset("mixed", data.train, None, other)


def test_images_and_labels_must_be_as_many() -> None:
    table = LabelTable.from_dense(full_labels(5))
    with pytest.raises(InputError, match="train has 4 images and 5 rows of labels"):
        Split("train", pixels(4), table)
    with pytest.raises(InputError, match="train has 5 images and 4 rows of truth"):
        Split("train", pixels(5), table, table.select(range(4)))


def test_a_notebook_shows_labels_per_split_and_names_are_escaped() -> None:
    evil = "<img src=x>&"
    table = LabelTable.from_dense(np.array([[PRESENT, ABSENT], [UNKNOWN, UNKNOWN]], dtype=np.int8), classes=[evil, "b"])
    data = Dataset(evil, split("train", table), split("val", table.select([0])))
    page = ElementTree.fromstring(data._repr_html_())
    text = " ".join(page.itertext())
    assert page.find(".//img") is None and text.count(evil) == 2
    assert "2 images: 1 label present, 1 absent, 2 unknown" in text and "1 image: " in text


def test_a_selection_has_the_boxes_of_its_images_under_their_new_numbers() -> None:
    boxes = Boxes(
        rows=np.array([2, 0, 2, 1]),
        classes=np.array([0, 1, 1, 0]),
        corners=np.arange(16, dtype=np.float64).reshape(4, 4),
        difficult=np.array([True, False, False, True]),
    )
    chosen = boxes.select(np.array([2, 0, 2]))
    assert chosen.rows.tolist() == [0, 0, 1, 2, 2] and chosen.classes.tolist() == [0, 1, 1, 0, 1]
    assert chosen.corners[:, 0].tolist() == [0, 8, 4, 0, 8]
    assert chosen.difficult is not None and chosen.difficult.tolist() == [True, False, False, True, False]
    data = load("digits", train=9, val=0, test=0)
    assert data.train.boxes is not None
    part = data.train.select(np.array([7, 3])).boxes
    assert part is not None
    for number, row in enumerate((7, 3)):
        own = data.train.boxes.rows == row
        assert np.array_equal(part.corners[part.rows == number], data.train.boxes.corners[own])
