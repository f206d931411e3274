from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from syrupy.assertion import SnapshotAssertion
from tests.cli.conftest import QUICK, Printed, Screen, call

from labelgap.cli.evaluate import evaluate
from labelgap.cli.options import data_arguments
from labelgap.cli.predict import predict
from labelgap.cli.train import train
from labelgap.core.settings import DATA_OPTIONS, DataOptions
from labelgap.data import describe_datasets


@pytest.fixture
def album(tmp_path: Path) -> Path:
    """Twelve photos and a table as an office program writes it."""
    Path("photos").mkdir()
    rows = ["Datei;Breite;Hund;hund;Katze"]
    for number in range(12):
        Image.new("RGB", (40, 50), (number, 200, 10)).save(f"photos/{number:02d}.jpg")
        first, second = ("x" if number % 3 == turn else "" for turn in (0, 1))
        rows.append(f"{number:02d};640;{first};{second};no")
    rows[-1] = rows[-1].replace("no", "x")
    Path("tags.csv").write_text("\n".join(rows) + "\n", encoding="cp1252")
    return tmp_path


def test_every_command_has_every_option_of_an_importer_and_nothing_typed_is_nothing_given() -> None:
    for command in (train, evaluate, predict):
        assert {*DATA_OPTIONS} <= {*inspect.signature(command).parameters}
    readers = {option for row in describe_datasets() for option in row.options}
    assert {*DATA_OPTIONS} - readers == {"prior"}, "which is read beside all of them"
    assert data_arguments(DataOptions()) == {}
    lists: dict[str, Any] = {"classes": ["a,b", "c"], "ignore_columns": ["w, h"], "rename": ["a=b", "1=one"]}
    given = {"classes": ["a", "b", "c"], "ignore_columns": ["w", "h"], "rename": {"a": "b", "1": "one"}}
    same: dict[str, Any] = {"images": Path("p"), "allow_leaks": True}
    assert data_arguments(DataOptions(**same, **lists)) == same | given


def test_what_is_wrong_names_the_option_that_helps(album: Path, screen: Screen, snapshot: SnapshotAssertion) -> None:
    renamed = "--rename Datei=image"
    found = screen.errors(
        "train tags.csv --images photos --out runs/a",
        *("", "--rename Datei", renamed, f"{renamed} --classes Hunde", "--ignore-columns ,", "--delimiter comma"),
        *(f"{renamed} --duplicates all", f"{renamed} --classes Hund --parents none.csv"),
    )
    assert found == snapshot


def test_a_second_prior_is_refused_since_the_first_would_be_lost(album: Path, printed: Printed) -> None:
    said = printed("inspect", "tags.csv", "--prior", "a.csv", "--images", "x", "--prior=b.csv", code=2)
    assert "--prior" in said and "folder" in said
    clean = ("--classes", "Katze")
    assert call("inspect", "tags.csv", "--images", "x", "--images", "photos", "--rename", "Datei=image", *clean) == 0


def test_a_run_remembers_how_its_data_were_read(album: Path, printed: Printed) -> None:
    (album / "photos" / "03.jpg").write_text("no picture")
    given = ["--images", "photos", "--rename", "Datei=image", "--classes", "Katze,Hund", "--on-bad-image", "skip"]
    arguments = ["train", "tags.csv", *given, *QUICK, "--out", "runs/a"]
    assert "left out: 03" in printed(*arguments)
    config: dict[str, Any] = json.loads(Path("runs/a/config.json").read_text())
    assert config["classes"] == ["Katze", "Hund"] and config["data"]["options"]["rename"] == {"Datei": "image"}
    assert call(*arguments, "--resume") == 0
    assert call("evaluate", "runs/a", "tags.csv", *given, "--split", "train", "--json", "--device", "cpu") == 0
