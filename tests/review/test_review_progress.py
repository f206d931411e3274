"""What stands for every candidate, how fast somebody is, and the curve of what was found."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.review import Review
from labelgap.review.candidates import WRONG
from labelgap.review.events import Decision, Undo
from labelgap.review.formatting import parse_duration
from labelgap.review.progress_chart import progress_chart


def say(review: Review, number: int, value: int, by: str = "anna") -> str:
    request = uuid.uuid4().hex
    made = Decision(review.candidates.entry(number), value, request)
    review.store.append([made], reviewer=by, client=f"{by}-window")
    return request


def test_it_follows_decisions_and_undos_as_they_come(review: Review) -> None:
    standing = review.standing
    first = say(review, 5, PRESENT)
    say(review, 7, UNKNOWN, by="ben")
    standing.refresh()
    assert standing.decided.sum() == 2 and standing.value[5] == PRESENT and standing.version[5] == 1
    assert standing.reviewers[standing.reviewer[7]] == "ben"
    review.store.append([Undo(first, "undo-0001")], reviewer="anna", client="anna-window")
    standing.refresh()
    assert not standing.decided[5] and standing.version[5] == 0 and standing.touched[5] == 3 == standing.last
    again = Review(review.folder)
    assert np.array_equal(again.standing.decided, standing.decided)
    assert np.array_equal(again.standing.version, standing.version)
    assert np.array_equal(again.standing.touched, standing.touched)
    again.close()


def test_found_is_a_missing_label_that_is_there_or_a_wrong_one_that_was_corrected(review: Review) -> None:
    kinds, observed = review.candidates.columns.kind, review.candidates.columns.observed
    missing, other = np.flatnonzero(kinds != WRONG)[:2].tolist()
    wrong, right, difficult = np.flatnonzero(kinds == WRONG)[:3].tolist()
    say(review, missing, PRESENT)
    say(review, other, ABSENT)
    say(review, wrong, ABSENT if observed[wrong] == PRESENT else PRESENT)
    say(review, right, int(observed[right]))
    say(review, difficult, UNKNOWN)
    progress = review.progress()
    assert (progress.decided, progress.found, progress.wrong_decided, progress.corrected) == (2, 1, 3, 1)
    assert progress.total + progress.wrong == len(review.candidates)
    assert review.standing.curve().tolist() == [1, 1]


def test_classes_add_up_to_the_whole(review: Review) -> None:
    for number in range(30):
        say(review, number, PRESENT if number % 3 else ABSENT)
    progress, classes = review.progress(), review.classes()
    assert sum(row.total for row in classes) == progress.total
    assert sum(row.decided for row in classes) == progress.decided == 30
    assert sum(row.found for row in classes) == progress.found == 20
    columns, open_ones = review.candidates.columns, ~review.standing.decided
    scores = columns.score[open_ones & (columns.kind != WRONG)]
    assert sum(row.expected for row in classes) == pytest.approx(float(scores.sum()), rel=1e-4)


def test_what_was_made_once_is_made_again_after_a_decision(review: Review) -> None:
    made = []
    for _ in range(2):
        review.remembered("a", lambda: made.append(1))
    say(review, 0, PRESENT)
    review.remembered("a", lambda: made.append(2))
    assert made == [1, 2]


def test_speed_is_over_the_last_minutes_and_leaves_pauses_out(review: Review) -> None:
    for number in range(31):
        say(review, number, PRESENT)
    standing = review.standing
    now = datetime.now(UTC)
    assert standing.per_minute("anna", now) is None, "a moment says nothing"
    events = list(standing._recent)
    standing._recent.clear()
    for number, event in enumerate(events):
        pause = 200 if number <= 15 else 0
        when = now - timedelta(seconds=pause + 2 * (30 - number))
        standing._recent.append(type(event)(**{**vars(event), "time": when}))
    assert standing.per_minute("anna", now) == pytest.approx(30)
    assert standing.per_minute("ben", now) is None
    assert standing.per_minute("anna", now + timedelta(minutes=10)) is None


def test_the_curve_names_its_ends_and_has_no_style_of_its_own() -> None:
    drawn = progress_chart(np.cumsum(np.arange(2000) % 4 == 0), share=0.1)
    assert "500 found by reviewing 2,000" in drawn and "2,000 reviewed" in drawn and 'class="random"' in drawn
    assert drawn.count(",") < 400 and "style=" not in drawn and "begins with" in progress_chart(np.zeros(0, np.int64))


@pytest.mark.parametrize("text", ["", "m", "-5m", "0s", "1d", "15 minutes", "9" * 30, "8000h"])
def test_a_budget_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="15m"):
        parse_duration(text)
