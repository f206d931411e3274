"""A run or a review of somebody else cannot choose what is executed when its data are loaded again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.audit.small_runs import train, write
from tests.cli.conftest import call
from tests.review.samples import likely_rows, make_photos, write_candidates

import labelgap as lg
from labelgap.data import Dataset
from labelgap.labels import PRESENT, Revision, Revisions

COMMANDS = (
    ("audit", "run"),
    ("apply", "run", "--out", "out.csv", "--source", "ll-cp"),
    ("evaluate", "run", "other.npz"),
    ("review", "run", "--summary"),
    ("report", "run"),
    ("apply", "mine", "--out", "out.csv"),
    ("review", "mine", "--summary"),
)
CHAINS: tuple[list[dict[str, Any]], ...] = (
    [{"split": {"name": "train"}}, {"overwrite": {"path": "victim.txt"}}],
    [{"train.labels.to_csv": {"path": "victim.txt"}}],
)


def overwrite(self: object, path: str) -> object:
    Path(path).write_text("overwritten")
    return self


def tamper(path: Path, steps: list[dict[str, Any]]) -> None:
    stored = json.loads(path.read_text())
    stored["data"]["steps"] = steps
    path.write_text(json.dumps(stored))


def test_no_command_executes_the_steps_of_a_run_or_a_review(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The data have a method that no recipe may reach."""
    monkeypatch.chdir(tmp_path)
    for kind in (Dataset, lg.data.Split):
        monkeypatch.setattr(kind, "overwrite", overwrite, raising=False)
    data = lg.load("features", write(tmp_path))
    train(tmp_path, data).path.rename("run")
    Path("other.npz").write_bytes(Path(str(data.recipe["path"])).read_bytes())
    Revisions([Revision(data.train.labels.images[0], data.classes[0], PRESENT, "ll-cp")]).to_parquet(
        "run/revisions.parquet"
    )
    write_candidates(Path("run/candidates.parquet"), likely_rows(data)[:9], data)
    make_photos(tmp_path)
    draw = ("review", "tags.csv", "--images", "photos", "--duplicates", "off", "--split", "train", "--random", "5")
    assert call(*draw, "--out", "mine", "--summary") == 0
    Path("victim.txt").write_text("mine")
    for steps in CHAINS:
        tamper(Path("run/config.json"), steps)
        tamper(Path("mine/review.json"), steps)
        for command in COMMANDS:
            capsys.readouterr()
            assert call(*command) == 2, (command, steps)
            assert "steps.0" in (said := capsys.readouterr().err), (command, said)
            assert Path("victim.txt").read_text() == "mine" and not Path("out.csv").exists(), (command, steps)
