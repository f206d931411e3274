"""``labelgap verify`` as a person meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.audit.small_runs import train, write
from tests.cli.conftest import call

import labelgap as lg


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    monkeypatch.chdir(tmp_path)
    train(Path("runs"), lg.load("features", write(tmp_path)), "an", epochs=1)
    capsys.readouterr()
    return Path("runs/an")


def test_an_intact_run_is_one_line(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("verify", str(run)) == 0
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 1 and said[0].startswith("runs/an: ") and said[0].endswith(" files, all intact")


def test_a_damaged_file_is_named_and_the_exit_code_is_two(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run / "best.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert call("verify", str(run)) == 2
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 2 and said[0].startswith("best.safetensors: not as it was written")
    assert said[1].endswith("1 with a problem")
    assert call("predict", str(run), "vectors.npz", "--device", "cpu") == 2
    assert "best.safetensors" in capsys.readouterr().err


def test_json_lists_every_file(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "metrics.jsonl").unlink()
    assert call("verify", str(run), "--json") == 2
    found = json.loads(capsys.readouterr().out)
    assert found["kind"] == "run" and found["intact"] is False and found["path"] == "runs/an"
    states = {file["name"]: file["problem"] for file in found["files"]}
    assert states["metrics.jsonl"] == "missing" and states["config.json"] is None


def test_accept_and_trust_say_what_they_did(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = json.loads((run / "config.json").read_text(encoding="utf-8"))
    (run / "config.json").write_text(json.dumps(config | {"signature": "0" * 64}), encoding="utf-8")
    assert call("audit", str(run), "--device", "cpu", "--folds", "2") == 2
    assert call("verify", str(run), "--accept") == 0
    capsys.readouterr()
    assert call("audit", str(run), "--device", "cpu", "--folds", "2") == 2
    assert "verify runs/an --trust" in capsys.readouterr().err
    assert call("verify", str(run), "--trust") == 0
    said = capsys.readouterr().out
    assert f"trusted   the data {config['data']['path']}" in said and "signed    runs/an" in said
    assert said.endswith("files, all intact\n")
    assert call("audit", str(run), "--device", "cpu", "--folds", "2") == 0


def test_a_folder_of_something_else_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("verify", str(tmp_path)) == 2
    assert "is not a run, a study or a review" in capsys.readouterr().err
    (tmp_path / "train-000000.tar").touch()
    assert call("verify", str(tmp_path)) == 2
    assert "`labelgap shard` again" in capsys.readouterr().err
