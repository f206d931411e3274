"""``labelgap audit`` as a person meets it."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from syrupy.assertion import SnapshotAssertion
from tests.audit.small_runs import train, write
from tests.cli.conftest import Screen, call

import labelgap as lg
from labelgap.review import Review, open_review_folder
from labelgap.review.candidates import MISSING, Candidates
from labelgap.training import features


def test_the_screen_says_how_many_are_missing(tmp_path: Path, screen: Screen, snapshot: SnapshotAssertion) -> None:
    run = train(tmp_path, lg.load("features", write(tmp_path)))
    said = screen("audit", str(run.path), "--device", "cpu")
    assert re.sub(r"\d+", "#", said) == snapshot
    assert "900 unknown" in said and "300 images" in said
    assert (run.path / "candidates.parquet").exists()


def test_json_is_one_object_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = train(tmp_path, lg.load("features", write(tmp_path)))
    capsys.readouterr()
    out = tmp_path / "elsewhere.parquet"
    options = ["--folds", "3", "--per-class", "20", "--limit", "50", "--seed", "2", "--split", "train"]
    assert call("audit", str(run.path), *options, "--out", str(out), "--json", "--device", "cpu") == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert (found["path"], found["folds"], found["seed"], found["missing"], said.err) == (str(out), 3, 2, 50, "")
    read = Candidates(out, run.config.classes)
    assert read.metadata["unknown_total"] == 900 and len(read) <= 55 + found["wrong"]
    ranked = np.flatnonzero(read.columns.kind == MISSING)
    assert np.array_equal(np.sort(read.columns.rank[ranked]), np.arange(1, 51))


def test_mistakes_are_told_in_a_sentence(tmp_path: Path, screen: Screen, snapshot: SnapshotAssertion) -> None:
    run = train(tmp_path, lg.load("features", write(tmp_path)))
    command = f"audit {run.path.relative_to(tmp_path)} --device cpu"
    assert screen.errors(command, "--split dev", "--folds 1", "nowhere", "--images .") == snapshot


def test_the_audit_of_several_runs_can_be_reviewed_and_applied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    data = lg.load("features", write(tmp_path))
    runs = [str(train(tmp_path, data, method).path) for method in ("em", "an")]
    assert call("audit", *runs, "--out", "both", "--split", "train,test", "--device", "cpu") == 0
    assert call("review", "both", "--summary") == 0
    assert call("review", "both", "--split", "val", "--summary") == 2
    assert "train, test" in capsys.readouterr().err
    review = Review(open_review_folder("both"), "train")
    key, value = review.candidates.key(0), lg.PRESENT
    review.store.append([review.decision(0, value, "request-1", 0)], reviewer="anna", client="window-1")
    review.close()
    assert call("apply", "both", "--out", "better.csv") == 0
    assert "1 by review; 1 decision" in capsys.readouterr().out
    table = lg.LabelTable.from_csv("better.csv")
    assert table.codes_at([table.images.index(key.image)], [table.classes.index(key.class_name)]) == [value]
    assert call("verify", "both") == 0


def test_photos_are_looked_at_with_the_backbone_as_it_came_even_if_the_run_has_trained_it(
    photos: Path, screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = "train tags.csv --images photos --epochs 1 --device cpu --batch-size 4 --size 32 --method an --no-images"
    asked += " --backbone efficientnet-lite0 --protocol"
    assert call(*shlex.split(f"{asked} end-to-end --lr 0.1 --backbone-lr 0.1 --out runs/a")) == 0
    assert call(*shlex.split(f"{asked} linear --out runs/b")) == 0
    audit = ("--device", "cpu", "--folds", "2")
    assert call("audit", "runs/b", *audit) == 0

    def never(*arguments: object) -> None:
        raise AssertionError("the features of the backbone as it came are in the cache: nothing is to be computed")

    monkeypatch.setattr(features._MissingFeatures, "_compute_block", never)
    assert "labelgap review runs/a" in screen("audit", "runs/a", "runs/b", *audit)


def test_the_data_of_a_moved_run_are_named_by_the_user(tmp_path: Path) -> None:
    run = train(tmp_path, lg.load("features", write(tmp_path)))
    (tmp_path / "vectors.npz").rename(tmp_path / "moved.npz")
    assert call("audit", str(run.path), "--device", "cpu", "--folds", "2") == 2
    assert call("audit", str(run.path), "--device", "cpu", "--folds", "2", "--data", str(tmp_path / "moved.npz")) == 0
    assert (run.path / "candidates.parquet").exists()
