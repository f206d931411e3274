"""Training never ends below the linear head it started from, and survives a loss that is not a number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import labelgap as lg
from labelgap.cli.printing import print_run
from labelgap.core.errors import RunError
from labelgap.core.seeds import numpy_generator
from labelgap.data.dataset import Dataset
from labelgap.losses import ElementwiseLoss
from labelgap.training.loop import network_trainer
from labelgap.training.loop.divergence import NanGuard, are_finite, check_finite
from labelgap.training.run_files import LAST
from labelgap.training.selection import EpochScore, Selection

QUICK: dict[str, Any] = {"device": "cpu", "batch_size": 4}
KEPT = "he linear head was kept: training the whole network for 4 epochs did not improve the val score"


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return lg.load("digits", train=20, val=16, test=8)


@pytest.fixture
def scores(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The val scores of the coming epochs, those of the linear phase included."""
    values: list[float] = []
    monkeypatch.setattr(Selection, "score", lambda self, logits: EpochScore(values.pop(0), 10))
    return values


def factors(run: lg.Run) -> list[float]:
    return [record.get("lr_factor", 1.0) for record in run.history]


class Breaks(ElementwiseLoss):
    """Costs NaN, or much, in these of its calls."""

    calls = 0
    factor = float("nan")
    bad: frozenset[int] = frozenset()

    def entries(self, logits: Tensor, labels: Tensor) -> Tensor:
        Breaks.calls += int(torch.is_grad_enabled())
        broken = torch.is_grad_enabled() and Breaks.calls in self.bad
        return torch.nn.functional.softplus(logits) * (Breaks.factor if broken else 1.0)


def breaking(*calls: int, factor: float = float("nan")) -> Breaks:
    Breaks.calls, Breaks.bad, Breaks.factor = 0, frozenset(calls), factor
    return Breaks()


@pytest.mark.usefixtures("undrawn")
def test_at_an_absurd_rate_the_linear_head_is_kept(
    tmp_path: Path, digits: Dataset, capsys: pytest.CaptureFixture[str]
) -> None:
    settings: dict[str, Any] = {"protocol": "linear-init", "linear_epochs": 5, "lr": 1e30, "backbone_lr": 1e30}
    run = lg.fit(digits, "bce", out=tmp_path / "a", epochs=6, ema=0.5, **settings, **QUICK)
    capsys.readouterr()
    assert run.finished and not run.metrics["interrupted"]
    assert (run.metrics["best_epoch"], run.metrics["epochs"], run.metrics["divergences"]) == (0, 4, 4)
    assert run.history[0]["epoch"] == 0 and run.history[0]["loss"] is None
    assert run.history[0]["score"] == run.metrics["score"] == pytest.approx(run.metrics["val"]["map"])
    assert factors(run) == [1, 1, 0.5, 0.25, 0.125] and all(record["restarted"] for record in run.history[1:])
    kept, linear = (load_file(folder / "best.safetensors") for folder in (run.path, run.path / "linear"))
    assert torch.equal(kept["head.weight"], linear["head.weight"])
    assert run.evaluate(digits, "val", device="cpu", resamples=0)["map"] == pytest.approx(run.metrics["score"])
    report = lg.write_report(run, data=digits)
    print_run(run, report, digits, 0.0)
    shown = (report, run.path / "MODEL_CARD.md")
    printed = capsys.readouterr().out
    assert printed.count(KEPT) == 1, "the command prints it after all that fit has said"
    assert all(KEPT in text for text in (printed, *(path.read_text() for path in shown)))
    assert KEPT in run._repr_html_() and "4 of 6 epochs" in repr(run) and lg.verify_run(run.path).problems == ()


@pytest.mark.parametrize(
    "case",
    [  # the scores of a linear epoch, of epoch 0, and of those of the network
        ([0.6, 0.7, 0.6, 0.8], 2, [1, 1, 1], None),
        ([0.6, 0.7, 0.8, 0.5, 0.75], 1, [1, 1, 1, 0.5], None),
        ([0.6, 0.9, 0.8, 0.1, 0.85, 0.74, 0.9, 0.9], 0, [1, 1, 1, 0.5, 0.5], 0.1),  # no epoch that restarted stops it
    ],
)
def test_only_a_score_far_below_the_linear_head_restarts_from_the_best_epoch(
    case: tuple[list[float], int, list[float], float | None], tmp_path: Path, digits: Dataset, scores: list[float]
) -> None:
    coming, kept, lr_factors, stop_below = case
    scores += coming
    settings: dict[str, Any] = {"protocol": "linear-init", "linear_epochs": 1, "schedule": "cosine", "quiet": True}
    settings |= {"epochs": len(coming) - 2, "stop_below": stop_below}
    run = lg.fit(digits, "an", out=tmp_path / "a", **settings, **QUICK)
    restarts = int(0.5 in lr_factors)
    assert (run.metrics["best_epoch"], run.metrics["divergences"]) == (kept, restarts)
    assert (
        factors(run) == lr_factors and [record["score"] for record in run.history] == coming[1 : len(run.history) + 1]
    )
    stored = torch.load(run.path / "last.pt", weights_only=True)
    assert stored["scheduler"]["last_epoch"] == 5 * (len(lr_factors) - 1) and stored["state"]["divergences"] == restarts
    assert stored["scheduler"]["base_lrs"] == [rate / 2**restarts for rate in (run.config.lr, run.config.backbone_lr)]


