"""A run of somebody else names no code, file or address that is used unasked."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.audit.small_runs import arrays, train
from tests.cli.conftest import call
from tests.killing import run_forked
from tests.timm_models import timm_or_skip
from tests.training.untrained_run import make_run

import labelgap as lg
from labelgap.core.errors import RunError
from labelgap.core.manifest import MANIFEST_FILE
from labelgap.core.tensors import write_tensors
from labelgap.core.trust import TRUST_VARIABLE
from labelgap.data import ArrayImages
from labelgap.data.dataset import Dataset
from labelgap.inference.predict import predict_to_file

OPENED: list[str] = []
WATCHED: list[str] = []


def hook(event: str, values: tuple[Any, ...]) -> None:
    if event == "open" and any(str(values[0]).endswith(name) for name in WATCHED):
        OPENED.append(str(values[0]))
    elif WATCHED and event in ("socket.connect", "socket.getaddrinfo"):
        OPENED.append(event)


sys.addaudithook(hook)


@pytest.fixture
def watched() -> Iterator[list[str]]:
    """What the test must not open: files whose names end in one of the list, and any address."""
    OPENED.clear()
    WATCHED.append("private")
    yield WATCHED
    WATCHED.clear()


@pytest.fixture
def data(tmp_path: Path) -> Dataset:
    np.savez(tmp_path / "vectors.npz", **arrays(rows=30))  # type: ignore[arg-type]
    return lg.load("features", tmp_path / "vectors.npz")


@pytest.fixture
def run(data: Dataset, tmp_path: Path) -> Path:
    return train(tmp_path, data, "an", epochs=1, trace="all").path


def forge(folder: Path, **changes: Any) -> None:
    """Change the configuration as anybody can who has no key of this user."""
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, **changes, "signature": "0" * 64}))
    (folder / MANIFEST_FILE).unlink(missing_ok=True)


def test_data_are_not_loaded_from_a_path_that_a_foreign_run_names(
    run: Path, data: Dataset, tmp_path: Path, watched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lg.open_run(run).load_data().classes == data.classes, "it is mine"
    shutil.copy(tmp_path / "vectors.npz", tmp_path / "vectors.npz.private")
    forge(run, data={**data.recipe, "path": str(tmp_path / "vectors.npz.private")})
    OPENED.clear()
    for use in (lambda: lg.open_run(run).load_data(), lambda: lg.find_missing(run, quiet=True)):
        with pytest.raises(RunError, match=r"vectors\.npz\.private.*verify .* --trust"):
            use()
    assert call("audit", str(run)) == 2 and not OPENED
    monkeypatch.setenv(TRUST_VARIABLE, str(tmp_path))
    assert lg.open_run(run).load_data().classes == data.classes and OPENED


@pytest.mark.usefixtures("undrawn")
def test_a_foreign_run_is_evaluated_without_being_trusted(run: Path, tmp_path: Path, watched: list[str]) -> None:
    forge(run)
    watched.append("vectors.npz")
    assert call("report", str(run)) == 0 and (run / "report.html").exists()
    assert not OPENED
    assert call("report", str(run), "--data", str(tmp_path / "vectors.npz")) == 0
    assert call("evaluate", str(run), str(tmp_path / "vectors.npz"), "--device", "cpu", "--resamples", "0") == 0
    assert lg.open_run(run).predict(np.zeros((2, 12), dtype=np.float32), device="cpu").shape == (2, 4)


@pytest.mark.parametrize("name", ["report.html", "best.safetensors", "traces.npz", "linear"])
def test_a_link_that_leaves_a_run_is_neither_read_nor_written(
    run: Path, data: Dataset, tmp_path: Path, watched: list[str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = tmp_path / f"{name}.private"
    if name == "linear":
        victim.mkdir()
    elif (run / name).exists():
        (run / name).rename(victim)
    else:
        victim.write_text("mine")
    before = victim.read_bytes() if victim.is_file() else b""
    (run / name).symlink_to(victim)
    if name == "linear":
        forge(run)  # a signed config.json is no excuse: a folder of mine may come back with links
    OPENED.clear()
    for command in (
        ("report", str(run)),
        ("evaluate", str(run), str(tmp_path / "vectors.npz")),
        ("audit", str(run)),
        ("train", str(tmp_path / "vectors.npz"), "--out", str(run), "--resume"),
    ):
        assert call(*command) == 2, command
    assert not OPENED and (not victim.is_file() or victim.read_bytes() == before)
    with pytest.raises(RunError, match=f"link {name} to"):
        lg.open_run(run)
    monkeypatch.setenv(TRUST_VARIABLE, os.pathsep.join(["/nowhere", str(run)]))
    assert lg.open_run(run).finished


MODULE = """
from pathlib import Path
from torch import nn
Path(__file__).with_name("executed").touch()
class Network(nn.Conv2d):
    def __init__(self):
        super().__init__(3, 4, 3)
