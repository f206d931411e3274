"""What a review folder is made of, and what becomes of a damaged or a foreign one: a result or one error."""

from __future__ import annotations

import json
import random
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.cli.conftest import call
from tests.mutations import mutations
from tests.review.hostile_stores import make_store
from tests.review.http_client import run_server
from tests.review.samples import Row, make_photos, write_rows
from tests.waiting import wait_until

import labelgap as lg
from labelgap.audit.candidates import FORMAT, CandidateList, describe_review, write_candidates, write_review_file
from labelgap.core.errors import InputError, LabelGapError, RunError
from labelgap.core.manifest import MANIFEST_FILE
from labelgap.data.dataset import Dataset
from labelgap.data.split import hold_out_val
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.review import Review, ReviewFolder, check_review, create_random_review, decisions, open_review_folder
from labelgap.review.apply import apply_decisions, decided_images
from labelgap.review.candidates import MISSING, RANDOM, Candidates, candidate_id
from labelgap.review.database import FILE, recover_events
from labelgap.review.store import Decision, DecisionStore
from labelgap.review.views import grid_context, image_context, overview_context, panel_context


@pytest.fixture
def data() -> Dataset:
    return lg.load("digits", train=60, val=20, test=20).observe(positives=1, negatives=0, splits=["val"])


def test_a_model_is_measured_on_images_and_classes_that_are_decided_in_full(data: Dataset, tmp_path: Path) -> None:
    folder = create_random_review(data, "val", 8, 0, tmp_path / "a")
    with pytest.raises(InputError, match="8"):
        decided_images(folder)
    with closing(Review(folder)) as review:
        columns = review.candidates.columns
        for number in np.flatnonzero((columns.image < 3) & (columns.class_number != 4)).tolist():
            review.store.append(
                [review.decision(number, ABSENT, f"first-{number}", 0)], reviewer="anna", client="window"
            )
        complete = {columns.images[image][1] for image in range(3)}
        with_four = {columns.images[columns.image[number]][1] for number in np.flatnonzero(columns.class_number == 4)}
        measured = decided_images(folder).train
        assert {*measured.labels.images} == complete - with_four and measured.labels.complete and measured.name == "val"
        for number in np.flatnonzero(columns.class_number == 4).tolist():
            review.store.append(
                [review.decision(number, ABSENT, f"then-{number}", 0)], reviewer="anna", client="window"
            )
    measured = decided_images(folder).train
    known = dict(zip(measured.labels.images, measured.labels.to_dense(), strict=True))
    assert len(known) == 8 and all((codes != UNKNOWN).all() for name, codes in known.items() if name in complete)
    others = np.stack([codes for name, codes in known.items() if name not in complete])
    assert (others[:, 4] != UNKNOWN).all() and (np.delete(others, 4, axis=1) == UNKNOWN).all()


