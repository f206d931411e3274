"""Damaged and foreign review folders: every use of them ends in a result or in one error, never in a traceback."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.cli.conftest import call
from tests.mutations import mutations
from tests.review.hostile_stores import make_store
from tests.review.http_client import run_server

from labelgap.core.errors import LabelGapError, RunError
from labelgap.core.manifest import MANIFEST_FILE
from labelgap.labels.codes import ABSENT, PRESENT
from labelgap.review import Review, ReviewFolder, check_review, decisions, open_review_folder
from labelgap.review.apply import apply_decisions
from labelgap.review.database import FILE
from labelgap.review.store import Decision, DecisionStore
from labelgap.review.views import grid_context, image_context, overview_context, panel_context

FILES = ("review.json", "candidates.parquet", FILE)


@pytest.fixture
def reviewed(photos: Review) -> ReviewFolder:
    """A review of five photos with two decisions, closed."""
    made = [photos.decision(number, value, f"request-{number:04d}", 0) for number, value in ((0, 1), (4, 0))]
    photos.store.append(made, reviewer="anna", client="window-1")
    photos.close()
    return photos.folder


def use(folder: Path, out: Path) -> None:
    """Do everything that commands and pages do with a folder."""
    opened = open_review_folder(folder)
    with closing(Review(opened, read_only=True)) as review:
        review.progress()
        overview_context(review, "anna")
        for number in range(len(review.candidates.classes)):
            grid_context(review, number, "anna", wrong=False, decided=False, page=1, size=60)
            panel_context(review, number)
        image_context(review, 0)
    apply_decisions(opened, out, force=True)


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_one_error_or_harmless(reviewed: ReviewFolder, tmp_path: Path, name: str) -> None:
    (reviewed.path / MANIFEST_FILE).unlink()
    whole = (reviewed.path / name).read_bytes()
    refused = 0
    for content in mutations(whole, 50):
        (reviewed.path / name).write_bytes(content)
        try:
            use(reviewed.path, tmp_path / "better.csv")
        except LabelGapError as error:
            refused += 1
            assert str(error).strip() and len(str(error)) < 3000
    assert refused >= 15
    (reviewed.path / name).write_bytes(whole)
    use(reviewed.path, tmp_path / "better.csv")


def change_json(path: Path, **changed: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))


JSON: dict[str, dict[str, Any]] = {
    "another format": {"format": 2},
    "no classes": {"classes": []},
    "a class twice": {"classes": ["cat", "cat", "owl"]},
    "a split of its own": {"split": "../../etc"},
    "fewer images than none": {"images": -1},
    "one key more": {"run": "x"},
    "data by hand": {"data": {}},
    "a step that is code": {"data": {"name": "csv", "path": "a", "options": {}, "steps": [{"__class__": {}}]}},
    "data at an address": {"data": {"name": "csv", "path": "http://evil.example/a.csv", "options": {}, "steps": []}},
}


@pytest.mark.parametrize("name", JSON)
def test_a_review_file_of_somebody_else_is_refused(reviewed: ReviewFolder, name: str) -> None:
    change_json(reviewed.path / "review.json", **JSON[name])
    for function in (open_review_folder, check_review):
        with pytest.raises(RunError, match=r"review\.json"):
            function(reviewed.path)


def column(name: str, values: Any, kind: pa.DataType | None = None) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        cells = pa.array([values] * len(table), kind)
        return table.set_column(table.column_names.index(name), name, cells)

    return change


def metadata(**changed: Any) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        about = {**json.loads(table.schema.metadata[b"labelgap"]), **changed}
        return table.replace_schema_metadata({b"labelgap": json.dumps(about)})

    return change


CANDIDATES: dict[str, Callable[[pa.Table], pa.Table]] = {
    "an unknown class": column("class", "wolf"),
    "an empty image": column("image", None, pa.string()),
    "an unknown kind": column("kind", "odd"),
    "a state that is none": column("observed", 7, pa.int8()),
    "a score above one": column("score", 1.5, pa.float32()),
    "a rank of nought": column("rank", 0, pa.int32()),
    "a rank that is long": column("class_rank", 2**40, pa.int64()),
    "a count that is a text": metadata(unknown_per_class={"cat": "many"}),
    "a method that is a list": metadata(method=["x"]),
}


@pytest.mark.parametrize("name", CANDIDATES)
def test_candidates_of_somebody_else_are_refused(reviewed: ReviewFolder, tmp_path: Path, name: str) -> None:
    path = reviewed.path / "candidates.parquet"
    (reviewed.path / MANIFEST_FILE).unlink()  # its author would write another one
    pq.write_table(CANDIDATES[name](pq.read_table(path)), path)
    with pytest.raises(RunError, match=r"candidates\.parquet"):
        use(reviewed.path, tmp_path / "better.csv")


def test_commands_end_with_one_message(
    reviewed: ReviewFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(reviewed.path)
    commands = (
        ("review", run, "--summary"),
        ("review", run, "--no-browser"),
        ("review", run, "--export-to", "labelstudio", "--out", str(tmp_path / "tasks.json")),
        ("revisions", run),
        ("apply", run, "--out", str(tmp_path / "better.csv")),
    )
    content = (reviewed.path / FILE).read_bytes()
    (reviewed.path / FILE).write_bytes(content[:5000])
    for command in commands:
        assert call(*command) == 2
        told = capsys.readouterr().err
        assert "review.sqlite is damaged" in told and "recover" in told and "Traceback" not in told
    assert (reviewed.path / FILE).read_bytes() == content[:5000] and not (tmp_path / "better.csv").exists()
    (reviewed.path / "review.json").write_text("[")
    for command in commands:
        assert call(*command) == 2
        assert "review.json is damaged" in capsys.readouterr().err


def test_the_command_recovers_a_damaged_store(reviewed: ReviewFolder, capsys: pytest.CaptureFixture[str]) -> None:
    path = make_store(reviewed.path / "other.sqlite", decided=200)
    content = bytearray(path.read_bytes())
    content[-4096:] = bytes(4096)
    (reviewed.path / FILE).write_bytes(content)
    assert call("revisions", str(reviewed.path), "recover") == 0
    assert "recovered.sqlite: " in capsys.readouterr().out
    (reviewed.path / "recovered.sqlite").replace(reviewed.path / FILE)
    assert len(decisions(reviewed.path)) >= 100


def test_a_foreign_folder_cannot_name_the_images_that_are_shown(
    reviewed: ReviewFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = shutil.copytree(tmp_path / "photos", tmp_path / "secret")
    recipe = json.loads((reviewed.path / "review.json").read_text())["data"]
    change_json(reviewed.path / "review.json", data={**recipe, "options": {**recipe["options"], "images": str(secret)}})
    run, out = str(reviewed.path), str(tmp_path / "better.csv")
    for command in (("review", run, "--no-browser"), ("apply", run, "--out", out)):
        assert call(*command) == 2
        told = capsys.readouterr().err
        assert str(secret) in told and "--data" in told and "verify" in told
    assert call("review", run, "--summary") == 0, "nothing that it names is opened"
    with closing(Review(open_review_folder(reviewed.path))) as review, run_server(review) as client:
        image = f"{int(review.candidates.columns.image_ids[0]):016x}"
        assert client.request(f"/thumbnail/{image}").status == 404
        assert client.request(f"/image/{image}").status == 503
    named = ("--data", str(tmp_path / "tags.csv"), "--images", str(tmp_path / "photos"))
    assert call("apply", run, "--out", out, *named) == 0
    opened = open_review_folder(reviewed.path, str(tmp_path / "tags.csv"), images=tmp_path / "photos")
    assert opened.data.train.images.root == tmp_path / "photos"  # type: ignore[attr-defined]


def test_decisions_about_what_the_data_do_not_have_are_named(reviewed: ReviewFolder, tmp_path: Path) -> None:
    (reviewed.path / FILE).unlink()
    with closing(Review(reviewed)) as review:
        key = review.candidates.key(0)
    for part in ("image", "class_name"):
        with closing(DecisionStore(reviewed.path / FILE)) as store:
            made = Decision(key._replace(**{part: "gone"}), PRESENT, f"request-{part}")
            store.append([made, Decision(key, ABSENT, f"more-{part}")], reviewer="anna", client="window-1")
        with pytest.raises(LabelGapError, match="gone"):
            apply_decisions(reviewed, tmp_path / "better.csv")
        (reviewed.path / FILE).unlink()
