"""``labelgap verify`` as a person meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.audit.small_runs import train, write
from tests.cli.conftest import Screen, call

import labelgap as lg


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    monkeypatch.chdir(tmp_path)
    train(Path("runs"), lg.load("features", write(tmp_path)), "an", epochs=1)
    capsys.readouterr()
    return Path("runs/an")


def test_a_damaged_file_is_named(
    run: Path, screen: Screen, snapshot: SnapshotAssertion, capsys: pytest.CaptureFixture[str]
) -> None:
    assert screen("verify", str(run)) == snapshot(name="intact")
    content = bytearray((run / "best.safetensors").read_bytes())
    content[-1] ^= 1
    (run / "best.safetensors").write_bytes(content)
    assert call("verify", str(run)) == 2
    assert capsys.readouterr().out.splitlines() == snapshot(name="damaged")
    assert "best.safetensors" in screen.errors(f"predict {run}", "vectors.npz --device cpu")["vectors.npz --device cpu"]
    found = screen.json("verify", str(run), code=2)
    assert (found["kind"], found["intact"], found["path"]) == ("run", False, "runs/an")
    assert [file["name"] for file in found["files"] if file["problem"]] == ["best.safetensors"]


def test_accept_and_trust(
    run: Path, screen: Screen, snapshot: SnapshotAssertion, capsys: pytest.CaptureFixture[str]
) -> None:
    config = json.loads((run / "config.json").read_text(encoding="utf-8"))
    (run / "config.json").write_text(json.dumps(config | {"signature": "0" * 64}), encoding="utf-8")
    assert call("audit", str(run), "--device", "cpu", "--folds", "2") == 2
    assert call("verify", str(run), "--accept") == 0
    capsys.readouterr()
    assert call("audit", str(run), "--device", "cpu", "--folds", "2") == 2
    assert "verify runs/an --trust" in capsys.readouterr().err
    assert screen("verify", str(run), "--trust") == snapshot
    assert call("audit", str(run), "--device", "cpu", "--folds", "2") == 0


def test_a_folder_of_something_else_is_refused(tmp_path: Path, screen: Screen, snapshot: SnapshotAssertion) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "train-000000.tar").touch()
    assert screen.errors("verify", "empty", "shards") == snapshot
