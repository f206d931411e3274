"""What stands for every candidate, how fast somebody is, and the curve of what was found."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from tests.review.samples import decide

from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.review import Review, open_review_folder
from labelgap.review.candidates import MISSING, WRONG
from labelgap.review.queues import STEP, USUAL_SECONDS, class_rates
from labelgap.review.store import Undo
from labelgap.review.views import grid_context, image_context, overview_context


def test_it_follows_decisions_and_undos_as_they_come(review: Review) -> None:
    current = review.current
    first = decide(review, [5])
    decide(review, [7], UNKNOWN, by="ben")
    assert current.decided.sum() == 2 and current.value[5] == PRESENT and current.version[5] == 1
    assert current.reviewers[current.reviewer[7]] == "ben"
    review.store.append([Undo(first, "undo-0001")], reviewer="anna", client="anna-window")
    current.refresh()
    assert not current.decided[5] and current.version[5] == 0 and current.last_event[5] == 3 == current.last_id
    with closing(Review(review.folder)) as again:
        for name in ("decided", "version", "last_event"):
            assert np.array_equal(getattr(again.current, name), getattr(current, name))


def test_found_is_a_missing_label_that_is_there_or_a_wrong_one_that_was_corrected(review: Review) -> None:
    kinds, observed = review.candidates.columns.kind, review.candidates.columns.observed
    missing, other = np.flatnonzero(kinds != WRONG)[:2].tolist()
    wrong, right, difficult = np.flatnonzero(kinds == WRONG)[:3].tolist()
    decide(review, [missing], PRESENT)
    decide(review, [other], ABSENT)
    decide(review, [wrong], ABSENT if observed[wrong] == PRESENT else PRESENT)
    decide(review, [right], int(observed[right]))
    decide(review, [difficult], UNKNOWN)
    progress = review.progress()
    assert (progress.decided, progress.found, progress.wrong_decided, progress.corrected) == (2, 1, 3, 1)
    assert progress.total + progress.wrong == len(review.candidates)
    assert review.current.found_curve().tolist() == [1, 1]


@pytest.mark.parametrize("estimated", [False, True])
def test_a_class_that_disappoints_moves_down_and_one_that_surprises_moves_up(
    folder: Path, estimated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    review = Review(open_review_folder(folder))
    columns = review.candidates.columns
    if estimated:
        missing = {row.name: round(columns.score[columns.class_number == row.number].sum()) for row in review.classes()}
        stored = {"missing": sum(missing.values()), "range": None, "known": 100, "missing_per_class": missing}
        monkeypatch.setitem(review.candidates.metadata, "estimate", stored)

    def order() -> list[int]:
        return [row.number for row in overview_context(review, "ben")["classes"]]

    def rate(number: int) -> float:
        return float(class_rates(review, "ben")[number])  # of somebody who has not answered: at the usual speed

    first, last = order()[0], order()[-1]
    listed = review.candidates.listed(first)
    following = columns.score[listed[columns.kind[listed] == MISSING]][:STEP]
    before, after = rate(first), dict[int, float]()
    expected = float(following.sum()) / (STEP * USUAL_SECONDS / 60)
    assert before == pytest.approx(expected, rel=1e-5), "without answers the scores alone count"
    decide(review, review.candidates.listed(first)[:8], ABSENT)
    assert rate(first) < before / 2
    for value in (ABSENT, PRESENT):  # of the same candidates, so that the next page is the same
        decide(review, review.candidates.listed(last)[:8], value)
        after[value] = rate(last)
    assert after[PRESENT] > 1.3 * after[ABSENT]
    assert order().index(first) > 3 and overview_context(review, "ben")["next"].number == order()[0]
    decide(review, review.candidates.listed(first)[8:9], UNKNOWN)
    better = grid_context(review, first, "ben", wrong=False, decided=False, skip=0, size=60)["better"]
    assert better is None, "nine answers are too few to give a class up"
    decide(review, review.candidates.listed(first)[9:10], ABSENT)
    better = grid_context(review, first, "ben", wrong=False, decided=False, skip=0, size=60)["better"]
    assert better is not None and better["rate"] >= 2 * better["here"]
    review.close()


def test_speed_is_over_the_last_minutes_and_leaves_pauses_out(review: Review) -> None:
    decide(review, range(31))
    current = review.current
    now = datetime.now(UTC)
    assert current.per_minute("anna", now) is None, "a moment says nothing"
    events = list(current.recent)
    current.recent.clear()
    for number, event in enumerate(events):
        pause = 200 if number <= 15 else 0
        when = now - timedelta(seconds=pause + 2 * (30 - number))
        current.recent.append(type(event)(**{**vars(event), "time": when}))
    assert current.per_minute("anna", now) == pytest.approx(30)
    assert current.per_minute("ben", now) is None
    assert current.per_minute("anna", now + timedelta(minutes=10)) is None


def test_one_image_at_a_time_continues_with_the_first_that_is_open(review: Review) -> None:
    first, second, third, *_ = review.image_order.tolist()
    addresses = [f"{int(review.candidates.columns.image_ids[image]):016x}" for image in (first, second, third)]
    assert overview_context(review, "anna")["first_image"] == addresses[0]
    decide(review, [*review.of_image(first)[:-1], *review.of_image(second)], ABSENT)
    assert overview_context(review, "anna")["first_image"] == addresses[0], "a label of it is open"
    assert image_context(review, first)["next"] == addresses[2], "the second is done"
    held = review.of_image(third)
    assert image_context(review, first, held)["next"] not in addresses, "somebody else looks at the third"
    decide(review, review.of_image(first)[-1:], ABSENT)
    assert overview_context(review, "anna")["first_image"] == addresses[2]
    last = image_context(review, int(review.image_order[-1]))
    assert last["next"] == "" and image_context(review, first)["previous"] == ""
