from __future__ import annotations

import json
import re
import sys
import uuid
from contextlib import closing
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from syrupy.assertion import SnapshotAssertion
from tests.cli.conftest import QUICK, Printed, Screen, call
from tests.review.samples import TAGS, make_photos
from tests.sample_photos import write_small_photos

from labelgap.data import load
from labelgap.labels import Revision, Revisions
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.review import Review, decisions, open_review_folder
from labelgap.review.database import FILE
from labelgap.review.store import SECOND, Decision, DecisionStore, LabelKey
from labelgap.training.config import RunConfig, write_config


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    make_photos(tmp_path)
    return tmp_path


DRAW = ("review", "tags.csv", "--images", "photos", "--duplicates", "off", "--split", "train", "--random", "5")


def decide(folder: str, *said: tuple[str, str, int], by: str = "anna", kind: str = "other") -> None:
    store = DecisionStore(Path(folder) / FILE)
    keys = [(LabelKey("train", image, name), value) for image, name, value in said]
    made = [Decision(key, value, uuid.uuid4().hex, kind=kind) for key, value in keys]
    store.append(made, reviewer=by, client=f"{by}-window")
    store.close()


@pytest.fixture
def reviewed(photos: Path) -> Path:
    """A review of five random photos with four decisions."""
    assert call(*DRAW, "--summary") == 0
    decide("tags-review", ("0.jpg", "dog", PRESENT), ("0.jpg", "owl", ABSENT), ("2.jpg", "owl", UNKNOWN))
    decide("tags-review", ("3.jpg", "cat", PRESENT), by="ben")
    return photos


def test_a_review_without_a_run_says_how_far_it_is(photos: Path, screen: Screen, snapshot: SnapshotAssertion) -> None:
    assert screen(*DRAW, "--summary") == snapshot
    assert (photos / "tags-review" / "candidates.parquet").exists()
    assert screen.json(*DRAW, "--out", "mine")["progress"]["total"] == 9 and (photos / "mine").is_dir()


def test_a_report_says_what_was_decided_since(photos: Path, screen: Screen, snapshot: SnapshotAssertion) -> None:
    data = ("tags.csv", "--images", "photos", "--duplicates", "off")
    assert call("train", *data, *QUICK, "--out", "my runs/a") == 0
    assert call("review", "my runs/a", "--random", "5", "--split", "train", "--summary") == 0
    assert screen("report", "my runs/a") == "report    my runs/a/report.html\n", "nothing is decided yet"
    decide("my runs/a", ("0.jpg", "dog", PRESENT))
    decide("my runs/a-review", ("0.jpg", "dog", PRESENT), ("0.jpg", "owl", ABSENT))
    assert screen("report", "my runs/a") == snapshot
    assert call("apply", "my runs/a", "--out", "better.csv") == 0
    Path("my runs/a/review.sqlite").write_bytes(b"nothing")
    assert "note      my runs/a/review.sqlite" in screen("report", "my runs/a")


def test_the_summary_tells_agreement(reviewed: Path, screen: Screen, snapshot: SnapshotAssertion) -> None:
    decide("tags-review", ("0.jpg", "dog", PRESENT), ("0.jpg", "owl", PRESENT), by="ben", kind=SECOND)
    decide("tags-review", ("3.jpg", "cat", UNKNOWN), by="anna", kind=SECOND)
    assert screen("review", "tags-review", "--summary") == snapshot
    told = screen.json("review", "tags-review")
    assert told["agreement"]["total"]["pairs"] == 2 and told["agreement"]["people"][0]["people"] == ["anna", "ben"]
    assert [person["second"] for person in told["people"]] == [1, 2] and told["reviewers"] == {"anna": 3, "ben": 1}
    first, second = told["disagreements"]
    assert (first["image"], first["class_name"]) == ("0.jpg", "owl")
    assert first["first"] == {"reviewer": "anna", "answer": "no"}
    assert second["second"] == {"reviewer": "anna", "answer": "can't tell"}


def test_apply_writes_a_table_to_train_on(reviewed: Path, screen: Screen, snapshot: SnapshotAssertion) -> None:
    assert screen("apply", "tags-review", "--out", "better.csv") == snapshot(name="one")
    assert Path("tags.csv").read_text() == TAGS
    data = load("better.csv", images="photos", duplicates="off")
    assert data.train.labels.to_dense()[0].tolist() == [PRESENT, PRESENT, ABSENT]
    assert screen.json("inspect", "better.csv", "--images", "photos")["whole"]["present"] == 6 + 2
    assert call(*DRAW, "--out", "other", "--summary") == 0
    decide("other", ("0.jpg", "dog", ABSENT), ("3.jpg", "cat", PRESENT), by="ben")
    assert screen("apply", "tags-review", "other", "--out", "both.csv") == snapshot(name="contradicted")


def test_revisions_takes_back_without_deleting(reviewed: Path, screen: Screen, snapshot: SnapshotAssertion) -> None:
    def listed(*options: str) -> str:
        return re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "TIME", screen("revisions", "tags-review", *options))

    assert listed() == snapshot(name="list")
    assert listed("revert", "1") == snapshot(name="reverted")
    said = listed("list")
    assert "(undone)" in said and "reverted 1" in said
    assert len(decisions("tags-review")) == 3

    since = ("--since", "2001-01-01T00:00+00:00", "--reviewer", "anna")
    for options, left in ((("--reviewer", "ben"), {"anna"}), (since, set()), (("--all",), set())):
        assert call("revisions", "tags-review", "revert", *options) == 0
        assert {made.author for made in decisions("tags-review")} == left
        decide("tags-review", *[("0.jpg", "dog", PRESENT)] * (options == since))
    assert len(screen.json("revisions", "tags-review", "list")) == 10
    assert "and 2 before" in listed("list", "--limit", "2", "--reviewer", "anna")


