from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests.mutations import Calls
from tests.serving import serve
from tests.timm_models import timm_or_skip
from torch import Tensor, nn

from labelgap import models
from labelgap.core.errors import InputError, UnknownNameError
from labelgap.core.files import file_digest
from labelgap.models import TimmBackbone, backbone_info, check_backbone, create_backbone, is_pretrained, weight_files
from labelgap.models.timm import import_timm

timm: Any = timm_or_skip()

SIDE = 64
MODELS = {
    "test_resnet": (96, 2),
    "mobilenetv3_small_100": (1024, 2),
    "test_vit": (64, 4),
    "test_vit2": (64, 4),
    "test_vit3": (96, 4),
    "test_mambaout": (256, 2),
    "test_convnext": (64, 2),
}
"""Plain maps; a layer after the pooling; a class token; an average beside a token; pooling by attention; channels last
with layers after the pooling; a norm after the pooling. Each with its width and the side of its maps for images of 64
pixels."""


@pytest.fixture(scope="module", params=MODELS)
def backbone(request: pytest.FixtureRequest) -> TimmBackbone:
    torch.manual_seed(0)
    made = create_backbone(f"timm:{request.param}", pretrained=False, size=SIDE).eval()
    assert isinstance(made, TimmBackbone)
    with torch.no_grad():  # biases and norms start at 0 and 1, where much that is wrong looks right
        for parameter in made.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return made


@pytest.fixture(scope="module")
def images() -> Tensor:
    return torch.randn(2, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))


def of_timm(backbone: TimmBackbone) -> Any:
    """The same network as timm makes it, with its classifier."""
    name = backbone.name.removeprefix("timm:")
    fixed = timm.get_pretrained_cfg(name).fixed_input_size
    model = timm.create_model(name, **({"img_size": SIDE} if fixed else {})).eval()
    lacking, strange = model.load_state_dict(backbone.model.state_dict(), strict=False)
    assert not strange and all(name.startswith(("fc.", "head.", "classifier.")) for name in lacking)
    return model


