"""``labelgap review``, ``apply`` and ``revisions`` as a person meets them; tests/review has the page itself."""

from __future__ import annotations

import json
import re
import sys
import uuid
from contextlib import closing
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.cli.conftest import call
from tests.review.sample_photos import TAGS, make_photos
from tests.sample_photos import write_small_photos

from labelgap.data import load_csv
from labelgap.labels import Revision, Revisions
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.review import Review, decisions, open_review_folder
from labelgap.review.store import FILE, DecisionStore
from labelgap.review.store.events import SECOND, Decision, LabelKey
from labelgap.training.config.schema import RunConfig, write_config


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LABELGAP_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
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
def reviewed(photos: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A review of five random photos with four decisions."""
    assert call(*DRAW, "--summary") == 0
    decide("tags-review", ("0.jpg", "dog", PRESENT), ("0.jpg", "owl", ABSENT), ("2.jpg", "owl", UNKNOWN))
    decide("tags-review", ("3.jpg", "cat", PRESENT), by="ben")
    capsys.readouterr()
    return photos


def test_a_review_without_a_run_makes_a_folder_and_says_how_far_it_is(
    photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(*DRAW, "--summary") == 0
    said = capsys.readouterr().out
    assert "0 of 9; 0 answered" in said and "no estimate before a random candidate" in said
    assert (photos / "tags-review" / "candidates.parquet").exists()
    assert call(*DRAW, "--out", "mine", "--json") == 0
    assert json.loads(capsys.readouterr().out)["progress"]["total"] == 9 and (photos / "mine").is_dir()


def test_the_report_of_a_run_says_what_was_decided_since_and_which_command_uses_it(
    photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ("tags.csv", "--images", "photos", "--duplicates", "off")
    assert call("train", *data, "--out", "my runs/a", "--epochs", "1", "--method", "an", "--device", "cpu") == 0
    drawn = ("review", "my runs/a", "--random", "5", "--split", "train", "--summary")
    assert call(*drawn) == 0
    capsys.readouterr()
    assert call("report", "my runs/a") == 0
    assert capsys.readouterr().out == "report    my runs/a/report.html\n", "nothing is decided yet"
    decide("my runs/a", ("0.jpg", "dog", PRESENT))
    decide("my runs/a-review", ("0.jpg", "dog", PRESENT), ("0.jpg", "owl", ABSENT))
    assert call("report", "my runs/a") == 0
    note = "decided in the review my runs/a{}: not in this report, which shows the labels that the run was trained on"
    assert capsys.readouterr().out.splitlines()[-4:] == [
        f"note      1 label {note.format('')}",
        "          labelgap apply 'my runs/a' --out better.csv",
        f"note      2 labels {note.format('-review')}",
        "          labelgap evaluate 'my runs/a' 'my runs/a-review'",
    ]
    assert call("apply", "my runs/a", "--out", "better.csv") == 0
    Path("my runs/a/review.sqlite").write_bytes(b"nothing")
    assert call("report", "my runs/a") == 0
    assert "note      my runs/a/review.sqlite" in capsys.readouterr().out


def test_the_summary_counts_people_and_what_was_found(reviewed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("review", "tags-review", "--summary") == 0
    said = capsys.readouterr().out
    assert "4 of 9; 1 answered" in said and "2 missing labels" in said
    assert "anna 3, ben 1" in said and "labelgap apply tags-review" in said
    assert "labelgap evaluate RUN tags-review" in said
    assert call("review", "tags-review", "--summary", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["progress"]["found"] == 2 and told["reviewers"] == {"anna": 3, "ben": 1}


def test_the_summary_tells_agreement_and_what_is_to_be_settled(
    reviewed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    decide("tags-review", ("0.jpg", "dog", PRESENT), ("0.jpg", "owl", PRESENT), by="ben", kind=SECOND)
    decide("tags-review", ("3.jpg", "cat", UNKNOWN), by="anna", kind=SECOND)
    assert call("review", "tags-review", "--summary") == 0
    said = capsys.readouterr().out
    assert "anna 3 (1 second opinion), ben 1 (2 second opinions)" in said and "4 of 9; 1 answered" in said
    assert "second opinions: 1 of 2 the same, κ 0.00 (too few for an interval); 1 more with" in said
    assert "settle    2 labels with two different answers" in said
    assert call("review", "tags-review", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["agreement"]["total"]["pairs"] == 2 and told["agreement"]["people"][0]["people"] == ["anna", "ben"]
    assert [person["second"] for person in told["people"]] == [1, 2] and told["reviewers"] == {"anna": 3, "ben": 1}
    first, second = told["disagreements"]
    assert (first["image"], first["class_name"], first["first"]) == (
        "0.jpg",
        "owl",
        {"reviewer": "anna", "answer": "no"},
    )
    assert second["second"] == {"reviewer": "anna", "answer": "can't tell"}


def test_apply_writes_a_table_that_can_be_trained_on(reviewed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("apply", "tags-review", "--out", "better.csv") == 0
    said = capsys.readouterr().out
    assert "wrote     better.csv and better.provenance.csv" in said
    assert "3 by review; 4 decisions of people" in said
    assert "labelgap train better.csv --images photos --duplicates off --out runs/better" in said
    assert Path("tags.csv").read_text() == TAGS
    data = load_csv("better.csv", "photos", duplicates="off")
    assert data.train.labels.to_dense()[0].tolist() == [PRESENT, PRESENT, ABSENT]
    assert call("inspect", "better.csv", "--images", "photos", "--json") == 0
    assert json.loads(capsys.readouterr().out)["whole"]["present"] == 6 + 2
    assert call(*DRAW, "--out", "other", "--summary") == 0
    decide("other", ("0.jpg", "dog", ABSENT), ("3.jpg", "cat", PRESENT), by="ben")
    assert call("apply", "tags-review", "other", "--out", "both.csv") == 0
    assert "1 label was decided differently in two reviews: the newer decision counts" in capsys.readouterr().out


def test_revisions_lists_and_takes_back_without_deleting(reviewed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("revisions", "tags-review") == 0
    said = capsys.readouterr().out
    assert "dog · 0.jpg" in said and "can't tell" in said and len(said.splitlines()) == 4
    assert call("revisions", "tags-review", "revert", "1") == 0
    assert "1 decision reverted" in capsys.readouterr().out
    assert call("revisions", "tags-review", "list") == 0
    said = capsys.readouterr().out
    assert "yes (undone)" in said and "reverted 1" in said
    assert len(decisions("tags-review")) == 3

    assert call("revisions", "tags-review", "revert", "--reviewer", "ben") == 0
    assert {made.author for made in decisions("tags-review")} == {"anna"}
    assert call("revisions", "tags-review", "revert", "--since", "2001-01-01T00:00+00:00", "--reviewer", "anna") == 0
    assert len(decisions("tags-review")) == 0
    decide("tags-review", ("0.jpg", "dog", PRESENT))
    assert call("revisions", "tags-review", "revert", "--all") == 0
    assert len(decisions("tags-review")) == 0
    capsys.readouterr()
    assert call("revisions", "tags-review", "list", "--json") == 0
    assert len(json.loads(capsys.readouterr().out)) == 10
    assert call("revisions", "tags-review", "list", "--limit", "2", "--reviewer", "anna") == 0
    assert "and 2 before" in capsys.readouterr().out


def test_a_methods_revisions_are_listed_beside_peoples(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = load_csv("tags.csv", "photos", duplicates="off")
    recipe = {"name": "csv", "path": "tags.csv", "options": {"images": "photos", "duplicates": "off"}, "steps": []}
    names = {"method": "ll-cp", "why": None, "backbone": "small-cnn", "protocol": "linear", "select": "last"}
    numbers = {"epochs": 3, "lr": 0.1, "backbone_lr": 0.1, "batch_size": 4, "flip": False, "seed": 0, "trace": "off"}
    Path("run").mkdir()
    write_config(Path("run"), RunConfig.checked(data=recipe, classes=data.classes, **names, **numbers))
    Path("run/metrics.jsonl").write_text("")
    made = [Revision(f"{row}.jpg", "owl", PRESENT, "ll-cp", epoch=2) for row in (0, 2, 4)]
    Revisions(made).to_parquet("run/revisions.parquet")
    decide("run", ("0.jpg", "dog", ABSENT))
    assert call("revisions", "run", "list", "--limit", "2") == 0
    said = capsys.readouterr().out
    assert "no                     dog · 0.jpg" in said and "owl · 4.jpg" in said and "1 before, in rev" in said
    assert call("revisions", "run", "list", "--json") == 0
    assert [each["source"] for each in json.loads(capsys.readouterr().out)] == ["review", "ll-cp", "ll-cp", "ll-cp"]
    assert call("apply", "run", "--out", "both.csv", "--source", "ll-cp") == 0
    assert "1 by review, 3 by ll-cp" in capsys.readouterr().out
    assert call("review", "run", "--random", "2", "--summary") == 0
    assert "random" not in capsys.readouterr().err
    assert call("review", "run", "--random", "300", "--out", "all", "--summary") == 0
    assert re.search(r"^random +all \d+ images of val: there are no 300$", capsys.readouterr().err, re.M)
    assert {*pq.read_table("run-review/candidates.parquet")["split"].to_pylist()} == {"val"}
    assert call("review", "run") == 2
    assert "labelgap audit run" in capsys.readouterr().err


def test_random_images_of_an_album_give_an_accuracy_out_of_fold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LABELGAP_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    write_small_photos(Path("photos"), 24)
    rows = (f"{number:02d}.jpg,{'red' if number % 2 else 'green'}" for number in range(24))
    Path("tags.csv").write_text("image,present\n" + "\n".join(rows) + "\n")
    album = ("tags.csv", "--images", "photos", "--duplicates", "off")
    assert call("train", *album, "--method", "an", "--epochs", "1", "--out", "runs/a", "--device", "cpu") == 0
    assert call("review", "runs/a", "--random", "20", "--summary") == 0
    with closing(Review(open_review_folder("runs/a-review"))) as review:
        assert review.splits() == ["train"] and len(review.image_order) == 20
        made = [review.decision(row, ABSENT, f"request-{row:04d}", 0) for row in range(len(review.candidates))]
        review.store.append(made, reviewer="anna", client="window-1")
    capsys.readouterr()
    assert call("evaluate", "runs/a", "runs/a-review", "--resamples", "0", "--device", "cpu") == 0
    said = capsys.readouterr().out
    assert re.search(r"mAP \d+\.\d+ over 2 of 2 classes", said) and "too high" not in said
    assert "scores    of 20 images that the run was trained on: by the models of the other folds" in said


def test_candidates_go_to_label_studio_and_decisions_come_back(
    reviewed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("review", "tags-review", "--export-to", "labelstudio", "--out", "tasks.json") == 0
    said = capsys.readouterr().out
    assert "tasks.json and tasks.xml" in said and "--import-from labelstudio --in FILE" in said
    tasks = json.loads(Path("tasks.json").read_text())
    task = next(task for task in tasks if task["data"]["name"] == "4.jpg")
    choice = {"from_name": "present", "to_name": "image", "type": "choices", "value": {"choices": ["dog", "owl"]}}
    task["annotations"] = [{"result": [choice]}]
    Path("tasks.json").write_text(json.dumps(tasks))
    arguments = ("--import-from", "labelstudio", "--in", "tasks.json", "--reviewer", "cleo")
    assert call("review", "tags-review", *arguments) == 0
    assert "1 labels, by cleo" in capsys.readouterr().out
    assert [(made.image, made.class_name) for made in decisions("tags-review") if made.author == "cleo"] == [
        ("4.jpg", "owl")
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["review", "tags.csv"], "labelgap review tags.csv --random 300"),
        (["review", "nowhere", "--random", "5"], "no data set 'nowhere'"),
        (["review", "tags-review", "--random", "5"], "is an existing review"),
        (["review", "tags-review", "--zeros", "unknown"], "--zeros applies to DATA"),
        (["review", "photos", "--summary"], "is not a run"),
        ([*DRAW[:-1], "6"], "already holds another review"),
        (["review", "tags-review", "--budget", "soon"], "30d, 12h, 1h30m or 90s"),
        (["review", "tags-review", "--reviewer", "a\tb\x1b"], "1 to 80 printable characters"),
        (["review", "tags-review", "--export-to", "labelstudio"], "--out candidates.json"),
        (["review", "tags-review", "--export-to", "cvat", "--out", "a.json"], "no tool 'cvat'"),
        (["review", "tags-review", "--import-from", "fiftyone"], "--in decisions.json"),
        (["review", "tags-review", "--no-browser", "--port", "70000"], "0 to 65535"),
        (["review", "tags-review", "--no-browser", "--host", "no.such.host.invalid"], "cannot listen on"),
        (["apply", "tags-review", "--out", "tags.csv"], "never overwritten"),
        (["apply", "tags-review", "--out", "a.csv", "--source", "ll-cp"], "no source 'll-cp'"),
        (["apply", "photos", "--out", "a.csv"], "is not a run"),
        (["revisions", "tags-review", "remove"], "no action 'remove'"),
        (["revisions", "tags-review", "revert"], "name what to revert"),
        (["revisions", "tags-review", "revert", "99"], "99 is not a decision in force"),
        (["revisions", "tags-review", "list", "3"], "belong to revert"),
        (["revisions", "tags-review", "list", "--since", "yesterday"], "30m for half an hour ago"),
    ],
)
def test_what_cannot_be_done_is_said(
    reviewed: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert call(*arguments) == 2
    assert message in capsys.readouterr().err
    assert Path("tags.csv").read_text() == TAGS and len(decisions("tags-review")) == 4


@pytest.mark.parametrize("package", ["fastapi", "uvicorn"])
def test_a_missing_package_is_named_with_the_way_to_get_it(
    reviewed: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    for name in list(sys.modules):
        if name in ("labelgap.review.app", "labelgap.review.security"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    assert call("review", "tags-review", "--no-browser") == 2
    assert "pip install 'labelgap[review]'" in capsys.readouterr().err


@pytest.mark.parametrize("share", ["five", "-1%", "101%", "5", "nan", "%", ""])
def test_a_share_of_second_opinions_is_between_nothing_and_everything(
    reviewed: Path, capsys: pytest.CaptureFixture[str], share: str
) -> None:
    assert call("review", "tags-review", "--no-browser", f"--double={share}") == 2
    assert "write a share from 0% to 100%, e.g. --double 5%" in capsys.readouterr().err
