"""The demo's study, trained in two real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from labelgap.core.errors import RunError
from labelgap.studies import open_study, run_demo


def test_trainings_in_two_processes_come_back_in_order(tmp_path: Path) -> None:
    told: list[str] = []
    study = run_demo(
        tmp_path / "demo",
        epochs=1,
        device="cpu",
        processes=2,
        sizes=(48, 16, 16),
        told=lambda label, run: told.append(f"{label} {run.config.method}"),
    )
    assert told == ["all labels bce", "an an", "an-ls an-ls", "ll-r ll-r"]
    again = open_study(study.path)
    assert again.members == study.members and again.title == study.title
    assert [member.extra_labels for member, _ in again.runs] == [True, False, False, False]
    assert all(run.finished for _, run in again.runs)


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="--out"):
        run_demo(tmp_path)


def test_a_folder_that_is_no_study_says_so(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="not a study"):
        open_study(tmp_path)
    (tmp_path / "study.json").write_text('{"format": 9}')
    with pytest.raises(RunError, match="format 9"):
        open_study(tmp_path)
