from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from tests.audit.small_runs import CLASSES, arrays, train, write
from tests.killing import killed_at_every_operation
from torch import Tensor, nn

import labelgap as lg
from labelgap.audit import Audit, find_missing, scorers
from labelgap.core.errors import InputError, RunError
from labelgap.core.lock import lock_folder
from labelgap.labels import Revision
from labelgap.labels.revisions import ProvenanceEntry, provenance_path, write_provenance
from labelgap.models import InputSpec
from labelgap.training import Run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> lg.Run:
    folder = tmp_path_factory.mktemp("audited")
    return train(folder, lg.load("features", write(folder)))


@pytest.fixture(scope="module")
def audit(run: lg.Run) -> Audit:
    return find_missing(run, quiet=True)


def train_with_errors(folder: Path) -> lg.Run:
    """A run on complete labels, of which forty are wrong."""
    truth = arrays()["train_truth"]
    wrong = np.random.default_rng(0).permutation(truth.size)[:40]
    truth.flat[wrong] = 1 - truth.flat[wrong]
    return train(folder, lg.load("features", write(folder, train_truth=truth, train_observed=truth)), "bce")


def labels_of(run: lg.Run) -> lg.Split:
    return lg.load("features", run.config.data["path"]).train


def truth_of(audit: Audit, truth: lg.LabelTable, split: str = "train", kind: str = "missing") -> NDArray[np.int8]:
    """The true states of the candidates of a split, in the order of their ranks."""
    rows = [row for row in audit.of_kind(kind).to_pylist() if row["split"] == split]
    images = [truth.images.index(row["image"]) for row in rows]
    return truth.codes_at(images, [CLASSES.index(row["class"]) for row in rows])


def test_the_file_has_the_columns_and_metadata_that_a_review_reads(run: lg.Run, audit: Audit) -> None:
    assert audit.path == run.path / "candidates.parquet"
    schema = pq.read_schema(audit.path)
    assert schema.names == ["image", "split", "class", "score", "kind", "observed", "rank", "class_rank"]
    assert list(map(str, schema.types)) == [*["string"] * 3, "float", "string", "int8", "int32", "int32"]
    about = json.loads(schema.metadata[b"labelgap"])
    unknown = labels_of(run).labels.counts().unknown
    assert about["format"] == 1 and about["runs"] == [str(run.path)] and about["method"] == "em"
    assert about["data"] == run.config.data and about["folds"] == 5
    assert about["unknown_total"] == int(unknown.sum())
    assert about["tagged_images"] == int((labels_of(run).labels.to_dense() == lg.PRESENT).any(axis=1).sum())
    assert about["unknown_per_class"] == dict(zip(CLASSES, unknown.tolist(), strict=True))
    estimate = about["estimate"]
    assert audit.estimate == estimate and 0 < estimate["range"][0] < estimate["missing"] < estimate["range"][1]
    assert list(estimate["missing_per_class"]) == list(CLASSES)
    assert sum(estimate["missing_per_class"].values()) == estimate["missing"]


def test_ranks_go_from_one_within_their_kind_and_class(run: lg.Run, audit: Audit) -> None:
    labels = labels_of(run).labels
    place = {name: row for row, name in enumerate(labels.images)}
    for kind in ("missing", "wrong", "random"):
        rows = audit.of_kind(kind).to_pylist()
        assert [row["rank"] for row in rows] == list(range(1, len(rows) + 1))
        for name in CLASSES:
            mine = [row["class_rank"] for row in rows if row["class"] == name]
            assert mine == list(range(1, len(mine) + 1))
        codes = labels.codes_at([place[row["image"]] for row in rows], [CLASSES.index(row["class"]) for row in rows])
        assert codes.tolist() == [row["observed"] for row in rows]
        assert all((row["observed"] == lg.UNKNOWN) == (kind != "wrong") for row in rows)
    scores = audit.of_kind("missing")["score"].to_numpy()
    assert (np.diff(scores) <= 0).all() and scores.min() >= 0 and scores.max() <= 1


