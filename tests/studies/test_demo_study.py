"""The demo's study when somebody stops it."""

from __future__ import annotations

from pathlib import Path

import pytest

from labelgap.core.errors import InputError
from labelgap.reporting import write_report
from labelgap.studies import open_study, run_demo
from labelgap.training.progress import Reporter

SIZES = (32, 16, 16)
"""So few scenes that an epoch is one step."""


def stop_after(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    left = iter(range(steps))

    def advance(self: Reporter, *_: object, **__: object) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt

    monkeypatch.setattr(Reporter, "advance", advance)


def test_a_ctrl_c_ends_the_study_with_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_after(monkeypatch, 3)
    study = run_demo(tmp_path / "demo", epochs=2, device="cpu", processes=1, sizes=SIZES)
    assert [member.label for member in study.members] == ["all labels", "an"]
    assert [run.metrics["interrupted"] for _, run in study.runs] == [False, True]
    assert write_report(open_study(tmp_path / "demo")).exists()


def test_a_ctrl_c_before_the_first_epoch_leaves_no_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_after(monkeypatch, 0)
    with pytest.raises(KeyboardInterrupt):
        run_demo(tmp_path / "demo", epochs=2, device="cpu", processes=1, sizes=SIZES)
    assert not (tmp_path / "demo" / "study.json").exists()


def test_settings_that_cannot_be_leave_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="epochs"):
        run_demo(tmp_path / "demo", epochs=0, device="cpu", processes=1, sizes=SIZES)
    assert not list(tmp_path.iterdir())
