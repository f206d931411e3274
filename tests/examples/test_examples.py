"""The examples run, and the pages that are made from the code are up to date."""

from __future__ import annotations

import importlib.util
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import labelgap as lg
from labelgap.data import load
from labelgap.reporting import methods_markdown

PROJECT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", ["digits", "own_loop"])
def test_an_example_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], undrawn: None
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lg, "load", lambda name, **sizes: load(name, train=60, val=20, test=20))
    runpy.run_path(str(PROJECT / "examples" / f"{name}.py"), run_name="__main__")
    assert capsys.readouterr().out


def test_the_lightning_module_trains() -> None:
    lightning = pytest.importorskip("lightning", reason="lightning is not installed", exc_type=ImportError)
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    spec = importlib.util.spec_from_file_location("lightning_module", PROJECT / "examples" / "lightning_module.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    labels = torch.where(torch.rand(32, 4) < 0.3, 1, -1)
    data = TensorDataset(torch.arange(32), torch.randn(32, 5), labels)
    model = module.PartialLabels(torch.nn.Linear(5, 4), lg.LabelTable.from_dense(labels), "ll-cp", epochs=2)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    lightning.Trainer(max_epochs=2, accelerator="cpu", **quiet).fit(model, DataLoader(data, batch_size=8))


def test_the_page_of_methods_is_what_the_code_says() -> None:
    page = (PROJECT / "docs" / "methods.md").read_text(encoding="utf-8")
    assert page == methods_markdown(), "run: labelgap methods --markdown > docs/methods.md"


def test_the_order_of_methods_does_not_depend_on_what_was_imported_first() -> None:
    code = """
import os, torch, labelgap as lg
if os.fork():
    os.wait()
else:
    import labelgap.losses.entropy
print(lg.methods(), flush=True)
"""
    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.splitlines()
    assert len(seen) == 2 and seen[0] == seen[1]