def test_revisions_of_a_method_are_listed_too(photos: Path, printed: Printed, screen: Screen) -> None:
    data = load("tags.csv", images="photos", duplicates="off")
    recipe = {"name": "csv", "path": "tags.csv", "options": {"images": "photos", "duplicates": "off"}, "steps": []}
    names = {"method": "ll-cp", "why": None, "backbone": "small-cnn", "protocol": "linear", "select": "last"}
    numbers = {"epochs": 3, "lr": 0.1, "backbone_lr": 0.1, "batch_size": 4, "flip": False, "seed": 0, "trace": "off"}
    Path("run").mkdir()
    write_config(Path("run"), RunConfig.checked(data=recipe, classes=data.classes, **names, **numbers))
    Path("run/metrics.jsonl").write_text("")
    made = [Revision(f"{row}.jpg", "owl", PRESENT, "ll-cp", epoch=2) for row in (0, 2, 4)]
    Revisions(made).to_parquet("run/revisions.parquet")
    decide("run", ("0.jpg", "dog", ABSENT))
    said = printed("revisions", "run", "list", "--limit", "2")
    assert "no                     dog · 0.jpg" in said and "owl · 4.jpg" in said and "1 before, in rev" in said
    assert [each["source"] for each in screen.json("revisions", "run", "list")] == ["review", "ll-cp", "ll-cp", "ll-cp"]
    assert "1 by review, 3 by ll-cp" in printed("apply", "run", "--out", "both.csv", "--source", "ll-cp")
    assert "no 2 " not in printed("review", "run", "--random", "2", "--summary")
    assert "no 300" in printed("review", "run", "--random", "300", "--out", "all", "--summary")
    assert {*pq.read_table("run-review/candidates.parquet")["split"].to_pylist()} == {"val"}
    assert "labelgap audit run" in printed("review", "run", code=2)


def test_random_images_give_an_accuracy_out_of_fold(printed: Printed) -> None:
    write_small_photos(Path("photos"), 24)
    rows = (f"{number:02d}.jpg,{'red' if number % 2 else 'green'}" for number in range(24))
    Path("tags.csv").write_text("image,present\n" + "\n".join(rows) + "\n")
    album = ("tags.csv", "--images", "photos", "--duplicates", "off")
    assert call("train", *album, *QUICK, "--out", "runs/a") == 0
    assert call("review", "runs/a", "--random", "20", "--summary") == 0
    with closing(Review(open_review_folder("runs/a-review"))) as review:
        assert review.splits() == ["train"] and len(review.image_order) == 20
        made = [review.decision(row, ABSENT, f"request-{row:04d}", 0) for row in range(len(review.candidates))]
        review.store.append(made, reviewer="anna", client="window-1")
    said = printed("evaluate", "runs/a", "runs/a-review", "--resamples", "0", "--device", "cpu")
    assert re.search(r"mAP \d+\.\d+ over 2 of 2 classes", said) and "too high" not in said
    assert "of 20 images" in said


def test_candidates_go_to_label_studio_and_back(reviewed: Path, printed: Printed) -> None:
    assert call("review", "tags-review", "--export-to", "labelstudio", "--out", "tasks.json") == 0
    assert len(json.loads(Path("tasks.json").read_text())) == 4 and Path("tasks.xml").exists()
    arguments = ("--import-from", "labelstudio", "--in", "tasks.json", "--reviewer", "cleo")
    assert "0 labels, by cleo" in printed("review", "tags-review", *arguments)


def test_what_cannot_be_done_is_said(reviewed: Path, screen: Screen, snapshot: SnapshotAssertion) -> None:
    options = ["--random 5", "--zeros unknown", "--budget soon", "--budget 8d", "--reviewer 'a\tb\x1b'"]
    options += ["--export-to labelstudio", "--export-to cvat --out a.json", "--import-from fiftyone"]
    options += ["--no-browser --port 70000", "--no-browser --host no.such.host.invalid"]
    options += [f"--double={share}" for share in ("five", "-1%", "101%", "5", "nan", "%", "''")]
    wrong = ["tags.csv", "nowhere --random 5", "photos --summary", " ".join((*DRAW[1:-1], "4"))]
    wrong += [" ".join((*DRAW[1:], "--out b", *each)) for each in (("--random", "0"), ("--split", "dev"))]
    of_review = screen.errors("review", *wrong, *(f"tags-review {each}" for each in options))
    assert of_review == snapshot(name="review")
    Path("other.csv").write_text("mine")
    wrong = ["photos --out a.csv", "tags-review --out a.csv --source ll-cp", "tags-review --out a.txt"]
    wrong += [f"tags-review --out {taken}" for taken in ("tags.csv", "tags.csv --force", "other.csv")]
    assert screen.errors("apply", *wrong) == snapshot(name="apply")
    assert Path("other.csv").read_text() == "mine"
    assert call("apply", "tags-review", "--out", "other.csv", "--force") == 0
    assert call("apply", "tags-review", "--out", "other.csv") == 2
    wrong = ["remove", "revert", "revert 99", "list 3", "list --since yesterday"]
    assert screen.errors("revisions tags-review", *wrong) == snapshot(name="revisions")
    assert Path("tags.csv").read_text() == TAGS and len(decisions("tags-review")) == 4


@pytest.mark.parametrize("package", ["fastapi", "uvicorn"])
def test_a_missing_package_is_named(
    reviewed: Path, printed: Printed, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    for name in list(sys.modules):
        if name in ("labelgap.review.routes", "labelgap.review.security"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    assert "pip install 'labelgap[review]'" in printed("review", "tags-review", "--no-browser", code=2)
