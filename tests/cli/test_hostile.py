"""Files of somebody else: names that a terminal would obey, and recipes that would call methods of the data."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.audit.small_runs import train, write
from tests.cli.conftest import QUICK, call
from tests.review.samples import likely_rows, make_photos, write_candidates

import labelgap as lg
from labelgap.data import Dataset
from labelgap.labels import PRESENT, Revision, Revisions

ESCAPE = "\x1b]0;owned\x07\x1b[2J\x9b31m"
CLASS = f"[bold]red{ESCAPE}\u202egreen"
SHOWN = re.compile(r"\[bold\]red(\\x1b|�)")
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@pytest.fixture
def hostile(photos: Path) -> Path:
    """Twenty-four photos with names and a class that hold control characters."""
    random = np.random.default_rng(0)
    rows = [f'image,split,"{CLASS}",[red]green']
    for number in range(24):
        pixels = np.kron(random.integers(0, 120, (4, 5, 3)), np.ones((10, 10, 1))).astype(np.uint8)
        pixels[..., number % 2] += 120
        name = f"{number}{ESCAPE}[bold]\u202e.png"
        Image.fromarray(pixels).save(Path("photos") / name)
        split = ("train", "train", "train", "train", "val", "test")[number // 2 % 6]
        rows.append(f'"{name}",{split},{1 - number % 2},{number % 2 if split != "train" else ""}')
    Path("tags.csv").write_text("\n".join(rows) + "\n")
    return photos


def test_no_control_character_is_printed(
    hostile: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    data = ("tags.csv", "--images", "photos")
    commands = {
        "inspect": ("inspect", *data, "--per-class"),
        "train": ("train", *data, *QUICK, "--out", "runs/a"),
        "evaluate": ("evaluate", "runs/a", *data, "--device", "cpu"),
        "predict": ("predict", "runs/a", "photos", "--layout", "wide", "--out", "scores.csv", "--device", "cpu"),
        "audit": ("audit", "runs/a", "--folds", "2", "--device", "cpu"),
        "json": ("evaluate", "runs/a", *data, "--json", "--device", "cpu"),
        "methods": ("methods", CLASS),
        "no file": ("inspect", f"{ESCAPE}.csv"),
        "no option": ("inspect", f"--{CLASS}"),
        "no command": (CLASS,),
    }
    for name, arguments in commands.items():
        code = call(*arguments)
        said = capsys.readouterr()
        assert code == (2 if name.startswith("no ") or name == "methods" else 0), said.err
        assert not CONTROL.search(said.out + said.err), name
        if name in ("inspect", "evaluate", "methods"):
            assert SHOWN.search(said.out + said.err), name


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


def test_no_step_of_a_recipe_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The data have a method that no recipe may reach."""
    for kind in (Dataset, lg.data.Split):
        monkeypatch.setattr(kind, "overwrite", overwrite, raising=False)
    data = lg.load("features", write(tmp_path))
    train(tmp_path, data).path.rename("run")
    Path("other.npz").write_bytes(Path(str(data.recipe["path"])).read_bytes())
    revision = Revision(data.train.labels.images[0], data.classes[0], PRESENT, "ll-cp")
    Revisions([revision]).to_parquet("run/revisions.parquet")
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
