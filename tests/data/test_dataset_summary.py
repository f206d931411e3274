"""What is said of a data set: counts against a plain loop, and sentences that follow from them."""

from __future__ import annotations

import json
from collections.abc import Sequence

import hypothesis.strategies as st
import numpy as np
from hypothesis import given, settings
from numpy.typing import ArrayLike

from labelgap.data import ArrayImages, Dataset, Split, load
from labelgap.data.summary import describe_capabilities, measurable_classes, summarize
from labelgap.labels import ABSENT, PRESENT, UNKNOWN, LabelTable


def split(name: str, labels: ArrayLike, truth: ArrayLike | None = None) -> Split:
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
    train, val, test = (split(name, part) for name, part in parts.items())
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
    data = Dataset("toy", split("train", train), None, split("test", [[0, 0, 1, 0], [1, 1, 0, -1]]))
    found = {finding.kind: finding for finding in summarize(data).warnings}
    assert [row.present for row in summarize(data).rarest()] == [1, 4, 13]
    assert found["never_present"].names == ("class 3",)
    assert found["few_present"].names == ("class 1", "class 2")
    assert found["not_in_train"].names == ("class 2",)
    assert str(found["no_label"]) == "1 image with no label at all"
    assert "all_known" not in found


def test_accuracy_is_promised_only_for_classes_with_both_states() -> None:
    train = split("train", [[1, -1, -1]] * 3)
    test = split("test", [[1, 1, -1], [0, 1, 1]])
    summary = summarize(Dataset("toy", train, None, test))
    assert measurable_classes(test).tolist() == [True, False, False]
    assert any("test, over 1 of 3" in each for each in summary.can)
    assert [each.count("3 of 3") + 2 * each.count("2 of 3") for each in summary.cannot] == [1, 2]
    assert [row.measurable for row in summary.classes] == [("test",), (), ()]
    val = split("val", [[1, 1], [1, 0], [1, 0], [0, 0], [0, 0], [-1, -1]])  # by chance 0.7 and 0.46
    summary = summarize(Dataset("toy", split("train", [[1, -1], [-1, 1]]), val))
    assert summary.splits["val"].measurable == 1 and measurable_classes(val).tolist() == [False, True]


def test_nothing_to_learn_from_means_no_next_command() -> None:
    summary = summarize(Dataset("toy", split("train", [[0, -1]])))
    assert summary.next == "" and summary.cannot[0].startswith("train")


def test_the_next_command_is_what_was_typed() -> None:
    data = load("digits", train=20, val=5, test=5)
    assert summarize(data).next == "labelgap train digits --out runs/first"
    assert summarize(data, "'my t' --images x").next == "labelgap train 'my t' --images x --out runs/first"
    by_hand = Dataset("toy", split("train", [[1]]))
    assert summarize(by_hand).next == "labelgap.fit(data, out='runs/first')"


def test_epochs_are_chosen_by_accuracy_only_where_half_of_the_classes_can_be_measured() -> None:
    images = ArrayImages(np.zeros((2, 4, 4), np.uint8))
    train = Split("train", images, LabelTable.from_dense([[1, 1, 1], [-1, -1, 1]]))
    val = Split("val", images, LabelTable.from_dense([[1, 1, 1], [0, -1, -1]]))
    can, cannot = describe_capabilities(Dataset("few", train, val))
    assert any(each.startswith("choose thresholds") for each in can)
    assert any(each.startswith("choose epochs") for each in cannot)


def test_a_table_without_a_gap_is_no_fault() -> None:
    complete, partial = (summarize(Dataset("toy", split("train", rows))) for rows in ([[1, 0]], [[1, -1]]))
    assert complete.note and not partial.note
    assert not any("every label" in str(warning) for warning in complete.warnings)
