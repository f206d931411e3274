"""Names that a terminal would obey, in class names and file names, through every command that shows them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.cli.conftest import QUICK, call

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


def test_no_command_passes_control_characters_to_the_terminal(
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