def test_a_loss_that_is_no_number_uses_up_its_epoch(
    tmp_path: Path, digits: Dataset, capsys: pytest.CaptureFixture[str]
) -> None:
    run = lg.fit(digits, breaking(8), out=tmp_path / "a", protocol="end-to-end", epochs=3, **QUICK)
    assert capsys.readouterr().err.count("step 3 of epoch 2 (images ") == 1
    assert [record["epoch"] for record in run.history] == [1, 2, 3] and factors(run) == [1, 1, 0.5]
    assert run.history[1]["loss"] is None and run.history[1]["restarted"] and "score" not in run.history[1]
    assert run.metrics["best_epoch"] in (1, 3) and len(run.trace["loss"]) == 3


@pytest.mark.parametrize(("score", "diverges"), [(0.65, True), (0.75, False)])
def test_a_loss_that_explodes_restarts(
    score: float, diverges: bool, tmp_path: Path, digits: Dataset, scores: list[float]
) -> None:
    scores += [0.7, score, 0.72]
    settings: dict[str, Any] = {"protocol": "end-to-end", "epochs": 3, "lr": 1e-9, **QUICK}
    run = lg.fit(digits, breaking(*range(6, 11), factor=100.0), out=tmp_path / "a", **settings)
    assert run.metrics["divergences"] == int(diverges) and run.history[1]["loss"] > 10 * run.history[0]["loss"]
    assert ("restarted" in run.history[1]) is diverges


def test_before_the_first_complete_epoch_it_starts_again_at_lower_rates(tmp_path: Path, digits: Dataset) -> None:
    settings: dict[str, Any] = {"protocol": "end-to-end", "epochs": 1, "quiet": True, "select": "last", **QUICK}
    run = lg.fit(digits, breaking(2, 5), out=tmp_path / "a", momentum=0.0, optimizer="sgd", lr=0.4, **settings)
    assert factors(run) == [0.5] and run.metrics["epochs"] == run.metrics["best_epoch"] == 1
    direct = lg.fit(digits, breaking(), out=tmp_path / "b", momentum=0.0, optimizer="sgd", lr=0.2, **settings)
    rates = [torch.load(each.path / "last.pt", weights_only=True)["scheduler"]["base_lrs"][0] for each in (run, direct)]
    assert rates == [0.2, 0.2] and run.config.lr == 0.4
    assert torch.equal(*(load_file(each.path / "best.safetensors")["head.weight"] for each in (run, direct)))


def test_a_training_that_only_fails_ends_with_an_error(tmp_path: Path, digits: Dataset) -> None:
    with pytest.raises(RunError, match=r"step 1 of epoch 1 .* 3 times"):
        lg.fit(digits, breaking(*range(99)), out=tmp_path / "a", protocol="end-to-end", quiet=True, **QUICK)
    assert not (tmp_path / "a" / "best.safetensors").exists()


def test_what_was_learned_before_it_is_forgotten(
    tmp_path: Path, digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network_trainer, "describe_divergence", lambda state, epoch, *_: "fell" if epoch > 2 else None)
    options, data = {"delta_rel": 20}, digits.observe(1, 2, seed=0)
    settings: dict[str, Any] = {"protocol": "end-to-end", "quiet": True, "select": "last", **QUICK}
    run, first = (lg.fit(data, "ll-cp", options, out=tmp_path / str(n), epochs=n, **settings) for n in (3, 2))
    assert len(first.revisions) and run.revisions == first.revisions
    mine, theirs = (torch.load(each.path / "last.pt", weights_only=True) for each in (run, first))
    assert torch.equal(mine["loss_fn"]["corrected_in"], theirs["loss_fn"]["corrected_in"])
    for name, value in theirs["network"].items():
        assert torch.equal(mine["network"][name], value)


def test_a_head_on_fixed_features_stops_and_the_last_good_state_is_kept(tmp_path: Path, digits: Dataset) -> None:
    settings: dict[str, Any] = {"protocol": "linear", "epochs": 3, "lr": 1e-3, "weight_decay": 0.0, "trace": "off"}
    with pytest.raises(RunError, match="step 3 of epoch 2") as caught:
        lg.fit(digits, breaking(8), backbone="small-cnn", out=tmp_path / "a", quiet=True, **settings, **QUICK)
    rows = numpy_generator(0, "order", 2).permutation(20)[8:11]
    assert f"(images {', '.join(digits.train.labels.images[row] for row in rows)} …)" in str(caught.value)
    assert "--clip" not in str(caught.value)
    assert (tmp_path / "a" / LAST).exists() and len(lg.open_run(tmp_path / "a").history) == 1


def test_a_step_that_spoils_the_weights_at_the_end_of_an_epoch_is_noticed_before_it_is_kept() -> None:
    check_finite("the weights", are_finite([torch.ones(2), torch.zeros(0)]), 1)
    with pytest.raises(RunError, match=r"epoch 2.* epoch 1"):
        check_finite("the weights", are_finite([torch.ones(2), torch.tensor([1.0, float("nan")])]), 2)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD])
def test_a_bad_step_changes_nothing_and_needs_no_look_by_the_host(kind: type[torch.optim.Optimizer]) -> None:
    weight, seen = nn.Parameter(torch.ones(3)), []
    optimizer = kind([weight], lr=0.1, fused=True)  # type: ignore[call-arg]
    guard = NanGuard(["a", "b", "c"], 2, torch.device("cpu"))
    for step, loss in enumerate((1.0, float("inf"), 2.0), 1):
        guard.update(torch.tensor(loss), torch.tensor([1, 2]), step)
        weight.grad = torch.full((3,), loss)
        guard.guard(optimizer)
        optimizer.step()
        seen.append(weight.tolist())
    assert seen[0] == seen[1] == seen[2] != [1.0] * 3, "from the bad step on nothing is taken"
    with pytest.raises(RunError, match=r"step 2 of epoch 5 \(images b, c\)"):
        guard.check(5)
