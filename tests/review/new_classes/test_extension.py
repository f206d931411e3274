"""The candidates of an added class: every image, unknown, after those that there were."""

from __future__ import annotations

import uuid

import numpy as np
import pytest

from labelgap.labels.codes import UNKNOWN
from labelgap.review import Review
from labelgap.review.candidates import MISSING, Candidates, candidate_id
from labelgap.review.new_classes import ADDED_SCORE, extend_candidates
from labelgap.review.store import LabelKey

REVIEW = uuid.UUID(int=7).hex


@pytest.fixture
def candidates(review: Review) -> Candidates:
    return review.candidates


@pytest.fixture
def images(review: Review) -> list[tuple[str, str]]:
    return [("train", name) for name in review.folder.data.train.labels.images] + [("val", "0.png"), ("val", "1.png")]


def add(candidates: Candidates, images: list[tuple[str, str]], *names: str, review: str = REVIEW) -> Candidates:
    return extend_candidates(candidates, names, images, review)


def test_what_there_was_keeps_its_number_its_id_and_its_place(
    candidates: Candidates, images: list[tuple[str, str]]
) -> None:
    more = add(candidates, images, "zebra")
    old, new = candidates.columns, more.columns
    assert new.images[: len(old.images)] == old.images and more.classes == (*candidates.classes, "zebra")
    for name in ("image", "class_number", "score", "kind", "observed", "rank", "class_rank", "random_rank", "ids"):
        before, after = getattr(old, name), getattr(new, name)
        assert after.dtype == before.dtype and np.array_equal(after[: len(before)], before, equal_nan=name == "score")
    for number in range(len(candidates.classes)):
        for wrong in (False, True):
            assert np.array_equal(more.listed(number, wrong), candidates.listed(number, wrong))
    assert np.array_equal(more.image_order[: len(old.images)], candidates.image_order)


def test_the_class_asks_about_every_image_once(candidates: Candidates, images: list[tuple[str, str]]) -> None:
    more = add(candidates, images, "zebra")
    columns, rows = more.columns, more.listed(len(candidates.classes))
    assert sorted(more.key(number) for number in rows) == sorted(LabelKey(*key, "zebra") for key in images)
    assert len(set(columns.images)) == len(columns.images) and set(columns.images) == {
        *candidates.columns.images,
        *images,
    }
    assert len(np.unique(columns.ids)) == len(columns.ids) and len(np.unique(columns.image_ids)) == len(columns.images)
    assert set(columns.kind[rows].tolist()) == {MISSING} and set(columns.observed[rows].tolist()) == {UNKNOWN}
    assert np.allclose(columns.score[rows], ADDED_SCORE)
    assert sorted(columns.class_rank[rows].tolist()) == list(range(1, len(images) + 1))
    for number in rows[:5].tolist():
        key = more.key(number)
        assert more.index(candidate_id(key)) == number == more.number_of(key)


def test_the_order_is_random_the_same_after_a_restart_and_another_in_another_review(
    candidates: Candidates, images: list[tuple[str, str]]
) -> None:
    def order(made: Candidates, name: str) -> list[str]:
        return [made.key(number).image for number in made.listed(made.classes.index(name))]

    first = add(candidates, images, "zebra", "gnu")
    again = add(add(candidates, images, "zebra"), images, "zebra", "gnu")
    assert order(first, "zebra") == order(again, "zebra") and order(first, "gnu") == order(again, "gnu")
    assert np.array_equal(first.columns.ids, again.columns.ids)
    assert np.array_equal(first.columns.random_rank, again.columns.random_rank)
    names = [name for _, name in images]
    other = order(add(candidates, images, "zebra", review=uuid.UUID(int=8).hex), "zebra")
    assert len({tuple(each) for each in (names, order(first, "zebra"), order(first, "gnu"), other)}) == 4


def test_a_tenth_is_the_random_draw_which_does_not_follow_the_order(candidates: Candidates) -> None:
    many = [("train", f"{number}.png") for number in range(3000)]
    more = add(candidates, many, "zebra")
    own = more.columns.class_number == len(candidates.classes)
    drawn, rank = more.columns.random_rank[own], more.columns.class_rank[own]
    assert sorted(drawn[drawn > 0].tolist()) == list(range(1, 301))
    assert abs(np.corrcoef(drawn[drawn > 0], rank[drawn > 0])[0, 1]) < 0.2
    shown = more.listed(len(candidates.classes))[:400]
    assert 30 <= (more.columns.random_rank[shown] > 0).sum() <= 100
    few = add(candidates, many[:60], "zebra").columns
    assert (few.random_rank[few.class_number == len(candidates.classes)] > 0).all()
