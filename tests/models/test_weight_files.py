from __future__ import annotations

import argparse
import hashlib
import json
import math
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests.mutations import Calls
from tests.timm_models import timm_or_skip
from torch import Tensor, nn

from labelgap.core.errors import InputError
from labelgap.models import Backbone, Classifier, create_backbone, is_pretrained
from labelgap.models.efficientnet_lite import pretrained_weight_file
from labelgap.models.info import LITE0

timm: Any = timm_or_skip()

State = dict[str, Tensor]


@pytest.fixture(scope="module")
def original() -> State:
    """A network of timm with a classifier over seven classes of its own."""
    torch.manual_seed(7)
    state: State = timm.create_model("test_resnet", num_classes=7).state_dict()
    return state


def saved(state: Any, path: Path) -> Path:
    if path.suffix == ".safetensors":
        save_file(state, path)
    else:
        torch.save(state, path)
    return path


def same(backbone: Backbone, state: State) -> bool:
    """Whether a timm backbone has exactly these tensors, apart from the classifier."""
    ours = {name.removeprefix("model."): value for name, value in backbone.state_dict().items()}
    wanted = {name: value for name, value in state.items() if not name.startswith("fc.")}
    return ours.keys() == wanted.keys() and all(torch.equal(ours[name], wanted[name]) for name in wanted)


def renamed(state: State, rename: Callable[[str], str]) -> State:
    return {rename(name): value for name, value in state.items()}


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_a_file_comes_back_as_it_was(original: State, tmp_path: Path, suffix: str) -> None:
    path, state = saved(original, tmp_path / f"weights{suffix}"), torch.get_rng_state()
    backbone = create_backbone("timm:test_resnet", weights=path)
    assert same(backbone, original) and torch.equal(torch.get_rng_state(), state)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    assert backbone.source == f"the file weights{suffix} (sha256 {digest}…)"
    assert backbone.license == "not known: ask whoever gave you the file"
    assert is_pretrained("timm:test_resnet", path) and same(
        create_backbone("timm:test_resnet", pretrained=False, weights=str(path)), original
    )


