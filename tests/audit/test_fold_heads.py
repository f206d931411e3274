from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.audit.small_runs import CLASSES, arrays

import labelgap as lg
from labelgap.audit import scorers
from labelgap.audit.scorers import AuditContext, StoredScorer, train_head_scorers
from labelgap.core.errors import RunError
from labelgap.core.tensors import read_tensors
from labelgap.training import folds
from labelgap.training.config import RunConfig
from labelgap.training.folds import head_config, training_rows
from labelgap.training.heads import HeadPlan, HeadResult
from labelgap.training.run_files import SEARCH_FILE
from labelgap.training.selection import Selection, choose_selection

CPU = torch.device("cpu")
PLAIN: dict[str, Any] = {"data": {}, "classes": CLASSES, "method": "em", "why": None, "options": {"alpha": 0.1}}
PLAIN |= {"backbone": "efficientnet-lite0", "epochs": 7, "lr": 3e-4, "backbone_lr": 3e-5, "batch_size": 24}
PLAIN |= {"flip": False, "seed": 5, "select": "clean", "trace": "off"}


def inputs(select: str = "clean") -> tuple[dict[str, NDArray[Any]], lg.LabelTable, NDArray[np.int64], Selection]:
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
        zeros = np.zeros((4, features.shape[-1])), np.zeros(4)
        return [HeadResult(plan, *zeros, 1, None, failed=plan.name or None) for plan in plans]

    monkeypatch.setattr(folds, "train_heads", asked)
    return seen


def config(method: str, lr: float, epochs: int = 2, seed: int = 0) -> RunConfig:
    own = {"method": method, "options": {}, "lr": lr, "epochs": epochs, "batch_size": 16, "seed": seed}
    return RunConfig(**{**PLAIN, **own}, protocol="linear")


def test_a_fold_learns_from_all_other_images_and_none_of_its_own(calls: list[dict[str, Any]]) -> None:
    for select in ("clean", "last"):
        calls.clear()
        features, labels, fold, selection = inputs(select)
        train_head_scorers(features, labels, fold, selection, [config("an", 0.1)], device=CPU)
        if select == "clean":  # one at a time, to its own epoch
            assert all(call["val_labels"] is selection.labels and call["select"] == "clean" for call in calls)
            seen = [(call["features"], call["plans"][0]) for call in calls]
        else:
            (call,) = calls
            assert "val_labels" not in call and [plan.part for plan in call["plans"]] == [0, 1, 2]
            seen = list(zip(call["features"], call["plans"], strict=True))
        assert len(seen) == 3
        for number, (vectors, plan) in enumerate(seen):
            others = np.flatnonzero(fold != number)
            assert plan.labels == labels.select(others)
            assert np.array_equal(vectors.numpy(), features["train"][others])


def test_in_little_memory_a_part_is_learned_from(calls: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    fold = np.arange(300) % 3
    rows = training_rows(fold, 1, max_rows=50)
    assert len(rows) == 50 == len(set(rows.tolist())) and (fold[rows] != 1).all()
    assert np.array_equal(rows, training_rows(fold, 1, max_rows=50))
    assert not np.array_equal(rows, training_rows(fold, 2, max_rows=50))
    assert len(training_rows(fold, 1)) == 200
    monkeypatch.setattr("labelgap.audit.scorers.available_memory", lambda: 20 * 4 * 4 * 12)
    train_head_scorers(*inputs("last"), [config("an", 0.1)], device=CPU)
    assert calls[0]["features"].shape == (3, 20, 12)


def test_a_failed_head_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(features: torch.Tensor, plans: list[HeadPlan], **named: Any) -> list[HeadResult]:
        return [
            HeadResult(plan, np.zeros((4, 12)), np.zeros(4), 0, None, failed="its loss was no number") for plan in plans
        ]

    monkeypatch.setattr(folds, "train_heads", fails)
    with pytest.raises(RunError, match="fold 1"):
        train_head_scorers(*inputs(), [config("an", 1e9)], device=CPU)


def test_a_head_of_a_network_has_the_settings_of_its_linear_phase_or_those_that_suit_a_head() -> None:
    linear = RunConfig(**PLAIN, protocol="linear", optimizer="sgd", momentum=0.9, stop_below=0.03, weight_decay=0.5)
    assert head_config(linear) is linear
    phase: dict[str, Any] = {"linear_epochs": 9, "linear_lr": 0.01, "linear_batch_size": 8}
    first = head_config(RunConfig(**PLAIN, protocol="linear-init", weight_decay=0.5, **phase))
    assert (first.lr, first.epochs, first.batch_size, first.weight_decay) == (0.01, 9, 8, 0.0)
    assert (first.method, first.options, first.seed) == ("em", {"alpha": 0.1}, 5)
    usual = head_config(RunConfig(**PLAIN, protocol="end-to-end", optimizer="sgd", momentum=0.9))
    assert (usual.lr, usual.epochs, usual.batch_size, usual.optimizer) == (1e-3, 25, 16, "adam")


def test_an_audit_reads_the_logits_of_the_folds_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {name: values for name, values in arrays().items() if not name.startswith(("val", "test"))}
    np.savez(tmp_path / "vectors.npz", **kept)  # type: ignore[arg-type]
    run = lg.fit(lg.load("features", tmp_path / "vectors.npz"), "an", out=tmp_path / "an", device="cpu", quiet=True)
    stored = read_tensors(run.path / SEARCH_FILE, remedy="")[0]["logits"].numpy()
    trained = list[int]()
    same: dict[str, Any] = {"folds": run.config.folds, "seed": run.config.seed, "limit": 10**6, "quiet": True}

    def train_heads(runs: Sequence[lg.Run], context: AuditContext) -> list[StoredScorer]:
        trained.append(context.folds)
        return [StoredScorer({"train": stored[::-1]})] * len(runs)

    monkeypatch.setattr(scorers, "train_run_heads", train_heads)
    found = lg.find_missing(run, **same).of_kind("missing").to_pylist()
    assert not trained and len(found) == int((kept["train_observed"] == lg.UNKNOWN).sum())
    ranks = [(int(row["image"].split("-")[1]), CLASSES.index(row["class"])) for row in found if row["class"] == "cat"]
    assert (np.diff([stored[place] for place in ranks]) <= 1e-5).all(), "the order in a class is that of the logits"
    lg.find_missing(run, **{**same, "folds": 3})
    assert trained == [3]
