from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from labelgap.core.errors import InputError
from labelgap.labels import ABSENT, PRESENT, UNKNOWN, LabelTable


def test_listed_classes_are_known_and_all_others_unknown() -> None:
    table = LabelTable.from_lists([["cat"], ["owl", "cat"], []], [["dog"], [], ["owl"]])
    assert table.classes == ("cat", "dog", "owl")
    assert table.to_dense().tolist() == [
        [PRESENT, ABSENT, UNKNOWN],
        [PRESENT, UNKNOWN, PRESENT],
        [UNKNOWN, UNKNOWN, ABSENT],
    ]


def test_unlisted_classes_are_absent_only_when_told_so() -> None:
    table = LabelTable.from_lists([["cat"], ["owl"]], [["dog"], []], unlisted="absent")
    assert table.to_dense().tolist() == [[PRESENT, ABSENT, ABSENT], [ABSENT, ABSENT, PRESENT]]
    assert table.complete


def test_classes_keep_the_order_given_and_may_be_more_than_occur() -> None:
    table = LabelTable.from_lists([["cat"]], classes=["owl", "cat"], images=np.array(["a.jpg"]))  # type: ignore[arg-type]
    assert table.classes == ("owl", "cat")
    assert table.images == ("a.jpg",)
    assert table.to_dense().tolist() == [[UNKNOWN, PRESENT]]


def test_a_name_twice_in_one_list_counts_once() -> None:
    choices: list[Any] = ["unknown", "absent"]
    for unlisted in choices:
        table = LabelTable.from_lists([["cat", "cat"]], [["dog", "dog"]], unlisted=unlisted)
        assert table.to_dense().tolist() == [[PRESENT, ABSENT]]


def test_sets_tuples_and_generators_are_lists_too() -> None:
    rows: list[Any] = [{"b"}, ("a", "b"), (name for name in "ba")]
    assert LabelTable.from_lists(rows).to_dense().tolist() == [[-1, 1], [1, 1], [1, 1]]


@pytest.mark.parametrize("unlisted", ["unknown", "absent"])
def test_no_images_and_no_names_make_an_empty_table(unlisted: Any) -> None:
    assert LabelTable.from_lists([], unlisted=unlisted).shape == (0, 0)
    assert LabelTable.from_lists([[], []], unlisted=unlisted).shape == (2, 0)
    assert LabelTable.from_lists([], classes=["a"], unlisted=unlisted).shape == (0, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"present": [["cat"], ["dog"]], "absent": [[], ["dog"]], "images": ["a.jpg", "b.jpg"]}, r"b\.jpg lists 'dog'"),
        ({"present": [["cat"], ["dog"]], "absent": [[], ["dog"]]}, "image 1 lists 'dog'"),
        ({"present": [["dgo"]], "classes": ["cat", "dog"]}, "Did you mean 'dog'"),
        ({"present": ["cat"]}, "come as a list of names; 'cat' is a single text"),
        ({"present": [["cat"]], "absent": []}, "present lists 1 images, absent 0"),
        ({"present": [["cat"]], "unlisted": "no"}, "a class that is not listed is 'unknown' or 'absent'"),
        ({"present": [["cat"]], "classes": ["cat", "cat"]}, "the class 'cat' is listed twice"),
        ({"present": [["cat"]], "images": ["a", "b"]}, "2 image names were given for 1 rows"),
        ({"present": [["cat"]], "images": ["a", "b"], "unlisted": "absent"}, "2 image names were given for 1 rows"),
    ],
)
def test_lists_that_do_not_fit_are_refused(arguments: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        LabelTable.from_lists(**arguments)
