from __future__ import annotations

import pickle

import pytest

from labelgap.core import errors
from labelgap.core.errors import LabelGapError, Problem, ProblemsError, RunError, UnknownNameError

UNKNOWN_METHOD = UnknownNameError("method", "ll-tc", ["ll-ct"])
ERRORS = (errors.InputError("a"), RunError("a"), UNKNOWN_METHOD, ProblemsError("a.csv", [Problem(3, "bad")]))


@pytest.mark.parametrize("error", ERRORS)
def test_every_error_has_one_root_leaves_with_two_and_reaches_another_process_as_it_is(error: LabelGapError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(error, LabelGapError) and error.exit_code == 2
    assert isinstance(error, ValueError) is not isinstance(error, RunError)
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


def test_an_unknown_name_is_answered_with_the_nearest_or_with_all() -> None:
    known = {"an": "assume negative", "ll-ct": "large loss, temporary correction", "role": "online estimation"}
    error = UnknownNameError("method", "ll-tc", known, "`labelgap methods` lists all 38.", about=known)
    assert str(error).endswith("'ll-ct' (large loss, temporary correction)? `labelgap methods` lists all 38.")
    assert (error.kind, error.name, error.nearest) == ("method", "ll-tc", "ll-ct")
    error = UnknownNameError("split", "zzz", ["val", "test", "train"])
    assert str(error).endswith("There is: test, train, val.") and error.nearest is None
    many = str(UnknownNameError("class", "#", [f"class {number:04}" for number in range(5000)]))
    assert many.endswith("class 0038, class 0039 and 4,960 more.") and len(many) < 700
    assert str(UnknownNameError("method", "an", [], "Register one.")) == "there is no method 'an'. Register one."


def test_problems_are_listed_in_order_of_their_lines_equal_ones_once_and_some_of_every_kind() -> None:
    found = [Problem(line, "bad" if line < 50 else f"photos/{line}.jpg does not exist") for line in range(140, 0, -1)]
    found += [Problem(900, "'dgo' under dog: a cell is 1"), Problem(1000, "no image is named")]
    error = ProblemsError("tags.csv", found, shown=5)
    assert [problem.line for problem in error.problems] == [*range(1, 141), 900, 1000]
    assert str(error).splitlines() == [
        "tags.csv cannot be used yet: 142 problems, nothing was trained",
        "  line 1     bad (and 48 more like it)",
        "  line 50    photos/50.jpg does not exist",
        "  line 51    photos/51.jpg does not exist",
        "  line 900   'dgo' under dog: a cell is 1",
        "  line 1000  no image is named          …and 89 more",
    ]
