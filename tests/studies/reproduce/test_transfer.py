"""Transfer: networks trained with several losses on a folder per class, and evaluated on another data set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.cli.conftest import call, undraw
from tests.data.readers.official.test_load_transfer import torchvision_datasets

from labelgap.core.errors import InputError
from labelgap.data import load
from labelgap.studies.reproduce import Reproduction, paper_tables
from labelgap.studies.reproduce.runner import plan_reproduction
from labelgap.training import open_run

COLORS = ((200, 30, 30), (30, 200, 30), (30, 30, 200))
TRAINED = (
    *("--preset", "kobayashi2023", "--backbone", "tiny-cnn", "--weights", "none", "--size", "16", "--epochs", "2"),
    *("--batch-size", "16", "--lr", "0.05", "--backbone-lr", "0.05", "--device", "cpu", "--duplicates", "off"),
)


def photo(file: Path, kind: int, seed: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(0, 50, (16, 16, 3), dtype=np.uint8)
    Image.fromarray(noise + np.array(COLORS[kind], dtype=np.uint8)).save(file)


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An ImageNet-style folder, and pets in the published layout, in a folder that is the current one."""
    torchvision_datasets()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LABELGAP_CACHE", str(tmp_path / "cache"))
    undraw(monkeypatch)
    for number in range(36):
        split = "val" if number % 4 == 3 else "train"
        photo(Path("imagenet", split, f"n{number % 3:08d}", f"{number}.jpg"), number % 3, number)
    for part, count in (("trainval", 30), ("test", 12)):
        rows = [f"breed_{'xyz'[number % 3]}_{part}{number} {number % 3 + 1} 1 1" for number in range(count)]
        for number, row in enumerate(rows):
            photo(Path("ROOT/oxford-iiit-pet/images", f"{row.split()[0]}.jpg"), number % 3, 100 + number)
        lists = Path("ROOT/oxford-iiit-pet/annotations")
        lists.mkdir(exist_ok=True)
        (lists / f"{part}.txt").write_text("\n".join(rows), encoding="utf-8")


def test_networks_of_several_losses_have_a_row_each(folders: None, capsys: pytest.CaptureFixture[str]) -> None:
    train = ("train", "folder=imagenet", "--unlisted", "absent", "--protocol", "end-to-end", *TRAINED)
    for method in ("softmax", "two-way"):
        assert call(*train, "--method", method, "--out", f"runs/{method}") == 0
    run = open_run("runs/two-way")
    labels = load("folder", "imagenet", unlisted="absent", duplicates="off").train.labels
    assert labels.complete and run.config.classes == ("n00000000", "n00000001", "n00000002")
    capsys.readouterr()
    asked = (
        "reproduce",
        "two-way-transfer",
        "--data",
        "pets=ROOT",
        "--device",
        "cpu",
        "--cells",
        "softmax;bce;two-way",
    )
    given = ("--pretrained", "softmax=runs/softmax", "--pretrained", "two-way=runs/two-way")
    assert call(*asked, *given) == 0
    said = capsys.readouterr().out
    assert "--pretrained bce=RUN" in said and "two-way " in said
    found = Reproduction.open("runs/reproduce")
    assert {(cell.row, cell.column) for cell in found.cells} == {
        (row, f"linear-eval:pets:{metric}")
        for row in ("softmax", "two-way")
        for metric in ("accuracy", "best_accuracy")
    }
    assert all(cell.images == (30, 12) and cell.settings_tried == 45 for cell in found.cells)
    again: dict[str, Any] = {"cells": ["two-way"], "pretrained": {"two-way": "runs/two-way"}}
    assert plan_reproduction("two-way-transfer", ["pets=ROOT"], out="runs/reproduce", **again).done == 2
    with pytest.raises(InputError, match="this is two-way"):
        plan_reproduction("two-way-transfer", ["pets=ROOT"], out="runs/x", pretrained={"softmax": "runs/two-way"})
    with pytest.raises(InputError, match="'two-way'"):
        plan_reproduction("two-way-transfer", ["pets=ROOT"], out="runs/x", pretrained={"two-wya": "runs/two-way"})


def test_the_table_of_temperature_and_margin_shares_the_network_of_the_papers_setting() -> None:
    tables = paper_tables()
    shared = {cell.training for cell in tables["two-way-temperature"].cells} & {
        cell.training for cell in tables["two-way-coco"].cells
    }
    assert [(training.method, dict(training.options)) for training in shared] == [("two-way", {})]