WRAPPERS: dict[str, Callable[[State], Any]] = {
    "state_dict": lambda state: {"epoch": 3, "state_dict": state, "optimizer": {"lr": 0.1}},
    "model": lambda state: {"model": state, "args": argparse.Namespace(lr=0.1)},
    "module.": lambda state: renamed(state, lambda name: f"module.{name}"),
    "both, compiled": lambda state: {"state_dict": renamed(state, lambda name: f"module._orig_mod.{name}")},
    "twice": lambda state: {"model": {"state_dict": state}},
    "lightning": lambda state: {"state_dict": renamed(state, lambda name: f"model.{name}") | {"loss.w": torch.ones(1)}},
    "a part of another": lambda state: (
        renamed(state, lambda name: f"student.net.{name}") | {"fc.weight": torch.ones(3)}
    ),
    "the averaged first": lambda state: {"state_dict": {"a": torch.ones(1)}, "state_dict_ema": state},
    "headless": lambda state: {name: value for name, value in state.items() if not name.startswith("fc.")},
    "old counters": lambda state: {name: value for name, value in state.items() if "num_batches" not in name},
    "halves": lambda state: renamed(state, str) | {"fc.weight": torch.zeros(3, 512).half()},
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_the_usual_wrappers_come_off(original: State, tmp_path: Path, wrapper: str) -> None:
    path = saved(WRAPPERS[wrapper](original), tmp_path / "weights.pth")
    assert same(create_backbone("timm:test_resnet", weights=path), original)


def test_a_run_of_labelgap_is_a_file_of_weights(tmp_path: Path) -> None:
    for name in ("timm:test_resnet", "small-cnn"):
        torch.manual_seed(1)
        model = Classifier(create_backbone(name, pretrained=False), classes=3)
        state = {key: value.contiguous() for key, value in model.state_dict().items()}
        again = create_backbone(name, weights=saved(state, tmp_path / "best.safetensors"))
        assert all(torch.equal(again.state_dict()[key], value) for key, value in model.backbone.state_dict().items())
        assert "best.safetensors" in again.source
    path = saved(torch.load(pretrained_weight_file(LITE0), weights_only=True), tmp_path / "lite0.pth")
    ours, given = create_backbone("efficientnet-lite0"), create_backbone("efficientnet-lite0", weights=path)
    assert all(torch.equal(given.state_dict()[name], value) for name, value in ours.state_dict().items())
    assert ours.source != given.source


def test_a_transformer_is_fitted_to_pictures_of_another_size(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", num_classes=3)
    path = saved(model.state_dict(), tmp_path / "vit.safetensors")
    backbone = create_backbone("timm:vit_tiny_patch16_224", weights=path, size=96)
    state = {name.removeprefix("model."): value for name, value in backbone.state_dict().items()}
    assert state["pos_embed"].shape == (1, 37, 192) and model.pos_embed.shape == (1, 197, 192)
    assert torch.equal(state["pos_embed"][:, 0], model.pos_embed[:, 0])
    assert torch.equal(state["blocks.3.attn.qkv.weight"], model.blocks[3].attn.qkv.weight)


def test_the_weights_of_another_network_are_refused_with_the_first_names(original: State, tmp_path: Path) -> None:
    deeper = original | renamed(original, lambda name: f"layer5.{name}")
    gray = original | {"conv1.0.weight": original["conv1.0.weight"][:, :1]}
    holey = {name: value for name, value in original.items() if "layer4.0.bn2" not in name}
    for name, state, *named in (
        ("timm:test_resnet", deeper, "of 90 tensors", "(layer5.conv1.0.weight, layer5.conv1.1.weight, "),
        ("efficientnet-lite0", deeper, "missing"),
        ("timm:test_resnet", gray, "(conv1.0.weight: ", "×1×3×3 for "),
        ("timm:test_resnet", holey, "4 are missing (layer4.0.bn2.weight, layer4.0.bn2.bias, "),
    ):
        path = saved(state, tmp_path / "weights.pth")
        with pytest.raises(InputError) as refused:
            create_backbone(name, weights=path)
        assert all(each in str(refused.value) for each in (f"{path} does not fit {name}", *named))


def test_what_is_no_file_of_weights_is_refused_and_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.pth").write_text("no weights")
    Path("text.safetensors").write_text("no weights")
    Path("empty.pt").touch()
    torch.save(nn.Linear(2, 2), "whole.pth")
    torch.save({"a": Calls(Path("ran").touch)}, "surprise.pth")
    state = dict(create_backbone("small-cnn").state_dict())
    torch.save(state, "damaged.pth")
    content = bytearray(Path("damaged.pth").read_bytes())
    content[content.index(b"data/0") + 200] ^= 1
    Path("damaged.pth").write_bytes(content)
    Path("nested.pth").write_bytes(b"\x80\x02" + b"(" * 10_000 + b".")
    header = json.dumps({"a": {"dtype": "F32", "shape": [1 << 40, 1 << 20], "data_offsets": [0, 4]}}).encode()
    Path("large.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    with zipfile.ZipFile("bomb.pth", "w", zipfile.ZIP_DEFLATED) as bomb:
        bomb.writestr("bomb/data.pkl", b"\x80\x02}q\x00.")
        bomb.writestr("bomb/data/0", bytes(1 << 20))
    Path("control.pth").write_bytes(b"\x80\x02c\x1b[2J\nx\n.")
    for file in sorted(tmp_path.iterdir()):
        with pytest.raises(InputError, match=rf"{file.name} cannot be read as weights") as refused:
            create_backbone("small-cnn", weights=file)
        assert str(refused.value).isprintable()
    assert not Path("ran").exists()
    cycle: dict[str, Any] = {}
    cycle["model"] = cycle
    for number, empty in enumerate(({"epoch": 3}, [torch.zeros(2)], cycle)):
        torch.save(empty, f"{number}.pth")
        with pytest.raises(InputError, match="holds no weights"):
            create_backbone("small-cnn", weights=f"{number}.pth")
    for place in ("nowhere.pth", tmp_path):
        with pytest.raises(InputError, match=f"{place}.* (do not exist|are a folder)"):
            create_backbone("small-cnn", weights=place)
    torch.save({**state, "x\x1b[2J" * 1000: torch.zeros(1)}, "names.pth")
    with pytest.raises(InputError) as refused:
        create_backbone("small-cnn", weights="names.pth")
    assert len(str(refused.value)) < 500 and "\x1b" not in str(refused.value)


@pytest.mark.filterwarnings("ignore:.*(nested|quantize|Sparse|_fake_quant).*")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda value: torch.full_like(value, math.nan), "not finite"),
        (lambda value: value.to(torch.complex64), "is not a plain tensor"),
        (lambda value: value.to_sparse(), "is not a plain tensor"),
        (lambda value: value.to("meta"), "is not a plain tensor"),
        (lambda value: torch.nested.nested_tensor([value[0], value[1, :3]]), "is not a plain tensor"),
        (lambda value: value.to(torch.int8), "has another type"),
        (lambda value: torch.zeros(1).expand(1 << 40), "larger than the file"),
        (lambda value: Calls(bytearray, (1 << 45,)), "cannot be read"),
        (lambda value: Calls(torch._utils._rebuild_parameter, (3, True, OrderedDict())), "cannot be read"),
    ],
)
def test_a_hostile_tensor_is_one_error(change: Callable[[Tensor], object], message: str, tmp_path: Path) -> None:
    state = dict(create_backbone("small-cnn").state_dict())
    name = next(iter(state))
    torch.save({**state, name: change(state[name])}, tmp_path / "a.pth")
    with pytest.raises(InputError, match=message):
        create_backbone("small-cnn", weights=tmp_path / "a.pth")
