"""A class that a person adds joins the open review: of this server, of another one, and after a restart."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from tests.review.live.preloaded_worker import preload_workers
from tests.review.new_classes.sample_album import COPY, is_bright
from tests.review.sample_photos import make_photos
from tests.waiting import PATIENCE, wait_until

from labelgap.labels.codes import PRESENT
from labelgap.review import Review, create_random_review, open_review_folder
from labelgap.review import new_classes as added_names
from labelgap.review.apply import apply_decisions
from labelgap.review.live import Ranking
from labelgap.review.queues import class_feed, lacks_examples
from labelgap.review.store import ASKED, LabelKey


@pytest.fixture
def review(album_run: Path) -> Iterator[Review]:
    with closing(Review(open_review_folder(album_run))) as opened:
        yield opened


def add(review: Review, name: str = "bright") -> int:
    review.added.add(name, "anna", review.candidates)
    review.refresh_classes()
    return review.candidates.classes.index(name)


def images(review: Review, class_number: int, near: np.ndarray | None = None) -> list[str]:
    review.current.refresh()
    return [
        review.candidates.key(number).image for number in class_feed(review, class_number, near=near).numbers.tolist()
    ]


def decide(review: Review, *names: str, value: int = PRESENT) -> None:
    numbers = [review.candidates.number_of(LabelKey("train", name, "bright")) for name in names]
    made = [review.decision(number, value, f"{number}-{value}-request", 0) for number in numbers if number is not None]
    review.store.append(made, reviewer="anna", client="window-1")


def test_the_class_is_there_at_once_with_every_image(review: Review) -> None:
    before, feeds = review.progress(), [class_feed(review, number).numbers.tolist() for number in range(2)]
    number = add(review)
    train = review.folder.data.train.labels.images
    asked = images(review, number)
    assert number == 2 and {*asked} | {COPY, "00.png"} == {*train} and len(asked) == len(train) - 1
    assert [class_feed(review, each).numbers.tolist() for each in range(2)] == feeds
    row = next(row for row in review.classes() if row.name == "bright")
    assert (row.total, row.decided) == (len(train), 0)
    assert review.progress().total == before.total + len(train)
    assert len(review.image_order) == len(train) - 1
    assert review.estimates().by_class[number] is None


def test_a_class_without_examples_stays_in_its_random_order_and_out_of_the_estimates(
    review: Review, monkeypatch: pytest.MonkeyPatch
) -> None:
    total, number = review.estimate(), add(review)
    order, count = images(review, number), len(review.candidates.columns.ids)
    made = Ranking(9, "missing", 12, np.arange(count, dtype=np.int32)[::-1], np.full(count, 0.5, np.float32))
    monkeypatch.setattr(review, "ranking", lambda aim="missing": made)
    assert lacks_examples(review, number) and images(review, number) == order and review.estimate() == total
    assert not any(lacks_examples(review, own) for own in range(number))
    decide(review, *order[:5])
    review.current.refresh()
    assert not lacks_examples(review, number) and images(review, number) != order[5:]


def test_another_server_and_a_restart_show_the_same_order(
    album_run: Path, review: Review, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(added_names, "INTERVAL", 0.0)
    with closing(Review(open_review_folder(album_run))) as other:
        _ = other.current, other.copies, other.image_order
        assert not other.added.changed()
        number = add(review)
        decide(review, next(name for name in images(review, number) if name not in (COPY, "00.png")))
        assert other.added.changed()
        other.refresh_classes()
        assert not other.added.changed() and other.candidates.classes == review.candidates.classes
        assert images(other, number) == images(review, number)
        assert other.progress() == review.progress() and other.progress().found == 1
    with closing(Review(open_review_folder(album_run), read_only=True)) as again:
        assert images(again, number) == images(review, number) and again.progress() == review.progress()


def test_an_answer_counts_for_the_copies_of_an_image_and_reaches_the_table(review: Review, tmp_path: Path) -> None:
    number = add(review)
    shown = next(name for name in images(review, number) if name in (COPY, "00.png"))
    decide(review, shown)
    assert {event.key.image for event in review.store.current()} == {COPY, "00.png"}
    assert next(row.decided for row in review.classes() if row.name == "bright") == 2
    written = apply_decisions(review.folder, tmp_path / "better.csv")
    lines = {line.partition(",")[0]: line.rpartition(",")[2] for line in written.path.read_text().splitlines()}
    assert (lines["image"], lines[COPY], lines["00.png"], lines["01.png"]) == ("bright", "1", "1", "")


def test_similar_images_come_first_and_a_ranking_follows_the_examples(
    review: Review, monkeypatch: pytest.MonkeyPatch
) -> None:
    preload_workers(monkeypatch)
    review.start_ranking()
    number = add(review)
    similarity = review.similar
    add(review, "striped")
    assert review.similar is similarity, "the same images: their features are not loaded again"
    example = next(name for name in images(review, number) if is_bright(name))
    image = review.candidates.columns.images.index(("train", example))
    near = review.similar.positions(image, PATIENCE)
    assert near is not None and not review.similar.problem
    similar = images(review, number, near)
    assert similar[0] == example and sum(map(is_bright, similar[:8])) >= 7
    assert {*class_feed(review, number, near=near).asked.tolist()} == {ASKED.index("other")}, (
        "nothing here is a random answer"
    )
    decide(review, *similar[:5])
    wait_until(lambda: (ranking := review.ranking()) is not None and ranking.decisions >= 5)
    bright = sum(map(is_bright, images(review, number)))
    assert sum(map(is_bright, images(review, number)[: bright + 2])) >= 0.7 * bright
    assert review.rankings is not None and not review.rankings.problem


def test_a_review_of_random_images_asks_about_its_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABELGAP_CACHE", str(tmp_path / "cache"))
    folder = create_random_review(make_photos(tmp_path), "train", 4, 0, tmp_path / "review")
    with closing(Review(folder)) as review:
        number = add(review)
        assert len(images(review, number)) == 4 and number == 3
        assert {*images(review, number)} >= {name for _, name in review.candidates.columns.images}
        assert review.estimates().by_class is not None
