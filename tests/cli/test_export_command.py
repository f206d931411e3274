"""``labelgap export`` as a person meets it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.cli.conftest import call
from tests.training.untrained_run import make_run

from labelgap.inference import export as export_module


def test_what_was_written_and_checked_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(Path("runs/a"), backbone="features", width=5)
    assert call("export", "runs/a", "--onnx", "model.onnx") == 0
    said = capsys.readouterr().out
    assert re.search(r"^wrote +model\.onnx \(.*\), preprocess\.json, predict_onnx\.py$", said, re.M)
    assert re.search(r"^checked +scores of onnxruntime and PyTorch differ by at most \de-\d\d$", said, re.M)
    assert re.search(r"^run +python predict_onnx\.py features\.npy$", said, re.M)
    assert call("export", "runs/a", "--onnx", "model.onnx") == 2
    assert "--force" in capsys.readouterr().err
    monkeypatch.setattr(export_module, "_convert", lambda *arguments: b"again")
    monkeypatch.setattr(export_module, "_verify", lambda graph, content: None)
    assert call("export", "runs/a", "--onnx", "model.onnx", "--force") == 0
    assert re.search(r"^unchecked +onnxruntime is not installed", capsys.readouterr().out, re.M)
    assert Path("model.onnx").read_bytes() == b"again"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere", "--onnx", "a.onnx"], "is not a run"),
        (["runs/open", "--onnx", "a.onnx"], "not finished"),
        (["runs/a", "--onnx", "a.bin"], "must end in .onnx"),
    ],
)
def test_what_cannot_be_done_is_said(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(Path("runs/a"), backbone="features")
    make_run(Path("runs/open"), backbone="features", finished=False)
    assert call("export", *arguments) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
