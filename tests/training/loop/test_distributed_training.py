"""Two real processes do what one does: training, features, predictions, audits; and they fail together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from tests.core.process_pair import run_pair
from tests.training.loop import two_processes_train
from tests.training.loop.two_processes_train import METHODS, NORMS, train_until
from torch import Tensor

import labelgap as lg


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same work done by one process, and then by two."""
    folder = tmp_path_factory.mktemp("parallel")
    two_processes_train.main(folder)
    run_pair(two_processes_train.main, folder)
    return folder


def weights(folder: Path) -> dict[str, Tensor]:
    return safetensors.torch.load_file(folder / "best.safetensors")


def losses(run: lg.Run) -> list[float]:
    return [record["loss"] for record in run.history]


def changes(run: lg.Run) -> list[tuple[Any, ...]]:
    return [(revision.image, revision.class_name, revision.value, revision.epoch) for revision in run.revisions]


@pytest.mark.parametrize("name", [*METHODS, "sync", "frozen", "prior"])
def test_losses_weights_and_revisions_after_12_steps_are_those_of_one_process(both: Path, name: str) -> None:
    one, two = lg.open_run(both / "one" / name), lg.open_run(both / "two" / name)
    mine, theirs = weights(one.path), weights(two.path)
    assert mine.keys() == theirs.keys() and len(losses(one)) == 2
    for key, value in mine.items():
        assert value.dtype in (torch.float64, torch.int64)
        torch.testing.assert_close(value, theirs[key], rtol=1e-9, atol=1e-9)
    assert losses(one) == pytest.approx(losses(two), abs=1e-9)
    assert np.allclose(one.trace["loss"], two.trace["loss"], atol=1e-6)
    assert changes(one) == changes(two)
    assert bool(changes(one)) == (name in ("ll-cp", "em-apl"))


def test_two_processes_make_the_same_of_a_prior(both: Path) -> None:
    one, two = (lg.open_run(both / name / "prior").metrics["prior"] for name in ("one", "two"))
    assert one["used"] and one["sources"][0]["slopes"] == pytest.approx(two["sources"][0]["slopes"], abs=1e-4)


def test_batch_norm_has_the_statistics_that_were_asked_for(both: Path) -> None:
    one, two = ({norm: weights(both / name / norm) for norm in NORMS} for name in ("one", "two"))
    (mean,) = [key for key in one["sync"] if key.endswith("layers.1.running_mean")]
    assert torch.equal(one["local"][mean], one["sync"][mean])  # one process has the whole batch
    assert not torch.allclose(two["local"][mean], one["local"][mean], atol=1e-4)
    assert not one["frozen"][mean].any() and one["local"][mean].any()
    assert not torch.equal(one["frozen"][mean.replace("running_mean", "weight")], torch.ones(6, dtype=torch.float64))


def test_a_loss_that_is_not_a_number_in_one_process_restarts_both(both: Path) -> None:
    one, two = (lg.open_run(both / name / "breaks") for name in ("one", "two"))
    assert [record.get("restarted", False) for record in two.history] == [False, True, False]
    assert two.history[2]["lr_factor"] == 0.5
    assert losses(one) == pytest.approx(losses(two), abs=1e-5)


def test_the_phase_after_a_linear_one_starts_from_its_head_and_loss(both: Path) -> None:
    one, two = (both / name / "linear-init" for name in ("one", "two"))
    assert torch.equal(weights(one / "linear")["head.weight"], weights(two / "linear")["head.weight"])
    one_run, two_run = lg.open_run(one), lg.open_run(two)
    assert one_run.history[0]["epoch"] == 0
    assert one_run.history[0]["score"] == pytest.approx(two_run.history[0]["score"])
    assert losses(one_run)[1] == pytest.approx(losses(two_run)[1], abs=1e-9)


def test_a_run_of_one_process_is_resumed_within_an_epoch_by_two_and_then_by_one(both: Path) -> None:
    state = torch.load(both / "resumed" / "last.pt", weights_only=True)["state"]
    assert (state["epoch"], state["partial"]["batches"]) == (2, 3), "8 of 6 batches an epoch, and 7 more"
    train_until(both / "resumed")
    resumed, unbroken = lg.open_run(both / "resumed"), both / "unbroken"
    train_until(unbroken)
    assert resumed.finished and not resumed.metrics["interrupted"]
    assert losses(resumed) == pytest.approx(losses(lg.open_run(unbroken)), abs=1e-9)
    assert changes(resumed) == changes(lg.open_run(unbroken))
    for key, value in weights(unbroken).items():
        torch.testing.assert_close(value, weights(resumed.path)[key], rtol=1e-9, atol=1e-9)


def test_features_of_two_processes_are_each_image_once_and_in_order(both: Path) -> None:
    one = np.load(both / "one" / "features-0.npz")
    assert [one[name].shape for name in one.files] == [(41, 8), (10, 8), (1, 8)]
    for number in range(2):
        two = np.load(both / "two" / f"features-{number}.npz")
        for name in one.files:
            np.testing.assert_allclose(one[name], two[name], rtol=1e-4, atol=1e-5)


def test_predictions_of_two_processes_are_the_file_of_one(both: Path) -> None:
    for name in ("all.csv", "one.csv"):
        assert (both / "one" / name).read_bytes() == (both / "two" / name).read_bytes()
    assert not list((both / "two").glob("*.partial"))
    seen = [json.loads((both / "two" / f"uses-{number}.json").read_text()) for number in range(2)]
    assert [each["images"] for each in seen] == [[61, 1], [61, 1]]


def test_measures_and_audits_of_two_processes_are_those_of_one(both: Path) -> None:
    expected = json.loads((both / "one" / "uses-0.json").read_text())
    for number in range(2):
        found = json.loads((both / "two" / f"uses-{number}.json").read_text())
        assert found["measured"] == expected["measured"]
        for mine, theirs in zip(map(scores, expected["audits"]), map(scores, found["audits"]), strict=True):
            assert len(mine) > 10 and mine.keys() == theirs.keys()
            assert list(mine.values()) == pytest.approx([theirs[label] for label in mine], abs=1e-3)
        assert found["audits"][0] == expected["audits"][0]  # heads; rounding orders the labels of networks


def scores(audit: list[dict[str, Any]]) -> dict[tuple[str, ...], float]:
    """The score of every candidate."""
    return {(row["image"], row["class"], row["kind"]): row["score"] for row in audit}


def test_an_error_in_one_process_is_raised_in_all_and_printed_once(both: Path) -> None:
    first, second = (json.loads((both / "two" / f"errors-{number}.json").read_text()) for number in range(2))
    raised = [[each[name] for name in ("one_fails", "other_seeds", "other_folders")] for each in (first, second)]
    assert [kind for kind, _ in raised[0]] == ["ReportedError"] * 3
    assert all(part in text for (_, text), part in zip(raised[1], ("tags.csv", "process 0", "--out"), strict=True))
    assert first["both_fail"] == ["InputError", "a typing error."] and second["both_fail"][0] == "ReportedError"
    assert "2 processes" in first["small_batch"][1]
