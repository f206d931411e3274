"""A photo that is there twice is asked about once; the answer is stored, withdrawn and written for both."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from tests.review.http_client import run_server, tiles
from tests.review.samples import TAGS, make_photos

import labelgap as lg
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.review import Review, create_random_review, decisions
from labelgap.review.apply import apply_decisions

ROWS = "copy.jpg,train,,,\nother.jpg,train,,,1\n"


@pytest.fixture
def review(tmp_path: Path) -> Iterator[Review]:
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


def test_one_answer_for_all_copies(review: Review, tmp_path: Path) -> None:
    copies = {"0.jpg", "copy.jpg", "other.jpg"}
    with run_server(review) as client:
        assert "of copies of an image: each is asked once" in client.request("/").text
        page = client.request("/class/1").text
        ((identity, _),) = [each for each in asked(page) if each[1] in copies]
        assert "×3" in page and "copies as well" in client.request(f"/detail/{identity}").text
        request = uuid.uuid4().hex
        before = review.progress()
        client.send([{"request_id": request, "id": identity, "value": PRESENT, "base_version": 0}])
        assert {made.image for made in decisions(review.path)} == copies
        assert review.progress().decided == before.decided + 3 and review.progress().found == 3
        assert [name for _, name in asked(client.request("/class/1?show=open").text) if name in copies] == []
        undo = client.send([{"request_id": uuid.uuid4().hex, "undoes": request}])
        assert undo.json["results"][0]["value"] == "" and len(decisions(review.path)) == 0
        assert review.progress() == before
        client.decide(identity, ABSENT, undo.json["results"][0]["version"])
        ((identity, _),) = [each for each in asked(client.request("/class/0").text) if each[1] in copies]
        client.decide(identity, PRESENT)  # the cat, which 0.jpg knows already
        hidden = np.setdiff1d(np.arange(len(review.candidates.columns.images)), review.image_order)
        identity = f"{int(review.candidates.columns.image_ids[hidden[0]]):016x}"
        assert client.request(f"/image/{identity}").status == 404
    text = apply_decisions(review.folder, tmp_path / "better.csv").path.read_text()
    assert "\n0.jpg,train,1,0,\n" in text and "copy.jpg,train,1,0,\nother.jpg,train,1,0,1\n" in text


def test_every_question_comes_up_once_and_the_count_ends_exact(review: Review) -> None:
    questions = np.concatenate([review.listed(number) for number in range(3)])
    assert len(questions) == int(review.copies.shown.sum()) == len(review.candidates) - 4  # of 2 cats, 3 dogs, 2 owls
    by_image = np.concatenate([review.of_image(int(image)) for image in review.image_order])
    assert sorted(by_image) == sorted(questions)
    made = [review.decision(int(number), ABSENT, f"request-{number:05d}", 0) for number in questions]
    review.store.append(made, reviewer="anna", client="window-1")
    estimate, progress = review.estimate(), review.progress()
    assert progress.decided == progress.total == len(review.candidates)
    assert estimate is not None and estimate.undecided == 0 and estimate.found == 0


def test_a_known_label_of_a_copy_stays(review: Review, tmp_path: Path) -> None:
    (number,) = [number for number in review.listed(0) if review.copies.of(review.candidates.key(int(number)))]
    for answer, value in enumerate((UNKNOWN, ABSENT)):
        made = review.decision(int(number), value, f"request-{answer}", answer)
        assert [key.image for key in made.copies] in (["copy.jpg"], ["other.jpg"])
        review.store.append([made], reviewer="anna", client="window-1")
    text = apply_decisions(review.folder, tmp_path / "better.csv").path.read_text()
    assert "\n0.jpg,train,1,," in text and "\ncopy.jpg,train,0,," in text


def test_a_copy_that_was_decided_alone_leaves_the_question_open(review: Review) -> None:
    (number,) = [number for number in review.listed(1) if review.copies.of(review.candidates.key(int(number)))]
    alone = review.decision(int(number), PRESENT, "request-alone", 0)
    review.store.append([type(alone)(alone.key, PRESENT, "request-alone")], reviewer="anna", client="window-1")
    with closing(Review(review.folder)) as again:
        shown = [int(row) for row in again.listed(1) if again.copies.of(again.candidates.key(int(row)))]
        assert len(shown) == 1 and shown != [int(number)] and not again.current.decided[shown[0]]
