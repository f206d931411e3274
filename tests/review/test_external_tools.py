"""Candidates to Label Studio and FiftyOne, and decisions back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.review.samples import Row, write_candidates

from labelgap.core.errors import InputError, UnknownNameError
from labelgap.labels.codes import ABSENT, PRESENT
from labelgap.review import Review, decisions
from labelgap.review.external_tools import export_candidates, import_decisions

ROWS: list[Row] = [
    ("0.jpg", "train", "dog", 0.9, "missing", -1, 1, 1),
    ("0.jpg", "train", "owl", 0.6, "missing", -1, 2, 1),
    ("3.jpg", "train", "cat", 0.4, "random", -1, 1, 1),
    ("5.jpg", "val", "dog", 0.3, "missing", -1, 3, 2),
]


@pytest.fixture
def photos_review(photos: Review) -> Iterator[Review]:
    write_candidates(photos.path / "candidates.parquet", ROWS, photos.folder.data)
    with closing(Review(photos.folder)) as opened:
        yield opened


def load(path: Path) -> Any:
    return json.loads(path.read_text())


def said(review: Review) -> dict[tuple[str, str], int]:
    return {(made.image, made.class_name): made.value for made in decisions(review.path)}


def test_label_studio_gets_candidates_as_predictions_and_gives_decisions(photos_review: Review, tmp_path: Path) -> None:
    out = tmp_path / "tasks.json"
    written = export_candidates(photos_review, "labelstudio", out)
    assert written.paths == (out, tmp_path / "tasks.xml")
    tasks = load(out)
    assert [task["data"]["name"] for task in tasks] == ["0.jpg", "3.jpg", "5.jpg"]
    (prediction,) = tasks[0]["predictions"]
    assert prediction["result"][0]["value"]["choices"] == ["dog", "owl"]
    assert prediction["score"] == pytest.approx(0.9)
    assert tasks[0]["annotations"][0]["result"][0]["value"]["choices"] == ["cat"]

    choice = {"to_name": "image", "type": "choices"}
    tasks[0]["annotations"][0]["result"] = [
        {**choice, "from_name": "present", "value": {"choices": ["cat", "dog"]}},
        {**choice, "from_name": "absent", "value": {"choices": ["owl"]}},
    ]
    out.write_text(json.dumps(tasks))
    came = import_decisions(photos_review, "labelstudio", out, "ben")
    assert (came.images, came.decided, came.withdrawn) == (3, 2, 0)
    assert said(photos_review) == {("0.jpg", "dog"): PRESENT, ("0.jpg", "owl"): ABSENT}
    assert {event.kind for event in photos_review.store.events()} == {"missing"}
    again = import_decisions(photos_review, "labelstudio", out, "ben")
    assert again.decided == 0 and len(photos_review.store.events()) == 2


def test_fiftyone_gets_candidates_as_a_field_and_gives_decisions(photos_review: Review, tmp_path: Path) -> None:
    out = tmp_path / "samples.json"
    export_candidates(photos_review, "fiftyone", out)
    file = load(out)
    assert "candidates" in file["sample_fields"]
    (first, *_) = file["samples"]
    labels = [(label["label"], round(label["confidence"], 2)) for label in first["candidates"]["classifications"]]
    assert labels == [("dog", 0.9), ("owl", 0.6)]
    first["negative_labels"]["classifications"] += [{"_cls": "Classification", "label": "dog"}]
    first["positive_labels"]["classifications"] = []
    file["samples"][2]["positive_labels"]["classifications"] += [{"_cls": "Classification", "label": "owl"}]
    out.write_text(json.dumps(file))
    came = import_decisions(photos_review, "fiftyone", out, "ben")
    assert said(photos_review) == {("0.jpg", "dog"): ABSENT, ("5.jpg", "owl"): PRESENT}
    assert came.withdrawn == 1, "cat of 0.jpg was taken off there, and nothing is made of that here"
    assert [event.kind for event in photos_review.store.events()] == ["missing", "other"]


def test_what_does_not_fit_is_said(photos_review: Review, review: Review, tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'labelstudio'"):
        export_candidates(photos_review, "label-studio", tmp_path / "a.json")
    with pytest.raises(UnknownNameError):
        import_decisions(photos_review, "cvat", tmp_path / "a.json", "ben")
    with pytest.raises(InputError, match="no image files"):
        export_candidates(review, "labelstudio", tmp_path / "a.json")
    out = tmp_path / "tasks.json"
    export_candidates(photos_review, "labelstudio", out)
    text = out.read_text()
    out.write_text(text.replace('"name":"0.jpg"', '"name":"9.jpg"'))
    with pytest.raises(InputError, match=r"9\.jpg"):
        import_decisions(photos_review, "labelstudio", out, "ben")
    out.write_text(text)
    interface = tmp_path / "tasks.xml"
    interface.write_text(interface.read_text().replace("owl", "bat"))
    with pytest.raises(InputError, match=r"bat|owl"):
        import_decisions(photos_review, "labelstudio", out, "ben")
    assert photos_review.store.events() == []
