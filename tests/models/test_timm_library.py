"""What happens around timm: when it is imported, when it is missing, and when torchvision does not fit torch."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.timm_models import timm_or_skip

from labelgap.core.errors import InputError
from labelgap.models import (
    RECOMMENDED_MODELS,
    backbone_info,
    backbone_names,
    check_backbone,
    count_parameters,
    count_timm_models,
    create_backbone,
    is_pretrained,
    list_backbones,
)


def python(code: str, *folders: Path) -> str:
    path = os.pathsep.join([*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    return done.stdout.strip()


def make_torchvision(folder: Path, code: str) -> Path:
    """A package that is found in place of the real torchvision."""
    package = folder / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text(code)
    (package / "_meta_registrations.py").write_text("")
    return folder


def test_timm_is_imported_only_when_asked_for_whatever_torchvision_could_load() -> None:
    code = (
        "import sys, labelgap, labelgap.models as m; m.list_backbones(); m.count_timm_models(); "
        "m.is_pretrained('resnet50'); m.create_backbone('small-cnn'); "
        "print([n for n in ('timm', 'torchvision', 'huggingface_hub') if n in sys.modules]);"
        "hooks = list(sys.meta_path); m.check_backbone('timm:resnet18'); print('timm' in sys.modules);"
        "print([type(hook).__name__ for hook in sys.meta_path if 'labelgap' in type(hook).__module__])"
    )
    timm_or_skip()
    assert python(code) == "[]\nTrue\n[]"


def test_operators_that_torchvision_has_are_left_alone_and_missing_ones_are_declared(tmp_path: Path) -> None:
    own = "import torch\ntorch.library.define('torchvision::nms', '(Tensor own) -> Tensor')\n"
    folder = make_torchvision(tmp_path, own + "import torchvision._meta_registrations\n")
    code = """
import torch
from labelgap.models import timm as library
with library._declare_operators():
    import torchvision
for operator in (torch.ops.torchvision.nms, torch.ops.torchvision.qnms):
    print([argument.name for argument in operator.default._schema.arguments])
"""
    assert python(code, folder) == "['own']\n['dets', 'scores', 'iou_threshold']"


def test_a_torchvision_that_does_not_fit_is_named_each_time(tmp_path: Path) -> None:
    timm_or_skip()
    folder = make_torchvision(tmp_path, "raise ImportError('torchvision/_C.so: undefined symbol')\n")
    code = """
from labelgap.models import check_backbone, create_backbone
for ask in (check_backbone, create_backbone, check_backbone):
    try:
        ask("timm:resnet18")
    except Exception as error:
        print(type(error).__name__, error)
"""
    said = python(code, folder).splitlines()
    assert len(said) == 3
    for line in said:
        assert line.startswith("InputError timm cannot be imported: the torchvision that is installed does not fit")
        assert "pip install torch torchvision" in line


def test_without_timm_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    for name in ("timm:resnet18", "resnet50"):
        for ask in (check_backbone, create_backbone):
            with pytest.raises(InputError, match=r"pip install 'labelgap\[timm\]'"):
                ask(name)
    with pytest.raises(InputError, match=r"pip install 'labelgap\[timm\]'"):
        is_pretrained("timm:resnet18")
    assert count_timm_models() is None
    assert is_pretrained("resnet50") and [row.name for row in list_backbones()] == backbone_names()


def test_the_first_resnet50_takes_the_file_of_the_later_one_and_halves_earlier(tmp_path: Path) -> None:
    timm: Any = timm_or_skip()
    later = timm.create_model("resnet50").eval()
    torch.save(later.state_dict(), tmp_path / "resnet50.pth")
    first = create_backbone("resnet50-v1", weights=tmp_path / "resnet50.pth", size=64).eval()
    assert (count_parameters(first), first.num_features) == (backbone_info("resnet50-v1").parameters, 2048)
    for stage in (later.layer2, later.layer3, later.layer4):
        stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)
    images = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(first.feature_maps(images), later.forward_features(images))


def test_what_is_written_down_is_what_timm_says() -> None:
    timm: Any = timm_or_skip()
    short, full = backbone_info("resnet50"), backbone_info("timm:resnet50.tv_in1k")
    assert replace(full, name=short.name, summary=short.summary) == short
    assert backbone_info("timm:convnextv2_atto").license == "CC-BY-NC-4.0, not for commercial use"
    assert backbone_info("timm:vit_small_patch16_dinov3").license == "dinov3-license"
    assert count_timm_models() == len(timm.list_models())
    assert set(RECOMMENDED_MODELS) <= set(timm.list_models(pretrained=True))
