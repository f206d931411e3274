"""The files of a result's folder, when they are written and when writing is cut off."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path

import pytest
from tests.killing import run_forked

from labelgap.core.errors import RunError
from labelgap.core.manifest import MANIFEST_FILE, check_files
from labelgap.studies.compare import Comparison
from labelgap.studies.study import Study


def test_a_kill_between_two_files_leaves_no_wrong_digest(tmp_path: Path) -> None:
    def write(text: str, *, kill: bool) -> None:
        with Study(tmp_path, text, []).writing(["a.csv"]):
            (tmp_path / "a.csv").write_text(text, encoding="utf-8")
            if kill:
                signal.raise_signal(signal.SIGKILL)

    write("first", kill=False)
    assert (tmp_path / MANIFEST_FILE).exists()
    assert run_forked(partial(write, "second", kill=True)) == -signal.SIGKILL
    check_files(tmp_path, ["a.csv"])
    assert not (tmp_path / MANIFEST_FILE).exists()


def test_a_folder_without_the_document_says_what_it_is_not(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"is not a comparison: it has no compare\.json"):
        Comparison.open(tmp_path)
