from __future__ import annotations

import importlib.util
import json
import runpy
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.cli.conftest import undraw

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


EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SCRIPT = EXAMPLES / "quickstart.py"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Twenty-four photos, red or green or both, and a table with gaps."""
    rows = ["image,split,red,green"]
    for number in range(24):
        red, green = number % 3 != 1, number % 3 != 0
        pixels = np.random.default_rng(number).integers(0, 60, (40, 50, 3), dtype=np.uint8)
        pixels[..., 0] += np.uint8(180 * red)
        pixels[..., 1] += np.uint8(180 * green)
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
        split = ("train", "train", "val", "test")[number // 6]
        rows.append(f"{number}.png,{split},{int(red) if number % 2 else ''},{int(green)}")
    (tmp_path / "tags.csv").write_text("\n".join(rows) + "\n")
    return tmp_path


def test_the_notebook_is_what_the_script_says() -> None:
    make_notebook = runpy.run_path(str(EXAMPLES / "make_notebook.py"), run_name="make_notebook")
    made = make_notebook["notebook"](SCRIPT.read_text(encoding="utf-8"))
    assert SCRIPT.with_suffix(".ipynb").read_text(encoding="utf-8") == made, "run: python examples/make_notebook.py"


def test_the_notebook_runs_twice(
    photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = json.loads(SCRIPT.with_suffix(".ipynb").read_text(encoding="utf-8"))["cells"]
    monkeypatch.setenv("LABELGAP_CACHE", str(photos / "cache"))
    undraw(monkeypatch)
    monkeypatch.setattr(sys, "argv", ["a_kernel", "-f", "connection.json", str(photos / "tags.csv")])
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for cell in cells * 2:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), namespace)
    said = capsys.readouterr().out
    assert "blank = unknown" in said and said.count("test mAP 100 over 1 of 2 classes") == 2
    assert namespace["run"].finished and (photos / "run" / "report.html").exists()
    assert "red" in (photos / "run" / "MODEL_CARD.md").read_text(encoding="utf-8")


def test_photos_that_are_not_there_are_one_message(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (photos / "3.png").unlink()
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), str(photos / "tags.csv")])
    with pytest.raises(SystemExit, match=r"3\.png"):
        runpy.run_path(str(SCRIPT), run_name="__main__")


@pytest.mark.slow
def test_it_makes_an_album(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("LABELGAP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "argv", [str(SCRIPT)])
    monkeypatch.setattr(lg, "fit", partial(lg.fit, backbone="efficientnet-lite0"))  # faster than the default
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(SCRIPT), run_name="__main__")
    said = capsys.readouterr().out
    assert "160 images, 10 classes" in said and "over 9 of 10 classes" in said
    assert (tmp_path / "album" / "run" / "report.html").exists()