class Loss: pass
"""


@pytest.mark.usefixtures("undrawn")
def test_no_class_of_a_foreign_run_is_made(
    run: Path, data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hostile_module.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(
        "labelgap.core.trust.used_classes", lambda: frozenset({"hostile_module:Network", "hostile_module:Loss"})
    )
    forge(run, backbone="hostile_module:Network", method="hostile_module:Loss")
    opened = lg.open_run(run)
    for use in (lambda: opened.model, opened.initial_backbone):
        with pytest.raises(RunError, match="hostile_module:Network"):
            use()
    assert call("report", str(run)) == 0
    assert not (tmp_path / "executed").exists() and "hostile_module" not in sys.modules
    monkeypatch.setenv(TRUST_VARIABLE, str(tmp_path))
    with pytest.raises(RunError, match="does not fit the network"):
        lg.open_run(run).model  # noqa: B018
    assert (tmp_path / "executed").exists()
    del sys.modules["hostile_module"]


def test_no_weights_are_read_or_downloaded_because_a_foreign_run_names_them(tmp_path: Path, watched: list[str]) -> None:
    own = make_run(tmp_path / "run", backbone="efficientnet-lite0")
    assert own.model is not None, "weights that come with a package need no trust"
    (tmp_path / "a.pth.private").write_bytes(b"anything")
    forge(own.path, weights=str(tmp_path / "a.pth.private"))
    OPENED.clear()
    for use in (lambda: lg.open_run(own.path).model, lg.open_run(own.path).initial_backbone):
        with pytest.raises(RunError, match=r"a\.pth\.private"):
            use()
    for name in ("resnet50", "timm:resnet18", "timm:hf-hub:somebody/model", "timm:local-dir:/tmp"):
        forge(own.path, weights=None, backbone=name)
        with pytest.raises(RunError, match=name):
            lg.open_run(own.path).model  # noqa: B018
    assert not OPENED


GIGANTIC = "timm:vit_gigantic_patch14_clip_224"


def peak_growth(use: Any) -> int:
    """Return by how many kilobytes a call raises the most memory that a copy of this process has had."""
    reader, writer = os.pipe()

    def measure() -> None:
        Path("/proc/self/clear_refs").write_text("5")
        before = status_kilobytes()
        use()
        os.write(writer, str(status_kilobytes() - before).encode())

    assert run_forked(measure) == 0
    return int(os.read(reader, 100))


def status_kilobytes() -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1])


def refuse(use: Any) -> None:
    with pytest.raises(RunError):
        use()


def test_a_network_that_does_not_fit_the_weights_of_a_run_takes_no_memory(tmp_path: Path) -> None:
    timm_or_skip().list_models("vit_*")
    own = make_run(tmp_path / "run", backbone="small-cnn", protocol="end-to-end")
    forge(own.path, backbone=GIGANTIC)
    assert peak_growth(lambda: refuse(lambda: lg.open_run(own.path).predict(np.zeros((8, 8, 3), "u1")))) < 300_000
    found: list[Any] = []
    assert peak_growth(lambda: found.extend(lg.verify_run(own.path).problems)) < 300_000
    assert [file.name for file in lg.verify_run(own.path).problems if file.name == "best.safetensors"]
    forge(own.path, backbone="small-cnn")
    write_tensors(own.path / "backbone.safetensors", own.model.backbone.state_dict())
    forge(own.path, backbone=GIGANTIC)
    assert peak_growth(lambda: refuse(lambda: lg.open_run(own.path).initial_backbone())) < 300_000


def test_a_foreign_run_names_no_network_without_weights_and_no_very_large_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timm_or_skip().list_models("vit_*")
    head = make_run(tmp_path / "head", backbone="efficientnet-lite0")
    forge(head.path, backbone="timm:resnet18", weights="none")
    with pytest.raises(RunError, match="the network timm:resnet18 without its weights"):
        lg.open_run(head.path).model  # noqa: B018
    own = make_run(tmp_path / "own", size=4096)
    assert lg.open_run(own.path).model.backbone.input_spec.size == 4096, "it is mine"
    for changes in ({}, {"size": 64, "average_sizes": [64, 4096]}):
        forge(own.path, **changes)
        for use in (lambda: lg.open_run(own.path).model, lg.open_run(own.path).initial_backbone):
            with pytest.raises(RunError, match="images of 4,096 pixels a side"):
                use()
    monkeypatch.setenv(TRUST_VARIABLE, str(tmp_path))
    assert lg.open_run(own.path).model.average_sizes == (64, 4096)


def test_batches_of_large_images_are_smaller_and_the_scores_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "run", size=64)
    pixels = np.random.default_rng(0).integers(0, 256, (5, 64, 64), dtype=np.uint8)
    scores, sizes = run.predict(pixels, device="cpu"), list[int]()
    predict_to_file(run, ArrayImages(pixels), tmp_path / "a.csv", device="cpu")
    monkeypatch.setattr("labelgap.training.loop.inputs.MAX_BATCH_PIXELS", 2 * 64**2)
    run.model.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    np.testing.assert_allclose(run.predict(pixels, device="cpu"), scores, rtol=1e-5)
    predict_to_file(run, ArrayImages(pixels), tmp_path / "b.csv", device="cpu")
    run.model.average_sizes = (32, 64)
    run.predict(pixels, device="cpu")
    run.model.average_sizes = (64, 128)
    run.predict(pixels, device="cpu")
    assert sizes == [2, 2, 1, 2, 2, 1, 2, 2, 1, 1, 1, 1, 1, 1]
