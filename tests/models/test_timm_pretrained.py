"""Pretrained weights of timm models: found in the cache, fetched, or one clear message; never five attempts."""

from __future__ import annotations

import hashlib
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests.timm_models import timm_or_skip

from labelgap.core.errors import InputError
from labelgap.models import TimmBackbone, create_backbone, pretrained

timm: Any = timm_or_skip()
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
    with pytest.raises(InputError, match="HF_HUB_OFFLINE is set"):
        create_backbone("timm:resnet18")
    assert asked == []


def test_a_server_that_does_not_answer_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pretrained.TIMEOUT_SECONDS <= 10
    monkeypatch.setattr(pretrained, "TIMEOUT_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/{revision}/{filename}")
        with pytest.raises(InputError, match=r"cannot be downloaded \(.*timed out"):
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
    with pytest.raises(InputError, match=r"model\.safetensors cannot be read as weights"):
        create_backbone("timm:resnet18")


class Surprise:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path("ran").touch, ())


def test_a_file_in_torchs_cache_is_found_too_and_a_pickle_is_not_run(
    asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(4)
    model = timm.create_model("legacy_seresnet18")
    path = Path(torch.hub.get_dir()) / "checkpoints" / "seresnet18-4bb0ce65.pth"
    path.parent.mkdir(parents=True)
    torch.save(model.state_dict(), path)
    backbone = create_backbone("timm:legacy_seresnet18")
    assert asked == [] and torch.equal(backbone.state_dict()["model.layer0.conv1.weight"], model.layer0.conv1.weight)
    assert backbone.source.endswith(path.name)
    torch.save({"layer0.conv1.weight": Surprise()}, path)
    with pytest.raises(InputError, match=path.name):
        create_backbone("timm:legacy_seresnet18")
    assert not Path("ran").exists()


@pytest.mark.parametrize(
    "name", ["hf-hub:somebody/model", "hf_hub:somebody/model", "local-dir:folder", "local-dir:a.b"]
)
def test_a_name_that_holds_an_address_or_a_folder_is_no_backbone(
    name: str, asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("folder/config.json").write_text('{"architecture": "resnet18"}')
    with pytest.raises(InputError, match="there is no backbone"):
        create_backbone(f"timm:{name}")
    assert asked == []


@pytest.fixture
def hub(published: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A hub that has one file, on this machine. Returns what it was asked for."""
    requests: list[str] = []
    content = published.read_bytes()

    class Hub(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.answer(False)

        def do_GET(self) -> None:
            self.answer(True)

        def answer(self, whole: bool) -> None:
            requests.append(f"{self.command} {self.path.rpartition('/')[2]}")
            there = self.path.endswith("model.safetensors")
            self.send_response(200 if there else 404)
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
            self.send_header("Content-Length", str(len(content) if there else 0))
            if not there:
                self.send_header("X-Error-Code", "EntryNotFound")
            self.end_headers()
            if whole and there:
                self.wfile.write(content)

        def log_message(self, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}")
    yield requests
    server.shutdown()
    thread.join()
    server.server_close()


def test_what_is_fetched_once_is_kept(published: Path, hub: list[str]) -> None:
    assert loaded(create_backbone("timm:resnet18"), published)
    assert hub.count("GET model.safetensors") == 1
    hub.clear()
    assert loaded(create_backbone("timm:resnet18"), published)
    assert hub == []
