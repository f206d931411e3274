"""Questions about images that are more than one: classes that a person adds, and photos that are there twice."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from tests.review.http_client import run_server, tiles
from tests.review.samples import COPY, TAGS, decide, make_photos

import labelgap as lg
from labelgap.core.errors import InputError
from labelgap.core.text import fold_name
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.labels.io.classes import describe_same_names
from labelgap.review import Review, create_random_review, decisions, open_review_folder
from labelgap.review import additions as added_names
from labelgap.review.additions import (
    MAX_NAME,
    SimilarImages,
    center_features,
    check_class_name,
    extend_candidates,
)
from labelgap.review.apply import apply_decisions
from labelgap.review.candidates import Candidates
from labelgap.review.live import Ranking
from labelgap.review.queues import class_feed, lacks_examples
from labelgap.review.store import LabelKey


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


def find(review: Review, *names: str) -> None:
    """Answer that images show the added class."""
    decide(review, [review.candidates.number_of(LabelKey("train", name, "bright")) or 0 for name in names])


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


def test_a_class_without_examples_stays_in_random_order(review: Review, monkeypatch: pytest.MonkeyPatch) -> None:
    total, number = review.estimate(), add(review)
    order, count = images(review, number), len(review.candidates.columns.ids)
    made = Ranking(9, "missing", 12, np.arange(count, dtype=np.int32)[::-1], np.full(count, 0.5, np.float32))
    monkeypatch.setattr(review, "ranking", lambda aim="missing": made)
    assert lacks_examples(review, number) and images(review, number) == order and review.estimate() == total
    assert not any(lacks_examples(review, own) for own in range(number))
    find(review, *order[:5])
    assert not lacks_examples(review, number) and images(review, number) != order[5:]


def test_another_server_shows_the_same_order(album_run: Path, review: Review, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(added_names, "INTERVAL", 0.0)
    with closing(Review(open_review_folder(album_run))) as other:
        _ = other.current, other.copies, other.image_order
        assert not other.added.changed()
        number = add(review)
        find(review, next(name for name in images(review, number) if name not in (COPY, "00.png")))
        assert other.added.changed()
        other.refresh_classes()
        assert not other.added.changed() and other.candidates.classes == review.candidates.classes
        assert images(other, number) == images(review, number)
        assert other.progress() == review.progress() and other.progress().found == 1
    with closing(Review(open_review_folder(album_run), read_only=True)) as again:
        assert images(again, number) == images(review, number) and again.progress() == review.progress()


def test_a_review_of_random_images_asks_about_its_images(photos: Review) -> None:
    asked = images(photos, add(photos))
    assert len(asked) == 5 and {*asked} >= {name for _, name in photos.candidates.columns.images}
    assert photos.estimates().by_class is not None


REVIEW = uuid.UUID(int=7).hex


@pytest.fixture
def candidates(review: Review) -> Candidates:
    return review.candidates


@pytest.fixture
def everything(review: Review) -> list[tuple[str, str]]:
    return [("train", name) for name in review.folder.data.train.labels.images] + [("val", "0.png"), ("val", "1.png")]


def extended(
    candidates: Candidates, everything: list[tuple[str, str]], *names: str, review: str = REVIEW
) -> Candidates:
    return extend_candidates(candidates, names, everything, review)


def test_a_tenth_is_the_random_draw_which_does_not_follow_the_order(candidates: Candidates) -> None:
    many = [("train", f"{number}.png") for number in range(3000)]
    more = extended(candidates, many, "zebra")
    own = more.columns.class_number == len(candidates.classes)
    drawn, rank = more.columns.random_rank[own], more.columns.class_rank[own]
    assert sorted(drawn[drawn > 0].tolist()) == list(range(1, 301))
    assert abs(np.corrcoef(drawn[drawn > 0], rank[drawn > 0])[0, 1]) < 0.2
    shown = more.listed(len(candidates.classes))[:400]
    assert 30 <= (more.columns.random_rank[shown] > 0).sum() <= 100
    other = extended(candidates, many, "zebra", review=uuid.UUID(int=8).hex)
    orders = [[made.key(number).image for number in made.listed(len(candidates.classes))] for made in (more, other)]
    assert len({tuple(each) for each in (*orders, [name for _, name in many])}) == 3, "another in another review"
    few = extended(candidates, many[:60], "zebra").columns
    assert (few.random_rank[few.class_number == len(candidates.classes)] > 0).all()


CLASSES = ("cat", "Straße", "caf\u00e9", "traffic light")


TYPED = {
    "  zebra ": "zebra",
    "fire   truck": "fire truck",
    "o\u0308l": "\u00f6l",
    "a\u200cb": "a\u200cb",
    '<b>"&': '<b>"&',
}
"""As it is typed, and as it is taken: without more than one blank, and in the shortest form of its letters."""
REFUSED = [
    *("", "a\x1b[2Jb", "a\u202eb", "\u200d", "x" * (MAX_NAME + 1)),  # not printable, or too long
    *("cat;dog", "SPLIT", "tags", "yes", "Notes"),  # with a meaning in tables, or in this one
    *("Cat", "ＣＡＴ", "STRASSE", "Cafe\u0301", "Traffic\u00a0 light"),  # there already
]


def test_a_name_is_taken_as_typed_but_for_blanks_and_the_form_of_its_letters() -> None:
    assert {typed: check_class_name(typed, CLASSES, taken=["notes"]) for typed in TYPED} == TYPED


@pytest.mark.parametrize("typed", REFUSED)
def test_a_name_that_cannot_be_used_is_refused(typed: str) -> None:
    with pytest.raises(InputError):
        check_class_name(typed, CLASSES, taken=["notes"])


@pytest.mark.parametrize(
    "typed", ["cat ", "c\u200dat", "cat\u200c", "cat\ufe0f", "ca\u034ft", "\u3164cat", "\u3164", "\u2800"]
)
def test_a_name_that_differs_by_what_nobody_sees_is_refused(typed: str) -> None:
    with pytest.raises(InputError):
        check_class_name(typed, CLASSES, taken=["notes"])
    assert describe_same_names({"cat": 2, typed: 1}) is not None or not fold_name(typed)


def order(features: np.ndarray, image: int) -> list[int]:
    """The images by their similarity to one."""
    places = SimilarImages(lambda: features.astype(np.float32)).positions(image, patience=60)
    assert places is not None
    return [int(each) for each in np.argsort(places)]


def test_the_cosine_is_that_of_the_formula() -> None:
    features = np.random.default_rng(0).normal(size=(600, 5)).astype(np.float32) + 3
    centered = features - features.mean(axis=0)
    expected = 1 - cdist(centered, centered[[7]], "cosine")[:, 0]
    similar = center_features(features.copy())
    assert similar @ similar[7] == pytest.approx(expected, abs=2e-5)
    found = order(features, 7)
    assert sorted(found) == list(range(600))
    assert found[:20] == [7, *sorted(set(range(600)) - {7}, key=lambda row: -expected[row])[:19]]


ROWS = "copy.jpg,train,,,\nother.jpg,train,,,1\n"


@pytest.fixture
def copied(tmp_path: Path) -> Iterator[Review]:
    """All labels of nine photos, two of them copies of 0.jpg: 0.jpg knows its cat, other.jpg its owl."""
    make_photos(tmp_path)
    for name in ("copy.jpg", "other.jpg"):
        shutil.copy(tmp_path / "photos" / "0.jpg", tmp_path / "photos" / name)
    (tmp_path / "tags.csv").write_text(TAGS + ROWS)
    data = lg.load("csv", tmp_path / "tags.csv", images=tmp_path / "photos", duplicates="exact")
    with closing(Review(create_random_review(data, "train", 99, 0, tmp_path / "review"))) as opened:
        yield opened


def asked(page: str) -> list[tuple[str, str]]:
    return [(tile["id"], tile["name"]) for tile in tiles(page)]


def test_one_answer_for_all_copies(copied: Review, tmp_path: Path) -> None:
    copies = {"0.jpg", "copy.jpg", "other.jpg"}
    with run_server(copied) as client:
        assert "of copies of an image: each is asked once" in client.request("/").text
        page = client.request("/class/1").text
        ((identity, _),) = [each for each in asked(page) if each[1] in copies]
        assert "×3" in page and "copies as well" in client.request(f"/detail/{identity}").text
        request = uuid.uuid4().hex
        before = copied.progress()
        client.send([{"request_id": request, "id": identity, "value": PRESENT, "base_version": 0}])
        assert {made.image for made in decisions(copied.path)} == copies
        assert copied.progress().decided == before.decided + 3 and copied.progress().found == 3
        assert [name for _, name in asked(client.request("/class/1?show=open").text) if name in copies] == []
        undo = client.send([{"request_id": uuid.uuid4().hex, "undoes": request}])
        assert undo.json["results"][0]["value"] == "" and len(decisions(copied.path)) == 0
        assert copied.progress() == before
        client.decide(identity, ABSENT, undo.json["results"][0]["version"])
        ((identity, _),) = [each for each in asked(client.request("/class/0").text) if each[1] in copies]
        client.decide(identity, PRESENT)  # the cat, which 0.jpg knows already
        hidden = np.setdiff1d(np.arange(len(copied.candidates.columns.images)), copied.image_order)
        identity = f"{int(copied.candidates.columns.image_ids[hidden[0]]):016x}"
        assert client.request(f"/image/{identity}").status == 404
    text = apply_decisions(copied.folder, tmp_path / "better.csv").path.read_text()
    assert "\n0.jpg,train,1,0,\n" in text and "copy.jpg,train,1,0,\nother.jpg,train,1,0,1\n" in text


def test_every_question_comes_up_once_and_the_count_ends_exact(copied: Review) -> None:
    questions = np.concatenate([copied.listed(number) for number in range(3)])
    assert len(questions) == int(copied.copies.shown.sum()) == len(copied.candidates) - 4  # of 2 cats, 3 dogs, 2 owls
    by_image = np.concatenate([copied.of_image(int(image)) for image in copied.image_order])
    assert sorted(by_image) == sorted(questions)
    made = [copied.decision(int(number), ABSENT, f"request-{number:05d}", 0) for number in questions]
    copied.store.append(made, reviewer="anna", client="window-1")
    estimate, progress = copied.estimate(), copied.progress()
    assert progress.decided == progress.total == len(copied.candidates)
    assert estimate is not None and estimate.undecided == 0 and estimate.found == 0


def test_a_known_label_of_a_copy_stays(copied: Review, tmp_path: Path) -> None:
    (number,) = [number for number in copied.listed(0) if copied.copies.of(copied.candidates.key(int(number)))]
    for answer, value in enumerate((UNKNOWN, ABSENT)):
        made = copied.decision(int(number), value, f"request-{answer}", answer)
        assert [key.image for key in made.copies] in (["copy.jpg"], ["other.jpg"])
        copied.store.append([made], reviewer="anna", client="window-1")
    text = apply_decisions(copied.folder, tmp_path / "better.csv").path.read_text()
    assert "\n0.jpg,train,1,," in text and "\ncopy.jpg,train,0,," in text
