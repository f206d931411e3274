from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from unittest.mock import Mock

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.audit.small_runs import train, write
from tests.cli.conftest import Printed, Screen, call
from tests.open_clip_models import TINY

import labelgap as lg
from labelgap.review import Review, open_review_folder
from labelgap.review.candidates import Candidates
from labelgap.training import features


@pytest.fixture
def run(tmp_path: Path) -> Path:
    train(Path("runs"), lg.load("features", write(tmp_path)), "an", epochs=1)
    return Path("runs/an")


def test_a_damaged_file_is_named(run: Path, screen: Screen, snapshot: SnapshotAssertion, printed: Printed) -> None:
    assert screen("verify", str(run)) == snapshot(name="intact")
    content = bytearray((run / "best.safetensors").read_bytes())
    content[-1] ^= 1
    (run / "best.safetensors").write_bytes(content)
    assert printed("verify", str(run), code=2).splitlines() == snapshot(name="damaged")
    assert "best.safetensors" in screen.errors(f"predict {run}", "vectors.npz --device cpu")["vectors.npz --device cpu"]
    found = screen.json("verify", str(run), code=2)
    assert (found["kind"], found["intact"], found["path"]) == ("run", False, "runs/an")
    assert [file["name"] for file in found["files"] if file["problem"]] == ["best.safetensors"]


def test_accept_and_trust(run: Path, screen: Screen, snapshot: SnapshotAssertion, printed: Printed) -> None:
    config = json.loads((run / "config.json").read_text(encoding="utf-8"))
    (run / "config.json").write_text(json.dumps(config | {"signature": "0" * 64}), encoding="utf-8")
    assert call("audit", str(run), "--device", "cpu", "--folds", "2") == 2
    assert call("verify", str(run), "--accept") == 0
    assert "verify runs/an --trust" in printed("audit", str(run), "--device", "cpu", "--folds", "2", code=2)
    assert screen("verify", str(run), "--trust") == snapshot
    assert call("audit", str(run), "--device", "cpu", "--folds", "2") == 0


def test_a_folder_of_something_else_is_refused(tmp_path: Path, screen: Screen, snapshot: SnapshotAssertion) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "train-000000.tar").touch()
    assert screen.errors("verify", "empty", "shards") == snapshot


def test_the_screen_says_how_many_are_missing(tmp_path: Path, screen: Screen, snapshot: SnapshotAssertion) -> None:
    run = train(tmp_path, lg.load("features", write(tmp_path)))
    said = screen("audit", str(run.path), "--device", "cpu")
    assert re.sub(r"\d+", "#", said) == snapshot
    assert (run.path / "candidates.parquet").exists()


def test_json_is_one_object_and_nothing_else(tmp_path: Path, screen: Screen) -> None:
    run = train(tmp_path, lg.load("features", write(tmp_path)))
    options = ("--folds", "3", "--per-class", "20", "--limit", "50", "--seed", "2", "--split", "train")
    found = screen.json("audit", str(run.path), *options, "--out", "a.parquet", "--device", "cpu")
    assert [found[name] for name in ("path", "folds", "seed", "missing")] == ["a.parquet", 3, 2, 50]
    assert len(Candidates(Path("a.parquet"), run.config.classes)) <= 55 + found["wrong"]


def test_mistakes_are_told_in_a_sentence(tmp_path: Path, screen: Screen, snapshot: SnapshotAssertion) -> None:
    run = train(tmp_path, lg.load("features", write(tmp_path)))
    command = f"audit {run.path.relative_to(tmp_path)} --device cpu"
    wrong = ["--split dev", "--folds 1", "--limit 0", "--device tpu", "nowhere", "--images ."]
    wrong += [f"--zero-shot {TINY}", "--zero-shot-weights a.pt"]
    assert screen.errors(command, *wrong) == snapshot


def test_the_audit_of_several_runs_is_reviewed(tmp_path: Path, printed: Printed) -> None:
    data = lg.load("features", write(tmp_path))
    runs = [str(train(tmp_path, data, method).path) for method in ("em", "an")]
    assert call("audit", *runs, "--out", "both", "--split", "train,test", "--device", "cpu") == 0
    assert call("review", "both", "--summary") == 0
    assert "train, test" in printed("review", "both", "--split", "val", "--summary", code=2)
    review = Review(open_review_folder("both"), "train")
    key, value = review.candidates.key(0), lg.PRESENT
    review.store.append([review.decision(0, value, "request-1", 0)], reviewer="anna", client="window-1")
    review.close()
    assert "1 by review; 1 decision" in printed("apply", "both", "--out", "better.csv")
    table = lg.LabelTable.from_csv("better.csv")
    assert table.codes_at([table.images.index(key.image)], [table.classes.index(key.class_name)]) == [value]
    assert call("verify", "both") == 0


def test_an_audit_looks_with_the_backbone_as_it_came(
    photos: Path, screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = "train tags.csv --images photos --epochs 1 --device cpu --batch-size 4 --size 32 --method an --no-images"
    asked += " --backbone efficientnet-lite0 --protocol"
    assert call(*shlex.split(f"{asked} end-to-end --lr 0.1 --backbone-lr 0.1 --out runs/a")) == 0
    assert call(*shlex.split(f"{asked} linear --out runs/b")) == 0
    audit = ("--device", "cpu", "--folds", "2")
    assert call("audit", "runs/b", *audit) == 0
    monkeypatch.setattr(features._MissingFeatures, "_compute_block", Mock(side_effect=AssertionError))  # all are cached
    assert "labelgap review runs/a" in screen("audit", "runs/a", "runs/b", *audit)
