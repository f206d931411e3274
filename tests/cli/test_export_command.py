"""``labelgap export`` as a person meets it."""

from __future__ import annotations

from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.cli.conftest import Screen
from tests.training.untrained_run import make_run

from labelgap.inference import export as export_module


def test_what_was_written_and_checked_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, screen: Screen, snapshot: SnapshotAssertion
) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(Path("runs/a"), backbone="features", width=5)
    make_run(Path("runs/open"), backbone="features", finished=False)
    assert screen("export", "runs/a", "--onnx", "model.onnx") == snapshot(name="checked")
    wrong = ("runs/a --onnx model.onnx", "nowhere --onnx a.onnx", "runs/open --onnx a.onnx", "runs/a --onnx a.bin")
    assert screen.errors("export", *wrong) == snapshot(name="errors")
    monkeypatch.setattr(export_module, "_convert", lambda *arguments: b"again")
    monkeypatch.setattr(export_module, "_verify", lambda graph, content: None)
    assert screen("export", "runs/a", "--onnx", "model.onnx", "--force") == snapshot(name="unchecked")
    assert Path("model.onnx").read_bytes() == b"again"
