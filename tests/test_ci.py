"""``.ci/run``: everything runs in a folder called labelgap, whatever the checkout is called."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[1]
SETUP = """#!/usr/bin/env bash
[[ ! -f .venv/labelgap-setup ]] || [[ $(tail -n 1 .venv/labelgap-setup) == "$(pwd -P)" ]] || exit 3
mkdir -p .venv && printf 'versions\\n%s\\n' "$(pwd -P)" >.venv/labelgap-setup && touch .venv/installed
"""
FILES = ["not committed", "scripts", ".venv/installed", ".venv/labelgap-setup", "../shared/data", ".ci/run"]
SEEN = """#!/usr/bin/env bash
scripts/setup && printf '|%s' "$0" "$PWD" "${PYTHONPATH:-}" * .venv/* ../shared/* "$(git ls-files .ci)" && echo
"""


def checkout(folder: Path) -> Path:
    """A project with one committed file, one that is not committed, one that is gone, and data beside it."""
    (folder.parent / "shared" / "data").mkdir(parents=True)
    for name, text in {"setup": SETUP, "check": SEEN, "test": SEEN}.items():
        path = folder / "scripts" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    (folder / ".gitignore").write_text(".venv/\n")
    (folder / "gone").touch()
    (folder / ".ci").mkdir()
    shutil.copy(PROJECT / ".ci" / "run", folder / ".ci")
    for command in (["init", "--quiet"], ["add", "."]):
        subprocess.run(["git", *command], cwd=folder, check=True)
    (folder / "gone").unlink()
    (folder / "not committed").touch()
    return folder


def run(folder: Path) -> list[list[str]]:
    """Run it, and return what the scripts saw: their name, folder, path of Python, and files."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "PYTHONPATH"))}
    ended = subprocess.run(
        [folder / ".ci" / "run"], env=environment, cwd=folder.parent, capture_output=True, text=True, check=True
    )
    return [line.split("|")[1:] for line in ended.stdout.splitlines() if line.startswith("|")]


@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git")
def test_the_checks_and_the_tests_run_in_a_folder_of_that_name_with_all_files(tmp_path: Path) -> None:
    original = checkout(tmp_path / "an album" / "other name")
    seen = run(original)
    folder = Path(seen[0][1])
    assert folder != original and folder.name == "labelgap" and not folder.parent.exists(), "it is removed"
    assert seen == [[f"scripts/{name}", str(folder), f"{folder}/src", *FILES] for name in ("check", "test")]
    assert (original / ".venv" / "labelgap-setup").read_text() == f"versions\n{original}\n"


@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git")
def test_a_clone_that_has_the_name_is_not_copied(tmp_path: Path) -> None:
    original = checkout(tmp_path / "labelgap")
    assert run(original) == [[f"scripts/{name}", str(original), "", *FILES] for name in ("check", "test")]