def test_missing_labels_come_first(run: lg.Run, audit: Audit) -> None:
    split = labels_of(run)
    assert split.truth is not None
    answers = truth_of(audit, split.truth)
    unknown = split.labels.counts().total[2]
    missing = split.truth.counts().total[0] - split.labels.counts().total[0]
    assert len(answers) == unknown and int((answers == lg.PRESENT).sum()) == missing
    assert (answers[:missing] == lg.PRESENT).mean() > 2.5 * missing / unknown
    random = truth_of(audit, split.truth, kind="random")
    assert len(random) == round(0.1 * unknown)


def test_several_runs_are_averaged_and_val_can_be_audited_too(run: lg.Run, tmp_path: Path) -> None:
    path = write(tmp_path)
    data = lg.load("features", path).observe(positives=1, splits=("val",))
    runs = [train(tmp_path, data, name) for name in ("em", "an")]
    runs.append(train(tmp_path, data, "wan", epochs=3, batch_size=32))
    audit = find_missing([runs[0].path, str(runs[1].path), runs[2]], splits=("train", "val"), quiet=True)
    assert audit.metadata["method"] == "em, an, wan" and audit.metadata["splits"] == ["train", "val"]
    table = audit.of_kind("missing")
    assert set(table["split"].to_pylist()) == {"train", "val"}
    assert data.val is not None and data.val.truth is not None
    answers = truth_of(audit, data.val.truth, "val")
    missing = int((answers == lg.PRESENT).sum())
    assert (answers[:missing] == lg.PRESENT).mean() > 2 * missing / len(answers)


def test_a_label_that_a_person_decided_looks_wrong_only_once_it_is_changed(tmp_path: Path) -> None:
    run = train_with_errors(tmp_path)
    first = find_missing(run, quiet=True).of_kind("wrong").to_pylist()[:2]
    states = [each["observed"] for each in first]
    entries = [
        ProvenanceEntry("train", Revision(each["image"], each["class"], state, "review"), lg.UNKNOWN)
        for each, state in zip(first, (states[0], 1 - states[1]), strict=True)
    ]
    beside = provenance_path(Path(run.config.data["path"]))
    write_provenance(beside, entries)
    wrong = find_missing(run, quiet=True).of_kind("wrong").to_pylist()
    beside.unlink()
    found = [(each["image"], each["class"]) for each in wrong]
    assert [(each["image"], each["class"]) in found for each in first] == [False, True]


def test_limits_hold_and_every_class_keeps_some(run: lg.Run, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"splits": "all", "per_class": 30, "limit": 40, "out": tmp_path, "quiet": True}
    audit, other = (find_missing(run, seed=seed, **asked) for seed in (3, 4))
    assert audit.path == tmp_path / "candidates.parquet" and audit.metadata["splits"] == ["train", "val", "test"]
    assert audit.metadata["images"] == sum(map(len, run.load_data().splits)) and audit.metadata["random"] == 4
    names = other.of_kind("missing")["class"].to_pylist()
    assert len(names) == 40 and min(names.count(name) for name in CLASSES) >= 5
    assert {*other.of_kind("wrong")["split"].to_pylist()} <= {"train", "val", "test"} and other.metadata["seed"] == 4


def test_complete_labels_leave_only_what_looks_wrong(tmp_path: Path) -> None:
    audit = find_missing(train_with_errors(tmp_path), quiet=True)
    assert audit.metadata["unknown_total"] == 0 and len(audit.of_kind("missing")) == 0
    assert 10 < audit.metadata["wrong"] == len(audit) and 10 < audit.metadata["expected_wrong"] <= len(audit)
    assert any(name == "look wrong" for name, _ in audit.facts())


def test_data_without_a_recipe_are_passed_as_an_argument(tmp_path: Path) -> None:
    data = replace(lg.load("features", write(tmp_path)), recipe={})
    made = train(tmp_path, data)
    with pytest.raises(InputError, match="made by hand"):
        find_missing(made, quiet=True)
    assert len(find_missing(made, data=data, quiet=True)) > 0


