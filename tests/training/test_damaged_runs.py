"""Whatever happens to a file of a run, opening and using it ends in a result or in a ``RunError``."""

from __future__ import annotations

import copy
import json
import os
import shutil
from collections.abc import Iterator
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.audit.small_runs import arrays
from tests.mutations import mutations
from tests.training.test_fit import Tiny
from torch import Tensor

import labelgap as lg
from labelgap.core.errors import RunError
from labelgap.core.manifest import MANIFEST_FILE
from labelgap.core.tensors import read_tensors, write_tensors
from labelgap.data.dataset import Dataset
from labelgap.training.run_files import BEST, LAST, PREDICTIONS_FILE
from labelgap.training.run_folder import read_predictions

ENTRIES: tuple[Any, ...] = (None, True, -1, 10**40, 1e308, float("nan"), float("inf"), "x", "\n" * 5000, [], {}, [[{}]])


SETTINGS: dict[str, Any] = {"epochs": 3, "lr": 0.1, "batch_size": 8, "trace": 20, "device": "cpu", "quiet": True}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    path = tmp_path_factory.mktemp("data") / "vectors.npz"
    np.savez(path, **arrays(rows=30, width=4))  # type: ignore[arg-type]
    return lg.load("features", path)


@pytest.fixture(scope="module")
def original(data: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with every file; small, so that a mutation hits what matters."""
    out = tmp_path_factory.mktemp("runs") / "run"
    run = lg.fit(data, "ll-cp", {"delta_rel": 20}, out=out, **SETTINGS)
    assert len(run.revisions) and run.calibration and len(run.trace) == 7
    return out


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    """A copy without its manifest: every file has to be checked by its own reader."""
    shutil.copytree(original, tmp_path / "run")
    (tmp_path / "run" / MANIFEST_FILE).unlink()
    return tmp_path / "run"


def use(folder: Path, data: Dataset) -> lg.Run:
    """Read everything of a run but its pages."""
    opened = lg.open_run(folder)
    opened._repr_html_(), repr(opened)
    assert opened.finished or not opened.metrics
    if opened.finished:
        assert len(opened.thresholds.values) == len(opened.config.classes)
        if opened.calibration is not None:
            opened.calibration.probabilities(np.zeros((1, len(opened.config.classes)), dtype=np.float32))
    assert opened.trace.keys() <= {"row", "column", "observed", "truth", "loss", "logit", "modified"}
    len(opened.revisions), opened.revisions.until(1)
    opened.count_training_images(data, "train")
    assert data.test is not None
    read_predictions(folder, "test", data.test.labels.images[:3], opened.config.classes)
    assert opened.model.training is False
    return opened


def tried(folder: Path, data: Dataset, *, report: bool = False) -> bool:
    """Whether a run can be used; anything but a ``RunError`` fails the test."""
    try:
        opened = use(folder, data)
        if report and opened.config.classes == data.classes:
            opened.evaluate(data, device="cpu", resamples=0)
            lg.write_report(opened, data=data)
    except RunError as error:
        assert str(folder) in str(error)
        return False
    return True


def test_damage_to_any_file_is_told_and_found_by_the_manifest(original: Path, run: Path, data: Dataset) -> None:
    manifest = (original / MANIFEST_FILE).read_bytes()
    listed = set(json.loads(manifest)["files"])
    names = {"config.json", "data.parquet", "metrics.jsonl", BEST, LAST, PREDICTIONS_FILE, "revisions.parquet"}
    assert {*names, "search.safetensors", "traces.npz"} == listed
    for name in listed - {LAST, "search.safetensors"}:  # which only a resumed run reads
        content = (run / name).read_bytes()
        for number, damaged in enumerate((*mutations(content, 20), None)):
            (run / name).unlink() if damaged is None else (run / name).write_bytes(damaged)
            tried(run, data, report=number == 0)
            if number < 6 or damaged is None:
                (run / MANIFEST_FILE).write_bytes(manifest)
                assert not tried(run, data), name
            (run / MANIFEST_FILE).unlink(missing_ok=True)
        (run / name).write_bytes(content)
        assert tried(run, data)
        (run / MANIFEST_FILE).unlink(missing_ok=True)
    for damaged in mutations(manifest, 15):
        (run / MANIFEST_FILE).write_bytes(damaged)
        tried(run, data)


@pytest.mark.parametrize(
    "name", ["config.json", "metrics.jsonl", BEST, "traces.npz", PREDICTIONS_FILE, "revisions.parquet"]
)
def test_something_else_in_the_place_of_a_file_is_not_waited_for(run: Path, data: Dataset, name: str) -> None:
    path = run / name
    path.unlink()
    os.mkfifo(path)
    assert not tried(run, data)
    path.unlink()
    for target in (path.name, "nowhere"):
        path.symlink_to(target)
        assert not tried(run, data)
        path.unlink()
    path.mkdir()
    assert not tried(run, data)


@pytest.mark.parametrize(
    "name", [LAST, BEST, "traces.parts/entries.npz", "traces.parts/000001.npz", "revisions.parquet"]
)
def test_an_unfinished_run_resumes_to_the_same_or_says_why_not(
    data: Dataset, original: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object, **__: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(import_module("labelgap.training.fit"), "merge_trace", killed)
        lg.fit(data, "ll-cp", {"delta_rel": 20}, out=tmp_path / "stopped", **SETTINGS)
    content = (tmp_path / "stopped" / name).read_bytes()
    for number, damaged in enumerate(mutations(content, 3, seed=1)):
        out = tmp_path / str(number)
        shutil.copytree(tmp_path / "stopped", out)
        (out / name).write_bytes(damaged)
        try:
            resumed = lg.fit(data, "ll-cp", {"delta_rel": 20}, out=out, resume=True, **SETTINGS)
        except RunError as error:
            assert name != LAST, f"an older file could be used instead: {error}"
            assert Path(name).name in str(error)
        else:
            for same in (BEST, PREDICTIONS_FILE, "traces.npz"):
                assert (resumed.path / same).read_bytes() == (original / same).read_bytes(), (number, same)
        shutil.rmtree(out)


def replaced(value: Any) -> Iterator[Any]:
    """Every version of a JSON value in which one entry has another value, or is missing."""
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            for other in (*ENTRIES, *replaced(value[key])):
                changed = copy.copy(value)
                changed[key] = other
                yield changed
            changed = copy.copy(value)
            del changed[key]
            yield changed


def rewritten(path: Path, step: int) -> Iterator[None]:
    """Write some versions of a file of JSON objects, one in a line or over all of them, one after the other."""
    text = path.read_text()
    original = [json.loads(text)] if path.suffix == ".json" else [json.loads(line) for line in text.splitlines()]
    for changed in islice(replaced(original), 0, None, step):
        path.write_text("".join(json.dumps(line) + "\n" for line in changed))
        yield


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(("name", "step", "reported"), [("config.json", 5, 80), ("metrics.jsonl", 17, 160)])
def test_other_values_are_refused_or_harmless(run: Path, data: Dataset, name: str, step: int, reported: int) -> None:
    accepted = 0
    for number, _ in enumerate(rewritten(run / name, step)):
        accepted += tried(run, data, report=number % reported == 0)
        (run / MANIFEST_FILE).unlink(missing_ok=True)
    assert 0 < accepted < number / 2


@pytest.mark.parametrize(
    "change",
    [
        {"head.weight": torch.zeros(3, 4)},
        {"head.weight": torch.zeros(0, 2**50)},
        {"head.weight": torch.zeros(4)},
        {"head.weight": torch.zeros(4, 4, dtype=torch.complex64)},
        {"head.more": torch.zeros(1)},
        {"backbone.layer": torch.zeros(1)},
    ],
)
def test_tensors_that_do_not_fit_the_network_are_refused(run: Path, data: Dataset, change: dict[str, Tensor]) -> None:
    tensors, metadata = read_tensors(run / BEST)
    write_tensors(run / BEST, tensors | change, metadata)
    assert not tried(run, data)
    write_tensors(run / BEST, {}, metadata)
    assert not tried(run, data)


def test_arrays_of_another_shape_type_or_value_are_refused(run: Path, data: Dataset) -> None:
    with np.load(run / "traces.npz") as stored:
        arrays = dict(stored)
    for name, array in arrays.items():
        others = [array[..., :-1], array.ravel()[0], array[None], array.astype(np.float64), array.astype("S3")]
        others += [np.full_like(array, 5)] if name in ("observed", "truth") else []
        others += [-array - 1] if name in ("row", "column") else []
        for other in others:
            np.savez(run / "traces.npz", **{**arrays, name: other})
            assert not tried(run, data), (name, other)
    np.savez_compressed(run / "traces.npz", **{**arrays, "more": np.zeros(10**8, dtype=np.int8)})
    assert not tried(run, data)


def test_a_backbone_that_was_given_as_an_object_is_checked(digits: Dataset, tmp_path: Path) -> None:
    run = lg.fit(digits, "an", backbone=Tiny(), out=tmp_path / "run", epochs=1, device="cpu", quiet=True)
    path = run.path / "backbone.safetensors"
    content = path.read_bytes()
    for manifest in (True, False):
        for damaged in mutations(content, 10):
            path.write_bytes(damaged)
            for opened in (lg.open_run(run.path), lg.open_run(run.path, backbone=Tiny())):
                try:
                    opened.initial_backbone()
                except RunError as error:
                    assert path.name in str(error)
                else:
                    assert not manifest
        path.write_bytes(content)
        assert lg.open_run(run.path).initial_backbone().name == run.config.backbone
        (run.path / MANIFEST_FILE).unlink(missing_ok=True)
