"""``fit`` from end to end: on scenes of digits, on precomputed features, and with losses and networks as objects."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from tests.training.untrained_run import make_run
from torch import Tensor, nn
from torch.nn.functional import softplus

import labelgap as lg
from labelgap.core import trust
from labelgap.core.errors import InputError, RunError, UnknownNameError
from labelgap.data import ArrayImages, Dataset, FeatureVectors, Split
from labelgap.labels import LabelTable, Revisions
from labelgap.losses import ElementwiseLoss, LargeLossRejection
from labelgap.models import BoostLU, InputSpec, LinearHead
from labelgap.training import Run
from labelgap.training.fit import fit
from labelgap.training.plan import TrainingRequest, plan_training
from labelgap.training.rerun import train_command, train_script
from labelgap.training.run_files import LAST

SETTINGS: dict[str, Any] = {"epochs": 4, "batch_size": 8, "device": "cpu", "quiet": True}


@pytest.fixture(scope="module")
def unbroken(digits: Dataset, tmp_path_factory: pytest.TempPathFactory) -> lg.Run:
    out = tmp_path_factory.mktemp("runs") / "unbroken"
    return lg.fit(digits, "ll-r", {"delta_rel": 5}, out=out, **SETTINGS)


def test_a_run_is_a_folder_with_the_best_epoch_by_val(unbroken: lg.Run, digits: Dataset, tmp_path: Path) -> None:
    names = {"config.json", "metrics.jsonl", "best.safetensors", "last.pt", "predictions.parquet", "traces.npz"}
    assert {path.name for path in unbroken.path.iterdir()} == {*names, "data.parquet", "manifest.json"}
    assert [record["epoch"] for record in unbroken.history] == [1, 2, 3, 4]
    assert unbroken.finished and unbroken.metrics["test"]["classes_counted"] == 10
    scores = [record["score"] for record in unbroken.history]
    assert unbroken.metrics["best_epoch"] == 1 + int(np.argmax(scores))
    opened = lg.open_run(unbroken.path)
    assert opened.evaluate(digits, "val", device="cpu", resamples=0)["map"] == pytest.approx(max(scores), abs=1e-6)
    stored = pq.read_table(unbroken.path / "predictions.parquet")
    assert stored.column_names == ["image", "split", *(f"score.{name}" for name in digits.classes)]
    assert digits.test is not None and stored.num_rows == 40
    chance = opened.predict(digits.test, device="cpu")
    assert np.asarray(stored["score.7"])[20:] == pytest.approx(chance[:, 7], abs=1e-5)
    Image.fromarray(np.zeros((64, 64), dtype=np.uint8)).save(tmp_path / "a.png")
    assert opened.predict([], device="cpu").shape == (0, 10)
    assert opened.predict(str(tmp_path / "a.png"), device="cpu").shape == (1, 10)


def test_a_finished_run_resumes_to_itself_and_with_no_other_settings(unbroken: lg.Run, digits: Dataset) -> None:
    before = {path: path.stat().st_mtime_ns for path in unbroken.path.iterdir()}
    how: dict[str, Any] = {"method": "ll-r", "options": {"delta_rel": 5}, "out": unbroken.path, "resume": True}
    assert lg.fit(digits, **how, **SETTINGS).metrics == unbroken.metrics
    assert before == {path: path.stat().st_mtime_ns for path in unbroken.path.iterdir()}
    with pytest.raises(RunError, match="another epochs"):
        lg.fit(digits, **how, **{**SETTINGS, "epochs": 7})


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"method": "ll-x"}, UnknownNameError),
        ({"method": "ll-r", "options": {"delta_rell": 1}}, UnknownNameError),
        ({"method": "ll-r", "options": {"delta_rel": -1}}, InputError),
        ({"backbone": "resnet"}, UnknownNameError),
        ({"protocol": "lineal"}, InputError),
        ({"protocol": "linear", "head": "boostlu"}, InputError),
        ({"head": "boost"}, UnknownNameError),
        ({"epochs": 0}, InputError),
        ({"resume": True}, RunError),
        ({"device": "gpu"}, InputError),
        ({"options": {"delta_rel": 1}}, InputError),
        ({"method": "an", "options": {"reduction": "none"}}, InputError),
        ({"method": "em-apl", "epochs": 5}, InputError),
        ({"method": "curriculum"}, InputError),
    ],
)
def test_what_cannot_be_is_refused_at_once(
    digits: Dataset, tmp_path: Path, settings: dict[str, object], error: type[Exception]
) -> None:
    with pytest.raises(error):
        lg.fit(digits, out=tmp_path / "new" / "run", quiet=True, **settings)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("rows", "named"), [(0, "val"), (4, "train")])
def test_data_with_nothing_to_learn_from_is_refused(digits: Dataset, tmp_path: Path, rows: int, named: str) -> None:
    pixels = ArrayImages(np.zeros((4, 64, 64), dtype=np.uint8))
    blank = LabelTable.from_dense(np.full((4, 2), -1))
    val = lg.Split("val", ArrayImages(pixels.array[:rows]), blank.select(range(rows)))
    with pytest.raises(InputError, match=named):
        lg.fit(Dataset("blank", lg.Split("train", pixels, blank), val), "an", out=tmp_path / "run", quiet=True)
    assert not list(tmp_path.iterdir())


def test_options_come_back_from_a_run_as_they_were_given(digits: Dataset, tmp_path: Path) -> None:
    options = {"priors": torch.full((10,), 0.5, dtype=torch.float64), "gamma_neg": np.float64(1.5)}
    for resume in (False, True):
        run = lg.fit(digits, "csl", options, out=tmp_path / "run", epochs=1, resume=resume, quiet=True)
        assert run.config.options == {"priors": [0.5] * 10, "gamma_neg": 1.5}


class EveryHook(ElementwiseLoss):
    """Counts what the loop calls, and in which order."""

    needs = frozenset({"index", "scores", "penalty"})
    own: torch.nn.Parameter
    calls: list[str] = []

    def entries(self, logits: Tensor, labels: Tensor) -> Tensor:
        return logits**2

    def prepare(self, table: LabelTable, epochs: int = 10, seed: int = 0, heads: tuple[int, ...] = ()) -> None:
        self.table = table
        self.calls.append(f"prepare {len(table)} {epochs} {seed}")
        self.register_parameter("own", torch.nn.Parameter(torch.ones(())))

    def parameter_groups(self, lr: float) -> list[dict[str, object]]:
        return [{"params": [self.own], "lr": 10 * lr}]

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        self.calls.append(f"epoch {epoch}")

    def penalty(self, parameters: object) -> Tensor:
        self.calls.append("penalty")
        return self.own**2

    def after_step(self) -> None:
        self.calls.append("step")

    def end_epoch(self, scores: object = None) -> Revisions:
        assert callable(scores)
        index = torch.cat([rows for rows, _ in scores()])
        assert sorted(index.tolist()) == list(range(len(self.table)))
        self.calls.append("end")
        rows = np.array([self.epoch])
        return Revisions.from_arrays(self.table, rows, rows, source="every-hook", epoch=self.epoch)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_loop_calls_every_hook_in_order(accumulate: int, digits: Dataset, tmp_path: Path) -> None:
    EveryHook.calls = []
    settings: dict[str, Any] = {"epochs": 2, "batch_size": 20 // accumulate, "accumulate": accumulate, "seed": 3}
    run = lg.fit(digits, EveryHook(), out=tmp_path / "run", device="cpu", quiet=True, **settings)
    step = [*["penalty"] * accumulate, "step"]
    assert EveryHook.calls == ["prepare 40 2 3", "epoch 1", *step, *step, "end", "epoch 2", *step, *step, "end"]
    assert [(revision.image, revision.class_name, revision.epoch) for revision in run.revisions] == [
        ("train-00001", "1", 1),
        ("train-00002", "2", 2),
    ]
    learned = torch.load(run.path / LAST, weights_only=True)["loss_fn"]["own"]
    assert learned < 1


def test_a_boosted_head_comes_back_with_the_run(unbroken: lg.Run, digits: Dataset, tmp_path: Path) -> None:
    settings: dict[str, Any] = {**SETTINGS, "epochs": 1, "out": tmp_path / "boosted"}
    boosted = lg.fit(digits, "ll-r", head="boostlu", **settings)
    with pytest.raises(RunError, match="another head"):
        lg.fit(digits, "ll-r", head="linear", resume=True, **settings)
    again = lg.open_run(boosted.path)
    assert isinstance(again.model.head, BoostLU) and again.config.head == "boostlu"
    assert again.evaluate(digits, device="cpu")["map"] == pytest.approx(boosted.metrics["test"]["map"], abs=1e-6)
    shutil.copytree(unbroken.path, tmp_path / "old")
    stored = json.loads((tmp_path / "old" / "config.json").read_text())
    assert stored.pop("head") == "linear"
    (tmp_path / "old" / "config.json").write_text(json.dumps(stored))
    (tmp_path / "old" / "manifest.json").unlink()
    old = lg.open_run(tmp_path / "old")
    assert isinstance(old.model.head, LinearHead) and digits.test is not None
    np.testing.assert_array_equal(old.predict(digits.test, device="cpu"), unbroken.predict(digits.test, device="cpu"))


def features(count: int = 60, width: int = 6) -> Dataset:
    """Three classes that the first three features determine."""
    random = np.random.default_rng(1)
    parts: dict[str, Split] = {}
    for split in ("train", "val", "test"):
        vectors = random.normal(size=(count, width)).astype(np.float16)
        names = [f"{split}{number}" for number in range(count)]
        truth = LabelTable.from_dense((vectors[:, :3] > 0).astype(np.int8), ["a", "b", "c"], names)
        parts[split] = Split(split, FeatureVectors(vectors, names), truth, truth)
    train, val, test = parts.values()
    return Dataset("vectors", train, val, test, backbone="features", protocol="linear", flip=False)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("runs") / "a"
    return fit(features(), "bce", out=out, epochs=30, lr=0.05, device="cpu", quiet=True)


def test_inputs_of_another_kind_or_width_are_rejected(run: Run, digits: Dataset, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="pixels"):
        make_run(tmp_path / "a").predict(np.zeros((2, 7), dtype=np.float32), device="cpu")
    with pytest.raises(InputError, match=r"6 features.* 7"):
        run.predict(np.zeros((2, 7), dtype=np.float32), device="cpu")
    with pytest.raises(InputError, match="images"):
        run.predict(digits.split("test"), device="cpu")


def test_a_network_is_rejected_for_vectors_and_vectors_for_images(digits: Dataset, tmp_path: Path) -> None:
    cases = [(features(), {"protocol": "end-to-end"}), (features(), {"backbone": "small-cnn"})]
    for data, wishes in (*cases, (digits, {"backbone": "features"})):
        with pytest.raises(InputError, match="vectors"):
            fit(data, "bce", out=tmp_path / "a", quiet=True, **wishes)  # type: ignore[arg-type]
    assert not (tmp_path / "a").exists()


BRIEF: dict[str, Any] = {"device": "cpu", "quiet": True, "trace": "off", "batch_size": 16, "epochs": 2}


class Weighted(ElementwiseLoss):
    """Unknown labels count as absent, with a weight."""

    def __init__(self, weight: float = 0.5, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.weight = weight

    def entries(self, logits: Tensor, labels: Tensor) -> Tensor:
        return (labels == 1) * softplus(-logits) + self.weight * (labels != 1) * softplus(logits)


class Tiny(nn.Module):
    """A convolution for the digits."""

    input_spec = InputSpec(size=32, mean=(0.5,), std=(0.25,), channels=1)

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, width, 5, 4), nn.ReLU())

    def forward(self, images: Tensor) -> Tensor:
        maps: Tensor = self.layers(images)
        return maps


class NeedsArguments(Tiny):
    """A module whose class alone does not make it."""

    def __init__(self, width: int) -> None:
        super().__init__(width)


def test_objects_train_like_their_class_and_are_not_changed(digits: Dataset, tmp_path: Path) -> None:
    loss_fn, network = Weighted(weight=0.25), Tiny()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    adam: dict[str, Any] = {"optimizer": "adam", "lr": 1e-2, "protocol": "end-to-end", **BRIEF}
    run = lg.fit(digits, loss_fn, backbone=network, out=tmp_path / "a", **adam)
    assert run.config.method == f"{__name__}:Weighted" and run.config.options == {"weight": 0.25, "reduction": "mean"}
    assert run.config.backbone == f"{__name__}:Tiny" and train_command(run.config) is None
    assert train_script(run.config).startswith(f"import {__name__}\nimport labelgap as lg\n")
    assert (run.config.transform, run.config.average_flips) == ("resize", False), "digits may not be mirrored"
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert run.history[1]["loss"] < run.history[0]["loss"]
    registered = plan_training(digits, TrainingRequest(method=LargeLossRejection(5))).config
    assert registered.method == "ll-r" and registered.options["delta_rel"] == 5
    again = lg.fit(digits, run.config.method, {"weight": 0.25}, network, out=tmp_path / "b", **adam)
    assert [each["loss"] for each in again.history] == [each["loss"] for each in run.history]


def test_a_run_of_objects_resumes_to_itself(digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = Tiny()
    settings: dict[str, Any] = {"protocol": "end-to-end", **BRIEF}
    whole = lg.fit(digits, Weighted(), backbone=network, out=tmp_path / "whole", **settings)
    from labelgap.training.loop.network_trainer import NetworkTrainer

    train_epoch = NetworkTrainer.train_epoch

    def stopped(self: NetworkTrainer, state: Any, epoch: int) -> None:
        if epoch == 2:
            raise RuntimeError("killed")
        train_epoch(self, state, epoch)

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="killed"):
        patch.setattr(NetworkTrainer, "train_epoch", stopped)
        lg.fit(digits, Weighted(), backbone=network, out=tmp_path / "broken", **settings)
    other = Tiny()  # whatever its weights are, the run has those that it was started with
    resumed = lg.fit(digits, Weighted(), backbone=other, out=tmp_path / "broken", resume=True, **settings)
    mine, theirs = (load_file(run.path / "best.safetensors") for run in (resumed, whole))
    assert all(torch.equal(value, theirs[name]) for name, value in mine.items())
    with pytest.raises(RunError, match="another options"):
        lg.fit(digits, Weighted(0.1), backbone=network, out=tmp_path / "whole", resume=True, **settings)


def test_a_run_of_objects_is_reopened_with_the_same_scores_and_audited_where_their_classes_are_loaded(
    digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert digits.test is not None
    scores = lg.fit(digits, Weighted(), backbone=Tiny(), protocol="linear", out=tmp_path / "a", **BRIEF).predict(
        digits.test, device="cpu"
    )
    run = lg.open_run((tmp_path / "a").rename(tmp_path / "moved"))
    assert np.array_equal(run.predict(digits.test, device="cpu"), scores)
    assert len(lg.find_missing(run, folds=2, data=digits, device="cpu", quiet=True))
    monkeypatch.setattr(trust, "_GIVEN", {})  # as in another user's process, which has neither made nor imported them
    monkeypatch.setattr(trust, "_used_file", lambda: tmp_path / "used_classes.txt")
    monkeypatch.delitem(sys.modules, __name__)
    run = lg.open_run(run.path)
    assert run.metrics["epochs"] == 2, "what needs no code is there"
    with pytest.raises(RunError, match=rf"{__name__}:Tiny .*import {__name__}"):
        run.predict(digits.test, device="cpu")
    with pytest.raises(RunError, match=rf"{__name__}:(Weighted|Tiny)"):
        lg.find_missing(run, folds=2, data=digits, device="cpu", quiet=True)


def test_a_module_whose_class_needs_arguments_is_passed_again(digits: Dataset, tmp_path: Path) -> None:
    assert digits.test is not None
    network = NeedsArguments(4)
    run = lg.fit(digits, "an", backbone=network, protocol="linear", out=tmp_path / "a", **BRIEF)
    scores = run.predict(digits.test, device="cpu")
    with pytest.raises(RunError, match="backbone=network"):
        lg.open_run(run.path).predict(digits.test, device="cpu")
    reopened = lg.open_run(run.path, backbone=NeedsArguments(4))
    assert np.array_equal(reopened.predict(digits.test, device="cpu"), scores)
    with pytest.raises(RunError, match="NeedsArguments"):
        lg.open_run(run.path, backbone=Tiny()).predict(digits.test, device="cpu")


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"method": Weighted(), "options": {"weight": 1}}, "options"),
        ({"method": "an", "backbone": Tiny(), "weights": "none"}, "weights"),
        ({"method": "an", "backbone": nn.Linear(3, 3)}, "backbone"),
    ],
)
def test_what_does_not_fit_is_refused(digits: Dataset, tmp_path: Path, settings: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        lg.fit(digits, out=tmp_path / "a", quiet=True, **settings)
    assert not list(tmp_path.iterdir())
