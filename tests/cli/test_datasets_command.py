from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.cli.conftest import Printed, Screen
from tests.data.readers.official.test_load_coco import coco
from tests.timm_models import timm_or_skip

from labelgap.data import describe_datasets
from labelgap.models import RECOMMENDED_MODELS, list_backbones


def test_every_data_set_says_where_it_comes_from(printed: Printed) -> None:
    for reader in describe_datasets():
        said = printed("datasets", reader.name)
        assert f"source    {reader.layout.source}" in said and "license   " in said and "read it   " in said
        if reader.layout.find is not None:
            assert (
                all(file.path.rpartition("/")[2] in said for file in reader.layout.files) and reader.reference in said
            )


def test_a_folder_is_checked_and_gaps_are_listed(tmp_path: Path, screen: Screen, snapshot: SnapshotAssertion) -> None:
    root = coco(tmp_path / "my coco", inside="images")
    assert screen("datasets", f"coco2014={root / 'annotations'}") == snapshot(name="complete")
    (root / "annotations" / "instances_val2014.json").unlink()
    shutil.rmtree(root / "images" / "train2014")
    assert screen("datasets", "coco2014", str(root), code=2) == snapshot(name="missing")
    assert screen("datasets", "coco2017", str(root), code=2) == snapshot(name="another")


def test_the_list_has_sources_and_licenses(printed: Printed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    said = printed("backbones")
    for row in list_backbones():
        assert all(value in said for value in (row.name, row.source, row.license))
    assert all(f"--backbone timm:{model} " in said for model in RECOMMENDED_MODELS)


def test_one_backbone_is_described_and_wrong_names_are_refused(screen: Screen, snapshot: SnapshotAssertion) -> None:
    assert screen("backbones", "small-cnn") == snapshot(name="small-cnn")
    assert screen.errors("backbones", "resnet51") == snapshot(name="unknown")
    assert screen.errors("datasets", "digits .", "csv .", "voc2012 nowhere", "coco2013") == snapshot(name="data sets")
    timm_or_skip()
    assert screen("backbones", "timm:resnet18") == snapshot(name="timm:resnet18")


PLUGIN = """import pandas, pyarrow
assert pyarrow.array(pandas.Series([1, None], dtype="Int64")).null_count == 1
def load(): ...
"""


def test_a_plugin_makes_arrays_of_pandas_in_a_command(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    (tmp_path / "a_plugin.py").write_text(PLUGIN)
    (folder := tmp_path / "a_plugin-1.dist-info").mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: a-plugin\nVersion: 1\n")
    (folder / "entry_points.txt").write_text("[labelgap.datasets]\nfrom-pandas = a_plugin:load\n")
    paths = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    command = [sys.executable, "-m", "labelgap", "datasets"]
    found = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths})
    assert "from-pandas" in found.stdout and "left out" not in found.stderr
