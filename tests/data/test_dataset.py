"""Splits that fit together, hiding labels as the papers do, and a split as a dataset of torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.data.sentences import sentences
from torch import Tensor
from torch.utils.data import DataLoader

import labelgap as lg
from labelgap.core.errors import InputError
from labelgap.data import FeatureVectors
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
    first, second = (split(name, table.select(rows), rows) for name, rows in (("train", train), ("val", val)))
    return Dataset("official", first, second, split("test", LabelTable.from_dense(test))), labels, test


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(("positives", "negatives"), [(1, 0), (1, 1), (2, 0)])
def test_labels_are_drawn_on_the_whole_official_set_then_split(positives: int, negatives: int, shuffle: bool) -> None:
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
    rows = np.array([3, 1, 2])
    with_origin = replace(data, test=split("test", LabelTable.from_dense(test[rows]), rows))
    drawn = with_origin.observe(splits=("test", "train"))
    assert drawn.test is not None and data.train.origin is not None
    assert np.array_equal(drawn.test.labels.to_dense(), papers_draw(test[[1, 2, 3]], 1, 0)[[2, 0, 1]])
    assert np.array_equal(drawn.train.labels.to_dense(), papers_draw(labels, 1, 0)[data.train.origin])


def test_observing_keeps_the_truth_from_which_the_next_draw_is_and_revealing_undoes_it() -> None:
    data, _, _ = official()
    drawn = data.observe()
    assert drawn.train.truth is data.train.labels and drawn.train.evaluation_labels is data.train.labels
    assert drawn.val is data.val and drawn.test is data.test and data.train.truth is None
    again = drawn.observe(positives="all", negatives="all")
    assert again.train.labels == data.train.labels and len(again.findings) == len(drawn.findings)
    whole = data.observe(splits=("train", "val")).reveal()
    assert whole.train.labels is data.train.labels and whole.train.truth is data.train.labels
    assert whole.val is not None and not whole.val.labels.complete and len(whole.findings) == 2


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
    assert f"train shows {kept} of {known} " in sentences(drawn)[-2]
    again = data.observe("small-overlooked", negatives="all", share=0.5, side=10)
    table = LabelTable.from_dense(labels)
    whole = table.observe("small-overlooked", "all", sizes=areas[table.rows, table.columns], share=0.5, side=10)
    assert np.array_equal(again.train.labels.to_dense(), whole.to_dense()[train])


def test_a_rule_by_size_asks_for_boxes_and_the_others_do_not() -> None:
    data, _, _ = official()
    for rule in ("salient", "small-overlooked"):
        with pytest.raises(InputError, match=f"'{rule}' .*--annotations"):
            data.observe(rule)
    assert all(data.observe(rule).train.truth is data.train.labels for rule in ("rare-overlooked", "annotators"))


def test_splits_that_are_not_there_or_do_not_fit_are_refused() -> None:
    table = LabelTable.from_dense(full_labels(5))
    data = Dataset("plain", split("train", table))
    assert repr(data) == "Dataset(plain: 5 train; 6 classes)"
    other = split("test", LabelTable.from_dense(full_labels(5), classes=list("bacdef")))
    wrong: list[tuple[str, Callable[[], object]]] = [
        ("'val'", lambda: data.observe(splits=("val",))),
        ("test .* train", lambda: Dataset("mixed", data.train, None, other)),
        ("4 images and 5 rows", lambda: Split("train", pixels(4), table)),
        ("5 images and 4 rows", lambda: Split("train", pixels(5), table, table.select(range(4)))),
    ]
    for named, make in wrong:
        with pytest.raises(InputError, match=named):
            make()


def test_a_notebook_shows_labels_per_split_and_names_are_escaped() -> None:
    evil = "<img src=x>&"
    table = LabelTable.from_dense(np.array([[PRESENT, ABSENT], [UNKNOWN, UNKNOWN]], dtype=np.int8), classes=[evil, "b"])
    data = Dataset(evil, split("train", table), split("val", table.select([0])))
    page = ElementTree.fromstring(data._repr_html_())
    text = " ".join(page.itertext())
    assert page.find(".//img") is None and text.count(evil) == 2
    assert "1 label present, 1 absent, 2 unknown" in text


def test_a_selection_has_the_boxes_of_its_images_under_their_new_numbers() -> None:
    corners, difficult = np.arange(16, dtype=np.float64).reshape(4, 4), np.array([True, False, False, True])
    boxes = Boxes(np.array([2, 0, 2, 1]), np.array([0, 1, 1, 0]), corners, difficult)
    part = Split("train", pixels(3), LabelTable.from_dense(np.ones((3, 2))), boxes=boxes).select(np.array([1, 0]))
    assert part.boxes is not None and part.boxes.rows.tolist() == [0, 1]
    chosen = boxes.select(np.array([2, 0, 2]))
    assert chosen.difficult is not None
    assert chosen.rows.tolist() == [0, 0, 1, 2, 2] and chosen.classes.tolist() == [0, 1, 1, 0, 1]
    assert chosen.corners[:, 0].tolist() == [0, 8, 4, 0, 8]
    assert chosen.difficult.tolist() == [True, False, False, True, False]


def to_unit(image: Tensor) -> Tensor:
    return image.float() / 255


@pytest.fixture(scope="module")
def train() -> Split:
    return lg.load("digits", train=10, val=0, test=0).train


def test_an_item_is_an_image_its_observed_labels_and_its_row(train: Split) -> None:
    assert isinstance(train, torch.utils.data.Dataset) and len(train) == 10
    image, labels, index = train[4]
    assert image.dtype == torch.uint8 and image.shape == (1, 64, 64)
    assert np.array_equal(image.numpy()[0], train.images[4][..., 0])
    assert torch.equal(labels, train.labels.batch([4])[0]) and index == 4
    assert train[-1][2] == 9
    with pytest.raises(IndexError, match="train has 10 images"):
        train[10]
    assert len(list(train)) == 10  # type: ignore[call-overload]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_data_loader_feeds_a_loss(train: Split, workers: int) -> None:
    batches = DataLoader(train.with_transform(to_unit), batch_size=4, shuffle=True, num_workers=workers)
    loss_fn = lg.loss("an")
    seen = []
    for images, labels, index in batches:
        assert images.dtype == torch.float32 and images.max() <= 1
        assert torch.equal(labels, train.labels.batch(index.tolist()))
        assert loss_fn(images.mean(dim=(1, 2, 3))[:, None].expand(-1, 10), labels).isfinite()
        seen += index.tolist()
    assert sorted(seen) == list(range(10))


def test_feature_vectors_take_the_place_of_images() -> None:
    vectors = np.arange(6, dtype=np.float32).reshape(2, 3)
    split = Split("train", FeatureVectors(vectors), LabelTable.from_dense([[1], [-1]]))
    features, labels, index = next(iter(DataLoader(split, batch_size=2)))
    assert torch.equal(features, torch.from_numpy(vectors)) and labels.tolist() == [[1], [-1]]
    assert index.tolist() == [0, 1]
