"""Heads of folds: what they learn from, and with which settings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.audit.small_runs import CLASSES, arrays

import labelgap as lg
from labelgap.audit import fold_heads as heads
from labelgap.audit.fold_heads import FoldTrainingSetup, HeadConfig, train_folds
from labelgap.core.errors import RunError
from labelgap.training.config.schema import LinearPhase, RunConfig
from labelgap.training.heads import HeadPlan, HeadResult
from labelgap.training.selection import choose_selection

PLAIN: dict[str, Any] = {
    "data": {},
    "classes": CLASSES,
    "method": "em",
    "why": "as asked",
    "options": {"alpha": 0.1},
    "backbone": "efficientnet-lite0",
    "epochs": 7,
    "lr": 3e-4,
    "backbone_lr": 3e-5,
    "batch_size": 24,
    "flip": False,
    "seed": 5,
    "select": "clean",
    "trace": "off",
}


def setup(max_rows: int | None = None, select: str = "clean") -> FoldTrainingSetup:
    made = arrays()
    labels = lg.LabelTable.from_dense(made["train_observed"], CLASSES)
    val = lg.LabelTable.from_dense(made["val_truth"], CLASSES)
    features = {"train": made["train_features"], "val": made["val_features"]}
    fold = np.arange(len(labels)) % 3
    return FoldTrainingSetup(
        features, labels, fold, choose_selection(val, None, select), torch.device("cpu"), max_rows=max_rows
    )


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the engine is asked for; it does nothing."""
    seen: list[dict[str, Any]] = []

    def asked(features: torch.Tensor, plans: list[HeadPlan], **named: Any) -> list[HeadResult]:
        seen.append({"features": features, "plans": plans, **named})
        zeros = np.zeros((4, features.shape[1])), np.zeros(4)
        return [HeadResult(plan, *zeros, 1, None, failed=plan.name or None) for plan in plans]

    monkeypatch.setattr(heads, "train_heads", asked)
    return seen


def test_a_fold_learns_from_all_other_images_and_none_of_its_own(calls: list[dict[str, Any]]) -> None:
    made = setup()
    train_folds(made, [HeadConfig("an", {}, 0.1, epochs=2, batch_size=16)])
    assert len(calls) == 3
    for number, call in enumerate(calls):
        others = np.flatnonzero(made.fold != number)
        assert np.array_equal(call["features"].numpy(), made.features["train"][others])
        assert call["plans"][0].labels == made.labels.select(others)
        assert call["val_labels"] is made.selection.labels and call["select"] == "clean"


def test_runs_with_the_same_epochs_and_batches_are_trained_together(calls: list[dict[str, Any]]) -> None:
    settings = [
        HeadConfig("an", {}, 0.1, epochs=2, batch_size=16),
        HeadConfig("em", {}, 0.1, epochs=3, batch_size=16),
        HeadConfig("wan", {}, 0.2, epochs=2, batch_size=16, seed=4),
    ]
    scorers = train_folds(setup(select="last"), settings)
    assert len(scorers) == 3 and len(calls) == 6
    assert [plan.method for plan in calls[0]["plans"]] == ["an", "wan"]
    assert calls[0]["plans"][1].seed == 4 and calls[1]["epochs"] == 3
    assert calls[0]["val_features"] is None and calls[0]["select"] == "last"


def test_where_memory_is_short_a_random_part_is_learned_from() -> None:
    made = setup(max_rows=50)
    rows = made.training_rows(1)
    assert len(rows) == 50 == len(set(rows.tolist())) and (made.fold[rows] != 1).all()
    assert np.array_equal(rows, made.training_rows(1)) and not np.array_equal(rows, made.training_rows(2))
    assert len(setup().training_rows(1)) == 200


def test_a_head_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(features: torch.Tensor, plans: list[HeadPlan], **named: Any) -> list[HeadResult]:
        return [
            HeadResult(plan, np.zeros((4, 12)), np.zeros(4), 0, None, failed="its loss was no number") for plan in plans
        ]

    monkeypatch.setattr(heads, "train_heads", fails)
    with pytest.raises(RunError, match="on fold 1: its loss was no number"):
        train_folds(setup(), [HeadConfig("an", {}, 1e9, epochs=2, batch_size=16)])


def test_a_linear_run_gives_its_own_settings() -> None:
    config = RunConfig(**PLAIN, protocol="linear", optimizer="sgd", momentum=0.9, stop_below=0.03)
    made = HeadConfig.from_run(config)
    assert (made.method, made.options, made.lr, made.epochs, made.batch_size) == ("em", {"alpha": 0.1}, 3e-4, 7, 24)
    assert made.seed == 5 and made.stop_below == 0.03
    assert dict(made.optimizer)["optimizer"] == "sgd" and dict(made.optimizer)["momentum"] == 0.9


def test_linear_init_gives_those_of_its_linear_phase_and_end_to_end_those_that_suit_a_head() -> None:
    phase = LinearPhase(epochs=9, lr=0.01, batch_size=8)
    first = HeadConfig.from_run(RunConfig(**PLAIN, protocol="linear-init", linear=phase))
    assert (first.lr, first.epochs, first.batch_size) == (0.01, 9, 8)
    usual = HeadConfig.from_run(RunConfig(**PLAIN, protocol="end-to-end", optimizer="sgd", momentum=0.9))
    assert (usual.lr, usual.epochs, usual.batch_size) == (1e-3, 25, 16) and usual.optimizer == ()