@contextmanager
def passes(backbone: TimmBackbone, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How often pictures go through the network."""
    counted: list[int] = []
    whole: Any = backbone.model.forward_features

    def forward_features(images: Tensor) -> Any:
        counted.append(len(images))
        return whole(images)

    with monkeypatch.context() as patched:
        patched.setattr(backbone.model, "forward_features", forward_features)
        yield counted


def test_features_are_timms_own(backbone: TimmBackbone, images: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    model, (width, side) = of_timm(backbone), MODELS[backbone.name.removeprefix("timm:").partition(".")[0]]
    with torch.inference_mode(), passes(backbone, monkeypatch) as counted:
        expected = model.forward_head(model.forward_features(images), pre_logits=True)
        feature_maps, features = backbone.maps_and_features(images)
        assert counted == [2]
        torch.testing.assert_close(features, expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(feature_maps, backbone.feature_maps(images))
        torch.testing.assert_close(features, backbone(images))
    assert backbone.num_features == width and backbone.input_spec.size == SIDE
    assert feature_maps.shape == (2, width, side, side) and bool(feature_maps.isfinite().all())


@pytest.mark.parametrize("head", ["linear", "boostlu"])
def test_a_classifier_sends_each_picture_through_once_and_everything_in_it_learns(
    backbone: TimmBackbone, images: Tensor, monkeypatch: pytest.MonkeyPatch, head: str
) -> None:
    """Nothing may be left without a gradient: data parallelism waits for all of them."""
    model = models.Classifier(backbone, classes=3, head=head).eval()
    for return_features in (False, True):
        with torch.inference_mode(), passes(backbone, monkeypatch) as counted:
            made = model(images, return_features=return_features)
        assert counted == [2]
    with torch.inference_mode():
        taken = backbone.feature_maps(images) if head == "boostlu" else backbone.features(images)
        torch.testing.assert_close(made[0], model.head(taken), rtol=1e-4, atol=1e-4)
    model.train()
    try:
        torch.autograd.backward(model(images).square().sum())
        lacking = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    finally:
        model.zero_grad()
        model.eval()
    assert lacking == []


def test_maps_of_a_plain_network_are_its_own_and_average_to_the_features(images: Tensor) -> None:
    for name in ("test_resnet", "swin_tiny_patch4_window7_224"):
        backbone = create_backbone(f"timm:{name}", pretrained=False, size=SIDE).eval()
        assert isinstance(backbone, TimmBackbone)
        with torch.inference_mode():
            seen = backbone.model.forward_features(images)
            feature_maps, features = backbone.maps_and_features(images)
        assert torch.equal(feature_maps, seen if name == "test_resnet" else seen.permute(0, 3, 1, 2))
        torch.testing.assert_close(feature_maps.mean(dim=(2, 3)), features, rtol=1e-4, atol=1e-5)


def test_pictures_that_are_not_square_keep_their_shape(images: Tensor) -> None:
    wide = torch.cat([images, images], dim=3)
    for name in ("test_resnet", "test_mambaout", "twins_pcpvt_small"):
        with torch.device("meta"), torch.no_grad():
            backbone = create_backbone(f"timm:{name}", pretrained=False, size=SIDE).eval()
            assert backbone.feature_maps(images.to("meta")).shape[2:] == (2, 2)
            assert backbone.feature_maps(wide.to("meta")).shape[2:] == (2, 4)


@pytest.mark.parametrize("name", ["pit_ti_224", "efficientvim_m1"])
def test_a_network_without_places_has_features_and_says_that_it_has_no_maps(name: str) -> None:
    backbone = create_backbone(f"timm:{name}", pretrained=False).eval()
    pictures = torch.zeros(1, 3, backbone.input_spec.size, backbone.input_spec.size)
    with torch.inference_mode():
        assert backbone.features(pictures).shape == (1, backbone.num_features)
        with pytest.raises(InputError, match="--head linear"):
            backbone.feature_maps(pictures)


@pytest.mark.parametrize(
    ("name", "side", "prefix"), [("deit_tiny_distilled_patch16_224", 14, 2), ("xcit_nano_12_p16_224", 14, 1)]
)
def test_tokens_before_the_places_are_no_places(name: str, side: int, prefix: int) -> None:
    backbone = create_backbone(f"timm:{name}", pretrained=False).eval()
    assert isinstance(backbone, TimmBackbone)
    pictures = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        tokens = backbone.model.forward_features(pictures)
        feature_maps = backbone.feature_maps(pictures)
    assert tokens.shape[1] == side * side + prefix and feature_maps.shape[2:] == (side, side)
    assert torch.equal(feature_maps.flatten(2).transpose(1, 2), tokens[:, prefix:])


def test_the_input_is_the_models_own() -> None:
    for name in ("vit_tiny_patch16_224", "resnet18.tv_in1k", "test_convnext", "tf_mobilenetv3_small_minimal_100"):
        told = timm.data.resolve_data_config(pretrained_cfg=timm.get_pretrained_cfg(name).to_dict())
        with torch.device("meta"):
            spec = create_backbone(f"timm:{name}", pretrained=False).input_spec
        assert (spec.channels, spec.size, spec.size) == tuple(told["input_size"])
        assert (spec.mean, spec.std) == (tuple(told["mean"]), tuple(told["std"]))
        assert spec.interpolation == told["interpolation"]


def test_a_size_that_a_network_cannot_have_is_refused_at_once() -> None:
    with pytest.raises(InputError, match=r"twins_pcpvt_small .*250 px"):
        create_backbone("timm:twins_pcpvt_small", pretrained=False, size=250)
    with pytest.raises(InputError, match=r"densenet121 .*3 × 8 × 8"):
        create_backbone("timm:densenet121", pretrained=False, size=8)


def test_a_network_that_gives_no_vector_is_no_backbone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Encoder(nn.Conv2d):
        def forward_features(self, images: Tensor) -> Any:
            return self(images)

        def forward_head(self, seen: Tensor, pre_logits: bool) -> Tensor:
            if pre_logits:
                raise NotImplementedError("an encoder has no head")
            return seen

    monkeypatch.setattr(import_timm(), "create_model", lambda *arguments, **options: Encoder(3, 2, 1))
    with pytest.raises(InputError, match=r"timm:resnet18 .*3 × 224 × 224"):
        create_backbone("timm:resnet18", pretrained=False)
    monkeypatch.setattr(Encoder, "forward_head", lambda self, seen, pre_logits: seen)
    with pytest.raises(InputError, match="timm:resnet18"):
        create_backbone("timm:resnet18", pretrained=False)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("timm:resnet19", r"no backbone 'timm:resnet19'\. Did you mean 'timm:resnet18'\? timm has 1,\d+ models"),
        ("timm:resnet50.tv_in2k", r"Did you mean 'timm:resnet50.tv_in1k'"),
        ("timm:", "no backbone 'timm:'"),
        ("timm:hf-hub:timm/resnet18", "no backbone"),
    ],
)
def test_of_an_unknown_name_the_nearest_is_told(name: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_timm(), "create_model", lambda *args, **options: pytest.fail("built"))
    for ask in (check_backbone, create_backbone, is_pretrained):
        with pytest.raises(UnknownNameError, match=message):
            ask(name)


def test_names_of_timm_are_known_with_and_without_a_tag_also_deprecated_ones() -> None:
    for known in ("timm:vit_giant_patch14_dinov2", "timm:resnet50.tv_in1k", "timm:convnext_tiny_in22ft1k", "resnet50"):
        check_backbone(known)
    bare = next(name for name in timm.list_models("resnet*") if not timm.get_pretrained_cfg(name).has_weights)
    assert not is_pretrained(f"timm:{bare}") and is_pretrained("timm:vit_giant_patch14_dinov2.lvd142m")


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


def test_a_torchvision_that_does_not_fit_is_named_each_time(tmp_path: Path) -> None:
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
    assert len(said) == 3 and all(line.startswith("InputError ") for line in said)
    assert all("pip install torch torchvision" in line for line in said)


def test_without_timm_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    for name in ("timm:resnet18", "resnet50"):
        for ask in (check_backbone, create_backbone):
            with pytest.raises(InputError, match=r"pip install 'labelgap\[timm\]'"):
                ask(name)
    with pytest.raises(InputError, match=r"pip install 'labelgap\[timm\]'"):
        is_pretrained("timm:resnet18")
    assert models.count_timm_models() is None
    assert is_pretrained("resnet50") and [row.name for row in models.list_backbones()] == models.backbone_names()


def test_the_first_resnet50_takes_the_file_of_the_later_one_and_halves_earlier(tmp_path: Path) -> None:
    later = timm.create_model("resnet50").eval()
    torch.save(later.state_dict(), tmp_path / "resnet50.pth")
    first = create_backbone("resnet50-v1", weights=tmp_path / "resnet50.pth", size=64).eval()
    assert (models.count_parameters(first), first.num_features) == (backbone_info("resnet50-v1").parameters, 2048)
    for stage in (later.layer2, later.layer3, later.layer4):
        stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)
    images = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(first.feature_maps(images), later.forward_features(images))


def test_what_is_written_down_is_what_timm_says() -> None:
    short, full = backbone_info("resnet50"), backbone_info("timm:resnet50.tv_in1k")
    assert replace(full, name=short.name, summary=short.summary) == short
    assert backbone_info("timm:convnextv2_atto").license == "CC-BY-NC-4.0, not for commercial use"
    assert backbone_info("timm:vit_small_patch16_dinov3").license == "dinov3-license"
    assert models.count_timm_models() == len(timm.list_models())
    assert set(models.RECOMMENDED_MODELS) <= set(timm.list_models(pretrained=True))


constants: Any = pytest.importorskip("huggingface_hub.constants")

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def empty_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither cache of this machine, no proxy, and nobody's wish to be offline."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """No network: no name can be looked up. Returns the names that were asked for."""
    names: list[str] = []

    def nobody_knows(host: Any, *rest: Any, **options: Any) -> Any:
        names.append(str(host))
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", nobody_knows)
    return names


@pytest.mark.parametrize(
    ("name", "place", "host"),
    [
        ("timm:resnet18", "timm/resnet18.a1_in1k", "huggingface.co"),
        ("resnet50", "timm/resnet50.tv_in1k", "huggingface.co"),
        ("timm:gcvit_xxtiny", "gcvit_xxtiny_224_nvidia-d1d86009.pth", "github.com"),
    ],
)
def test_offline_one_message_helps(
    name: str, place: str, host: str, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError) as refused:
        create_backbone(name)
    assert [found for found in asked if found == host] == [host]
    message = str(refused.value)
    assert message.startswith(f"the pretrained weights of {name} (") and place in message and "\n" not in message
    assert all(remedy in message for remedy in ("--weights FILE", "into the cache", "--weights none"))
    asked.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match="HF_HUB_OFFLINE"):
        create_backbone("timm:resnet18")
    assert asked == []


def test_a_server_that_does_not_answer_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert weight_files.TIMEOUT_SECONDS <= 10
    monkeypatch.setattr(weight_files, "TIMEOUT_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/{revision}/{filename}")
        with pytest.raises(InputError, match="timed out"):
            create_backbone("timm:resnet18")


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What lies on the hub: weights with their classifier."""
    torch.manual_seed(3)
    path = tmp_path_factory.mktemp("published") / "model.safetensors"
    save_file(timm.create_model("resnet18").state_dict(), path)
    return path


def loaded(backbone: Any, published: Path) -> bool:
    torch.manual_seed(3)
    state = timm.create_model("resnet18").state_dict()
    assert isinstance(backbone, TimmBackbone)
    return all(torch.equal(value, state[name]) for name, value in backbone.model.state_dict().items())


def test_what_is_in_the_cache_needs_no_network(published: Path, asked: list[str]) -> None:
    folder = Path(constants.HF_HUB_CACHE) / "models--timm--resnet18.a1_in1k"
    (folder / "snapshots" / COMMIT).mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(COMMIT)
    (folder / "snapshots" / COMMIT / "model.safetensors").write_bytes(published.read_bytes())
    backbone = create_backbone("timm:resnet18")
    assert loaded(backbone, published) and asked == []
    assert (backbone.source, backbone.license) == ("timm/resnet18.a1_in1k on the Hugging Face hub", "Apache-2.0")
    assert create_backbone("timm:resnet18", size=96).input_spec.size == 96
    (folder / "snapshots" / COMMIT / "model.safetensors").write_text("damaged")
    with pytest.raises(InputError, match=r"model\.safetensors"):
        create_backbone("timm:resnet18")


def test_torchs_cache_is_read_too(asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(4)
    model = timm.create_model("legacy_seresnet18")
    path = Path(torch.hub.get_dir()) / "checkpoints" / "seresnet18-4bb0ce65.pth"
    path.parent.mkdir(parents=True)
    torch.save(model.state_dict(), path)
    backbone = create_backbone("timm:legacy_seresnet18")
    assert asked == [] and torch.equal(backbone.state_dict()["model.layer0.conv1.weight"], model.layer0.conv1.weight)
    assert backbone.source.endswith(path.name)
    torch.save({"layer0.conv1.weight": Calls(Path("ran").touch)}, path)
    with pytest.raises(InputError, match=path.name):
        create_backbone("timm:legacy_seresnet18")
    assert not Path("ran").exists()


@pytest.fixture
def hub(published: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A hub that has one file, on this machine. Returns what it was asked for."""
    requests: list[str] = []

    class Hub(SimpleHTTPRequestHandler):
        def send_head(self) -> Any:
            name = self.path.rpartition("/")[2]
            requests.append(f"{self.command} {name}")
            self.path = f"/{name}"
            return super().send_head()

        def end_headers(self) -> None:
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("X-Error-Code", "EntryNotFound")  # of what is not there
            self.send_header("ETag", f'"{file_digest(published).hex()}"')
            super().end_headers()

        def log_message(self, *args: object) -> None: ...

    with serve(partial(Hub, directory=str(published.parent))) as address:
        monkeypatch.setattr(constants, "ENDPOINT", address)
        template = address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield requests


def test_what_is_fetched_once_is_kept(published: Path, hub: list[str]) -> None:
    assert loaded(create_backbone("timm:resnet18"), published)
    assert hub.count("GET model.safetensors") == 1
    hub.clear()
    assert loaded(create_backbone("timm:resnet18"), published)
    assert hub == []