def test_what_cannot_be_drawn_is_said(data: Dataset, tmp_path: Path) -> None:
    for given, split in ((data, "test"), (Dataset("mine", data.train, data.val), "val")):
        with pytest.raises(InputError, match=r"test|mine"):
            create_random_review(given, split, 5, 0, tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_a_damaged_folder_or_changed_data_is_said(tmp_path: Path) -> None:
    folder = create_random_review(make_photos(tmp_path), "train", 5, 0, tmp_path / "a")
    table = (tmp_path / "tags.csv").read_text().replace("owl", "bat")
    (tmp_path / "tags.csv").write_text(table)
    with pytest.raises(RunError):
        _ = open_review_folder(folder.path).data
    (folder.path / "review.json").write_text("{")
    with pytest.raises(RunError, match=r"review\.json"):
        open_review_folder(folder.path)


def test_an_audit_of_networks_has_the_val_that_they_held_out(tmp_path: Path) -> None:
    make_photos(tmp_path)
    rows = "".join(f"{number}.jpg,{1 if number % 2 else ''},{'' if number % 2 else 1}\n" for number in range(8))
    (tmp_path / "tags.csv").write_text("image,cat,dog\n" + rows)
    data = hold_out_val(lg.load("csv", tmp_path / "tags.csv", images=tmp_path / "photos", duplicates="off"))
    assert data.val is not None
    unknown = dict(zip(data.classes, data.val.labels.counts().unknown.tolist(), strict=True))
    about = {"format": FORMAT, "runs": [], "data": dict(data.recipe), "splits": ["val"], "method": "an"}
    about |= {"unknown_total": sum(unknown.values()), "unknown_per_class": unknown}
    places, columns = np.nonzero(data.val.labels.to_dense() == UNKNOWN)
    found = CandidateList.of_unknown(places, columns, np.full(len(columns), 0.5, dtype=np.float32))
    write_candidates(tmp_path / "both" / "candidates.parquet", {"missing": found}, {"val": data.val.labels}, about)
    write_review_file(tmp_path / "both", describe_review(tmp_path / "both", data.recipe, data.classes))
    with closing(Review(open_review_folder(tmp_path / "both"))) as review:
        assert all(review.locate(image) for image in range(len(review.candidates.columns.images)))


ABOUT = {"format": 1, "runs": ["a"], "data": {}, "unknown_total": 10, "unknown_per_class": {}, "method": "an"}


def write(path: Path, rows: list[Row]) -> Path:
    return write_rows(path, rows, ABOUT)


def ranked(count: int, kind: str = "missing", name: str = "dog", start: int = 0) -> list[Row]:
    return [
        (f"{kind}-{row + start}.jpg", "train", name, 0.9 - row / 10_000, kind, UNKNOWN, row + 1, row + 1)
        for row in range(count)
    ]


def test_an_id_means_the_same_label_whatever_else_is_in_the_file(tmp_path: Path) -> None:
    first = Candidates(write(tmp_path / "a.parquet", ranked(3)), ["cat", "dog"])
    other = Candidates(write(tmp_path / "b.parquet", ranked(1, "wrong") + ranked(3)), ["dog", "owl", "cat"])
    for number in range(3):
        identity = f"{int(first.columns.ids[number]):016x}"
        found = other.index(identity)
        assert found is not None
        assert other.key(found) == first.key(number) and candidate_id(first.key(number)) == identity


def test_one_in_ten_of_what_is_shown_is_random_and_ranks_are_kept(tmp_path: Path) -> None:
    rows = ranked(90) + ranked(12, "random")
    candidates = Candidates(write(tmp_path / "a.parquet", rows), ["dog"])
    shown = candidates.listed(0)
    kinds = candidates.columns.kind[shown]
    assert len(shown) == 102
    for start in range(0, 100, 10):
        assert (kinds[start : start + 10] == RANDOM).sum() == 1
    for kind in (MISSING, RANDOM):
        assert np.all(np.diff(candidates.columns.class_rank[shown][kinds == kind]) == 1)
    places = np.flatnonzero(kinds == RANDOM)[:10] % 10
    assert len(set(places.tolist())) > 2, "the random ones stand where they can be foretold"


def test_a_label_that_is_ranked_and_random_is_shown_once_at_the_earlier_place(tmp_path: Path) -> None:
    late: Row = ("missing-59.jpg", "train", "dog", 0.1, "random", UNKNOWN, 1, 1)
    early: Row = ("missing-0.jpg", "train", "dog", 0.9, "random", UNKNOWN, 2, 2)
    candidates = Candidates(write(tmp_path / "a.parquet", [*ranked(60), late, early]), ["dog"])
    columns = candidates.columns
    assert len(candidates) == 60 and (columns.kind == MISSING).all()
    assert {columns.random_rank[59], columns.random_rank[0]} == {1, 2}
    shown = candidates.listed(0).tolist()
    assert shown.index(59) < 10 and shown.index(0) <= 1


def test_an_image_comes_with_all_its_candidates_and_the_best_image_first(tmp_path: Path) -> None:
    rows: list[Row] = [
        ("a.jpg", "train", "dog", 0.5, "missing", UNKNOWN, 3, 2),
        ("b.jpg", "train", "dog", 0.9, "missing", UNKNOWN, 1, 1),
        ("a.jpg", "train", "cat", 0.8, "missing", UNKNOWN, 2, 1),
        ("c.jpg", "train", "cat", 0.0, "random", UNKNOWN, 1, 1),
    ]
    candidates = Candidates(write(tmp_path / "a.parquet", rows), ["cat", "dog"])
    names = [candidates.columns.images[image][1] for image in candidates.image_order]
    assert names == ["b.jpg", "a.jpg", "c.jpg"]
    image = candidates.columns.images.index(("train", "a.jpg"))
    assert [candidates.key(number).class_name for number in candidates.of_image(image)] == ["cat", "dog"]


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
            grid_context(review, number, "anna", wrong=False, decided=False, skip=0, size=60)
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


def test_candidates_of_other_classes_are_refused(reviewed: ReviewFolder, tmp_path: Path) -> None:
    path = reviewed.path / "candidates.parquet"
    (reviewed.path / MANIFEST_FILE).unlink()  # its author would write another one
    table = pq.read_table(path)
    wolves = pa.array(["wolf"] * len(table))
    pq.write_table(table.set_column(table.column_names.index("class"), "class", wolves), path)
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


def test_what_can_still_be_read_is_recovered(reviewed: ReviewFolder, capsys: pytest.CaptureFixture[str]) -> None:
    path, recovered = reviewed.path / FILE, reviewed.path / "recovered.sqlite"
    content = bytearray(make_store(reviewed.path / "other.sqlite", decided=300).read_bytes())
    pages = range(4 * 4096, len(content), 4096)
    page = next(at for at in pages if content[at] == 13 and b"0.jpg" in content[at:][:4096])
    content[page : page + 4096] = random.Random(0).randbytes(4096)
    path.write_bytes(content)
    with pytest.raises(RunError, match=f"labelgap revisions {reviewed.path} recover"):
        decisions(path)
    assert call("revisions", str(reviewed.path), "recover") == 0
    assert "recovered.sqlite: " in capsys.readouterr().out
    found = {revision.image for revision in decisions(recovered)}
    assert len(found) > 150 and found <= {f"{number}.jpg" for number in range(300)} and path.read_bytes() == content
    assert call("revisions", str(reviewed.path), "recover") == 2, "it is there already"
    result = recover_events(path, path.with_name("again.sqlite"))
    assert result.kept + result.lost == 301 and result.lost > 0


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


def test_the_command_says_what_it_opens_where_that_takes_long(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: object) -> NoReturn:
        wait_until(lambda: str(folder) in capsys.readouterr().err)
        raise InputError("it is not opened")

    monkeypatch.setattr("labelgap.cli.review._open_folder", stop)
    monkeypatch.setattr("labelgap.cli.review._SILENT_SECONDS", 0.0)
    assert call("review", str(folder), "--no-browser") == 2
