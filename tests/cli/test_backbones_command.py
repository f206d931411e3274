"""``labelgap backbones``: the list, and all of one."""

from __future__ import annotations

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.cli.conftest import Screen, call
from tests.timm_models import timm_or_skip

from labelgap.models import RECOMMENDED_MODELS, list_backbones


def test_the_list_names_sources_and_licenses(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert call("backbones") == 0
    said = capsys.readouterr().out
    for row in list_backbones():
        assert all(value in said for value in (row.name, row.source, row.license))
    assert all(f"--backbone timm:{model} " in said for model in RECOMMENDED_MODELS)


def test_all_of_one_is_told(screen: Screen, snapshot: SnapshotAssertion) -> None:
    assert screen("backbones", "small-cnn") == snapshot(name="small-cnn")
    assert screen.errors("backbones", "resnet51") == snapshot(name="unknown")
    timm_or_skip()
    assert screen("backbones", "timm:resnet18") == snapshot(name="timm:resnet18")
