"""The BoostLU head in a run: chosen, written down, trained, resumed, and refused where it cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import labelgap as lg
from labelgap.core.errors import InputError, RunError, UnknownNameError
from labelgap.data.dataset import Dataset
from labelgap.models import BoostLU, LinearHead
from labelgap.training.checkpoint import LAST


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return lg.load("digits", train=24, val=12, test=12)


@pytest.fixture(scope="module")
def boosted(digits: Dataset, tmp_path_factory: pytest.TempPathFactory) -> lg.Run:
    out = tmp_path_factory.mktemp("runs") / "boosted"
    return lg.fit(digits, "ll-r", out=out, head="boostlu", epochs=2, batch_size=8, device="cpu", quiet=True)


def test_the_head_is_written_down_and_comes_back_with_the_run(boosted: lg.Run, digits: Dataset) -> None:
    assert boosted.config.head == "boostlu"
    assert json.loads((boosted.path / "config.json").read_text())["head"] == "boostlu"
    with pytest.raises(RunError, match="another head"):
        lg.fit(digits, "ll-r", out=boosted.path, epochs=2, batch_size=8, device="cpu", resume=True, quiet=True)
    again = lg.open_run(boosted.path)
    assert isinstance(again.model.head, BoostLU)
    assert digits.test is not None
    measured = again.evaluate(digits, "test", device="cpu")
    assert measured["map"] == pytest.approx(boosted.metrics["test"]["map"], abs=1e-6)


def test_a_run_from_before_there_were_heads_has_a_linear_one(digits: Dataset, tmp_path: Path) -> None:
    run = lg.fit(digits, "an", out=tmp_path / "run", epochs=1, batch_size=8, device="cpu", quiet=True)
    settings = json.loads((run.path / "config.json").read_text())
    assert settings.pop("head") == "linear"
    (run.path / "config.json").write_text(json.dumps(settings))
    (run.path / "manifest.json").unlink()
    old = lg.open_run(run.path)
    assert isinstance(old.model.head, LinearHead)
    assert digits.val is not None
    np.testing.assert_array_equal(old.predict(digits.val, device="cpu"), run.predict(digits.val, device="cpu"))


def test_the_boosted_head_needs_more_than_a_vector_per_image(digits: Dataset, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--protocol end-to-end"):
        lg.fit(digits, "an", protocol="linear", head="boostlu", out=tmp_path / "run", quiet=True)
    with pytest.raises(UnknownNameError, match="no head 'boost'"):
        lg.fit(digits, "an", head="boost", out=tmp_path / "run", quiet=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("head", ["linear", "boostlu"])
def test_interactive_learning_stopped_and_resumed_ends_as_if_unbroken(
    head: str, digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partial = digits.observe(1, 3, seed=0)

    def fit(name: str, resume: bool = False) -> lg.Run:
        options = {"dictionary": 12}
        return lg.fit(
            partial, "imcl", options, out=tmp_path / name, head=head, epochs=3, batch_size=8, device="cpu",
            resume=resume, quiet=True,
        )  # fmt: skip

    whole = fit("whole")
    steps = iter(range(5))

    def stop(self: object, *_: object, **__: object) -> None:
        """Ctrl-C in the middle of the second epoch."""
        if next(steps, None) is None:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("labelgap.training.progress.Reporter.move_to", stop)
        assert fit("broken").metrics["interrupted"]
    fit("broken", resume=True)
    mine, theirs = (torch.load(tmp_path / name / LAST, weights_only=True) for name in ("broken", "whole"))
    for part in ("network", "loss_fn"):
        assert mine[part].keys() == theirs[part].keys()
        for key, value in mine[part].items():
            assert torch.equal(value, theirs[part][key]), f"{part} {key}"
    assert mine["loss_fn"]["seen"].all() and mine["loss_fn"]["atom_features"].shape == (12, 128)
    assert whole.metrics["test"]["map"] == lg.open_run(tmp_path / "broken").metrics["test"]["map"]