def test_runs_on_other_labels_or_classes_are_refused(run: lg.Run, tmp_path: Path) -> None:
    other = train(tmp_path, lg.load("features", write(tmp_path)).observe(positives=1, seed=7), "an")
    renamed = lg.load("features", write(tmp_path, classes=np.array(list("abcd"))))
    for runs, data in (([run, other], None), (run, renamed), ([], None), (tmp_path / "nowhere", None)):
        with pytest.raises((InputError, RunError)):
            find_missing(runs, data=data, quiet=True)
    with pytest.raises(InputError):
        find_missing(run, splits=(), quiet=True)


class Pooled(nn.Module):
    """A network that its class alone does not make."""

    input_spec = InputSpec(size=16, mean=(0.5,), std=(0.25,), channels=1)

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, width, 4, 4), nn.ReLU())

    def forward(self, images: Tensor) -> Tensor:
        maps: Tensor = self.layers(images)
        return maps


def test_a_network_of_ones_own_is_audited_with_its_initial_weights_wherever_the_run_is(tmp_path: Path) -> None:
    data = lg.load("digits", train=40, val=12, test=4)
    run = train(tmp_path, data, "an", backbone=Pooled(6), protocol="linear")
    audit = find_missing(run, data=data, folds=2, out=tmp_path / "first.parquet", quiet=True)
    moved = run.path.rename(tmp_path / "moved")
    opened = lg.open_run(moved, backbone=Pooled(6))
    again = find_missing(opened, data=data, folds=2, out=tmp_path / "again.parquet", quiet=True)
    assert len(audit) > 0 and again.table.equals(audit.table)


@pytest.fixture
def new_run(tmp_path: Path) -> Run:
    return train(tmp_path, lg.load("features", write(tmp_path)), epochs=1)


def files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_killed_at_every_operation_it_ends_with_the_same_bytes(new_run: Run) -> None:
    path = find_missing(new_run, quiet=True, folds=2).path
    whole, expected, kills = path.read_bytes(), files(new_run.path), 0
    for kills in killed_at_every_operation(lambda: find_missing(new_run, quiet=True, folds=2), new_run.path, step=2):
        find_missing(new_run, quiet=True, folds=2)
        assert path.read_bytes() == whole and files(new_run.path) == expected, f"after a kill at operation {kills}"
    assert kills > 5


def test_a_run_in_training_is_not_audited_and_files_of_other_names_do_not_wait(new_run: Run, tmp_path: Path) -> None:
    with lock_folder(new_run.path, "training"):
        with pytest.raises(lg.RunError, match="in use"):
            find_missing(new_run, quiet=True, folds=2)
        assert len(find_missing(new_run, quiet=True, folds=2, out=tmp_path / "a.parquet"))
    with lock_folder(tmp_path, "auditing", name=".a.parquet.lock"):
        assert len(find_missing(new_run, quiet=True, folds=2, out=tmp_path / "b.parquet"))


def test_a_damaged_fold_of_a_killed_audit_is_trained_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABELGAP_CACHE", str(tmp_path / "cache"))
    data = lg.load("digits", train=24, val=8, test=4)
    settings: dict[str, Any] = {"backbone": "small-cnn", "protocol": "linear"}
    settings["optimizer"] = "newton"  # whose batch is all images, in a fold fewer
    new_run = lg.fit(data, "an", out=tmp_path / "new_run", epochs=1, device="cpu", quiet=True, trace="off", **settings)
    settings = {"folds": 2, "splits": ("train", "val"), "quiet": True}
    whole = find_missing(new_run, **settings).table
    real, calls = lg.fit, 0

    def killed(*arguments: object, **named: object) -> Run:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        return real(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(scorers, "fit", killed)
    for name in ("best.safetensors", "metrics.jsonl"):
        calls = 0
        with pytest.raises(KeyboardInterrupt):
            find_missing(new_run, **settings)
        (damaged,) = (new_run.path / scorers.FOLDER).glob(f"*/fold-1/{name}")
        damaged.write_bytes(damaged.read_bytes()[:-20])
        assert find_missing(new_run, **settings).table == whole and not (new_run.path / scorers.FOLDER).exists(), name
