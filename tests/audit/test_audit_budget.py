"""The budget curve against counting by hand."""

from __future__ import annotations

import numpy as np
import pytest

from labelgap.audit.budget import budget_curve
from labelgap.core.errors import InputError


def test_the_curve_counts_what_is_there_among_the_first() -> None:
    answers = np.random.default_rng(0).integers(-1, 2, size=40)
    curve = budget_curve(answers, missing=20, unknown=100)
    for reviewed in range(41):
        assert curve.share_at(reviewed) == sum(answer == 1 for answer in answers[:reviewed]) / 20
    assert curve.share_at(999) == curve.share_at(40)
    assert curve.random_share_at(25) == 0.25 and curve.random_share_at(999) == 1.0


def test_how_many_to_review_for_a_share_is_the_first_that_reaches_it() -> None:
    curve = budget_curve([0, 1, 0, 1, 1], missing=4, unknown=50)
    assert [curve.reviewed_for(share) for share in (0.0, 0.25, 0.5, 0.75)] == [0, 2, 4, 5]
    assert curve.reviewed_for(1.0) is None


def test_nothing_missing_or_nothing_reviewed_is_no_problem() -> None:
    assert budget_curve([], missing=3, unknown=9).share_at(5) == 0.0
    assert budget_curve([0, 0], missing=0, unknown=0).share_at(2) == 0.0
    with pytest.raises(InputError, match="neither is below 0"):
        budget_curve([1], missing=-1, unknown=5)
    with pytest.raises(InputError, match="answers"):
        budget_curve([2], missing=1, unknown=5)
