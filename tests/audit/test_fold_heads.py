"""Heads of folds: what they learn from, and with which settings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.audit.small_runs import CLASSES, arrays

import labelgap as lg
from labelgap.audit.fold_heads import train_folds, training_rows
from labelgap.core.errors import RunError
from labelgap.training.config import RunConfig
from labelgap.training.heads import HeadPlan, HeadResult, configs
from labelgap.training.heads.configs import HeadConfig
from labelgap.training.selection import Selection, choose_selection

CPU = torch.device("cpu")
PLAIN: dict[str, Any] = {
    "data": {},
    "classes": CLASSES,
    "method": "em",
    "why": None,
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


def inputs(select: str = "clean") -> tuple[dict[str, NDArray[Any]], lg.LabelTable, NDArray[np.int64], Selection]:
    """Features, labels, folds and selection."""
    made = arrays()
    labels = lg.LabelTable.from_dense(made["train_observed"], CLASSES)
    val = lg.LabelTable.from_dense(made["val_truth"], CLASSES)
    features = {"train": made["train_features"], "val": made["val_features"]}
    return features, labels, np.arange(len(labels)) % 3, choose_selection(val, None, select)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the engine is asked for; it does nothing."""
    seen: list[dict[str, Any]] = []

    def asked(features: torch.Tensor, plans: list[HeadPlan], **named: Any) -> list[HeadResult]:
        seen.append({"features": features, "plans": plans, **named})
        zeros = np.zeros((4, features.shape[1])), np.zeros(4)
        return [HeadResult(plan, *zeros, 1, None, failed=plan.name or None) for plan in plans]

    monkeypatch.setattr(configs, "train_heads", asked)
    return seen


def test_a_fold_learns_from_all_other_images_and_none_of_its_own(calls: list[dict[str, Any]]) -> None:
    features, labels, fold, selection = inputs()
    config = HeadConfig("an", {}, 0.1, epochs=2, batch_size=16)
    train_folds(features, labels, fold, selection, [config], device=CPU)
    assert len(calls) == 3
    for number, call in enumerate(calls):
        others = np.flatnonzero(fold != number)
        assert np.array_equal(call["features"].numpy(), features["train"][others])
        assert call["plans"][0].labels == labels.select(others)
        assert call["val_labels"] is selection.labels and call["select"] == "clean"


def test_runs_with_the_same_epochs_and_batches_are_trained_together(calls: list[dict[str, Any]]) -> None:
    settings = [
        HeadConfig("an", {}, 0.1, epochs=2, batch_size=16),
        HeadConfig("em", {}, 0.1, epochs=3, batch_size=16),
        HeadConfig("wan", {}, 0.2, epochs=2, batch_size=16, seed=4),
    ]
    scorers = train_folds(*inputs("last"), settings, device=CPU)
    assert len(scorers) == 3 and len(calls) == 6
    assert [plan.method for plan in calls[0]["plans"]] == ["an", "wan"]
    assert calls[0]["plans"][1].seed == 4 and calls[1]["epochs"] == 3
    assert calls[0]["val_features"] is None and calls[0]["select"] == "last"


def test_where_memory_is_short_a_random_part_is_learned_from() -> None:
    fold = np.arange(300) % 3
    rows = training_rows(fold, 1, 12, max_rows=50)
    assert len(rows) == 50 == len(set(rows.tolist())) and (fold[rows] != 1).all()
    assert np.array_equal(rows, training_rows(fold, 1, 12, max_rows=50))
    assert not np.array_equal(rows, training_rows(fold, 2, 12, max_rows=50))
    assert len(training_rows(fold, 1, 12)) == 200


def test_a_failed_head_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(features: torch.Tensor, plans: list[HeadPlan], **named: Any) -> list[HeadResult]:
        return [
            HeadResult(plan, np.zeros((4, 12)), np.zeros(4), 0, None, failed="its loss was no number") for plan in plans
        ]

    monkeypatch.setattr(configs, "train_heads", fails)
    with pytest.raises(RunError, match="on fold 1: its loss was no number"):
        train_folds(*inputs(), [HeadConfig("an", {}, 1e9, epochs=2, batch_size=16)], device=CPU)


def test_a_linear_run_gives_its_own_settings() -> None:
    config = RunConfig(**PLAIN, protocol="linear", optimizer="sgd", momentum=0.9, stop_below=0.03, weight_decay=0.5)
    made = HeadConfig.from_run(config, images=10)
    assert (made.method, made.options, made.lr, made.epochs, made.batch_size) == ("em", {"alpha": 0.1}, 3e-4, 7, 24)
    assert made.seed == 5 and made.stop_below == 0.03 and made.penalty == 5.0
    assert dict(made.optimizer)["optimizer"] == "sgd" and dict(made.optimizer)["momentum"] == 0.9


def test_linear_init_gives_those_of_its_linear_phase_and_end_to_end_those_that_suit_a_head() -> None:
    phase: dict[str, Any] = {"linear_epochs": 9, "linear_lr": 0.01, "linear_batch_size": 8}
    first = HeadConfig.from_run(RunConfig(**PLAIN, protocol="linear-init", **phase), images=10)
    assert (first.lr, first.epochs, first.batch_size) == (0.01, 9, 8)
    usual = HeadConfig.from_run(RunConfig(**PLAIN, protocol="end-to-end", optimizer="sgd", momentum=0.9), images=10)
    assert (usual.lr, usual.epochs, usual.batch_size) == (1e-3, 25, 16) and usual.optimizer == ()
