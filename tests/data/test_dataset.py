"""Splits that fit together, labels hidden as the papers do, what is said of a data set, and how it knows itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from numpy.typing import ArrayLike, NDArray
from tests.data.sentences import sentences
from torch import Tensor
from torch.utils.data import DataLoader

import labelgap as lg
from labelgap.core.errors import InputError
from labelgap.data import ArrayImages, Dataset, FeatureVectors, Split
from labelgap.data.dataset import Boxes
from labelgap.data.identity import DataChanges, DataIdentity
from labelgap.data.summary import measurable_classes, summarize
from labelgap.labels import ABSENT, PRESENT, UNKNOWN, LabelTable, paper_split


def pixels(count: int) -> ArrayImages:
    return ArrayImages(np.zeros((count, 1, 1), dtype=np.uint8))


def split(name: str, table: LabelTable, origin: NDArray[np.int64] | None = None) -> Split:
    return Split(name, pixels(len(table)), table, origin=origin)


def full_labels(count: int, classes: int = 6, seed: int = 0) -> NDArray[np.int8]:
    return (np.random.default_rng(seed).random((count, classes)) < 0.4).astype(np.int8)


def papers_draw(labels: NDArray[np.int8], positives: int = 1, negatives: int = 0) -> NDArray[np.int8]:
    """The draw over the whole official set."""
    return LabelTable.from_dense(labels).observe(positives, negatives).to_dense()


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
    assert np.array_equal(drawn.val.labels.to_dense(), papers_draw(labels)[data.val.origin])
    assert np.array_equal(drawn.test.labels.to_dense(), papers_draw(test))
    rows = np.array([3, 1, 2])
    with_origin = replace(data, test=split("test", LabelTable.from_dense(test[rows]), rows))
    drawn = with_origin.observe(splits=("test", "train"))
    assert drawn.test is not None and data.train.origin is not None
    assert np.array_equal(drawn.test.labels.to_dense(), papers_draw(test[[1, 2, 3]])[[2, 0, 1]])
    assert np.array_equal(drawn.train.labels.to_dense(), papers_draw(labels)[data.train.origin])


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


def to_unit(image: Tensor) -> Tensor:
    return image.float() / 255


@pytest.fixture(scope="module")
def train() -> Split:
    return lg.load("digits", train=10, val=0, test=0).train


def test_an_item_is_an_image_its_observed_labels_and_its_row(train: Split) -> None:
    assert len(train) == 10 and len(torch.utils.data.ConcatDataset([train, train])) == 20
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


def labeled(name: str, labels: ArrayLike, truth: ArrayLike | None = None) -> Split:
    codes = np.asarray(labels, dtype=np.int8)
    classes = [f"class {number}" for number in range(codes.shape[1])]
    names = [f"{name}/{row}" for row in range(len(codes))]
    images = ArrayImages(np.zeros((len(codes), 2, 2), dtype=np.uint8), names)
    whole = None if truth is None else LabelTable.from_dense(truth, classes, names)
    return Split(name, images, LabelTable.from_dense(codes, classes, names), whole)


def measurable(column: Sequence[int]) -> bool:
    """Whether both states are known and, with unknown labels, random scores reach at most 0.5 on the average."""
    present, absent = column.count(PRESENT), column.count(ABSENT)
    count, harmonic = present + absent, sum(1 / rank for rank in range(1, present + absent + 1))
    if not present or not absent:
        return False
    chance = ((present - 1) / (count - 1) * (count - harmonic) + harmonic) / count
    return count == len(column) or chance <= 0.5


@settings(max_examples=25)
@given(st.lists(st.lists(st.sampled_from([PRESENT, ABSENT, UNKNOWN]), min_size=3, max_size=3), min_size=3, max_size=9))
def test_counts_are_those_of_a_plain_loop(rows: list[list[int]]) -> None:
    parts = {"train": rows[:-2], "val": rows[-2:-1], "test": rows[-1:]}
    train, val, test = (labeled(name, part) for name, part in parts.items())
    summary = summarize(Dataset("toy", train, val, test))
    for name, part in parts.items():
        counted = {state: sum(row.count(state) for row in part) for state in (PRESENT, ABSENT, UNKNOWN)}
        found = summary.splits[name]
        assert found.images == len(part)
        assert (found.present, found.absent, found.unknown) == tuple(counted.values())
        columns = list(zip(*part, strict=True))
        assert found.measurable == sum(map(measurable, columns))
    assert summary.whole.images == len(rows)
    assert summary.whole.present == sum(row.count(PRESENT) for row in rows)
    for number, found_class in enumerate(summary.classes):
        column = [row[number] for row in rows]
        assert found_class.present == column.count(PRESENT) and found_class.absent == column.count(ABSENT)
        assert found_class.unknown == column.count(UNKNOWN)
    assert summary.most_present == max(row.count(PRESENT) for row in rows)
    bare = sum(set(row) == {UNKNOWN} for row in rows)
    said = {finding.kind: str(finding) for finding in summary.warnings}
    assert ("no_label" in said) == (bare > 0) and said.get("no_label", f"{bare} ").startswith(f"{bare} ")
    json.dumps(summary.to_json())


def test_what_looks_wrong_is_found_and_named() -> None:
    train = [[1, -1, -1, -1]] * 12 + [[-1, 1, -1, -1]] * 3 + [[-1, -1, -1, -1]]
    data = Dataset("toy", labeled("train", train), None, labeled("test", [[0, 0, 1, 0], [1, 1, 0, -1]]))
    found = {finding.kind: finding for finding in summarize(data).warnings}
    assert [row.present for row in summarize(data).rarest()] == [1, 4, 13]
    assert found["never_present"].names == ("class 3",)
    assert found["few_present"].names == ("class 1", "class 2")
    assert found["not_in_train"].names == ("class 2",)
    assert str(found["no_label"]) == "1 image with no label at all"
    assert "all_known" not in found


def test_accuracy_is_promised_only_for_classes_with_both_states() -> None:
    train = labeled("train", [[1, -1, -1]] * 3)
    test = labeled("test", [[1, 1, -1], [0, 1, 1]])
    summary = summarize(Dataset("toy", train, None, test))
    assert measurable_classes(test).tolist() == [True, False, False]
    assert any("test, over 1 of 3" in each for each in summary.can)
    assert [each.count("3 of 3") + 2 * each.count("2 of 3") for each in summary.cannot] == [1, 2]
    assert [row.measurable for row in summary.classes] == [("test",), (), ()]
    val = labeled("val", [[1, 1], [1, 0], [1, 0], [0, 0], [0, 0], [-1, -1]])  # by chance 0.7 and 0.46
    summary = summarize(Dataset("toy", labeled("train", [[1, -1], [-1, 1]]), val))
    assert summary.splits["val"].measurable == 1 and measurable_classes(val).tolist() == [False, True]


IMAGES = tuple(f"{number}.png" for number in range(8))
CODES = np.array([[1, 0, -1], [0, 1, -1], [-1, -1, 1], [1, 1, 1], [0, 0, 0], [1, -1, 0], [-1, 1, 0], [0, -1, 1]])
VECTORS = np.random.default_rng(0).normal(size=(8, 5)).astype(np.float32)


def data_of(
    codes: np.ndarray = CODES, vectors: np.ndarray = VECTORS, names: tuple[str, ...] = IMAGES, **other: Any
) -> Dataset:
    table = LabelTable.from_dense(codes, other.get("classes", ("cat", "dog", "owl")), names)
    border = other.get("border", 5)
    rows = {"train": np.arange(border), "test": np.arange(border, len(names))}
    train, test = (Split(name, FeatureVectors(vectors[each]), table.select(each)) for name, each in rows.items())
    return Dataset("x", train, None, test)


def changes(after: Dataset, before: Dataset | None = None) -> DataChanges:
    return DataIdentity.of(before or data_of()).changes(DataIdentity.of(after))


def test_each_kind_of_change_is_counted() -> None:
    fewer = data_of(CODES[:7], VECTORS[:7], IMAGES[:7])
    assert changes(fewer) == DataChanges(removed=1)
    assert changes(data_of(), fewer) == DataChanges(added=1)
    assert changes(data_of(border=4)) == DataChanges(moved=1)
    relabeled = CODES.copy()
    relabeled[0, 2] = 1
    assert changes(data_of(relabeled)) == DataChanges(relabeled=1)
    assert changes(data_of(vectors=VECTORS[::-1])) == DataChanges(replaced=8)
    back = data_of(CODES[::-1], VECTORS[::-1], IMAGES[::-1], border=3)
    assert changes(back) == DataChanges(moved=8, reordered=True)
    assert str(changes(fewer)) == "1 image removed"
    exchanged = data_of(classes=("dog", "cat", "owl"))
    assert changes(exchanged).relabeled == 5  # of the others the two labels are equal
    assert not changes(data_of(CODES[:, ::-1], classes=("owl", "dog", "cat"))), "reordered columns"
