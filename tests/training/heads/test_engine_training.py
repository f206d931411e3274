"""The course of a training of many heads: heads that fail or stop, the best epoch, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.training.heads.reference_loop import BATCH, CLASSES, EPOCHS, IMAGES, some_features, some_labels, train_epochs
from torch import Tensor

from labelgap.core.errors import InputError
from labelgap.losses import methods
from labelgap.metrics import average_precision
from labelgap.training.heads import HeadPlan, LinearEngine, train_heads
from labelgap.training.heads import engine as engine_module
from labelgap.training.heads.solver import FeatureBasis
from labelgap.training.heads.train import BestEpochs
from labelgap.training.selection import measurable_labels

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # of thresholds and rounds

TABLE, VAL = some_labels(), some_labels(7, images=80, unknown=0.0)
FEATURES, VAL_FEATURES = (some_features(table, torch.float32) for table in (TABLE, VAL))
OPTIONS: dict[str, dict[str, Any]] = {"em-apl": {"warmup": 2}, "ll-cp": {"delta_rel": 5.0}, "l1r": {"weight": 1e-3}}
OPTIONS |= {"imcl": {"lambda_features": 0.0}, **{name: {"expected_positives": 2.0} for name in ("epr", "role")}}


def plans_for(*methods: str, rates: tuple[float, ...] = (1e-2, 1e-3)) -> list[HeadPlan]:
    return [HeadPlan(name, OPTIONS.get(name, {}), lr, TABLE) for name in methods for lr in rates]


def engine_of(plans: list[HeadPlan], **settings: Any) -> LinearEngine:
    return LinearEngine(FEATURES, plans, epochs=EPOCHS, batch_size=BATCH, **settings)


@pytest.mark.parametrize("optimizer", ["adam", "newton"])
def test_heads_of_several_parts_end_where_those_of_each_part_alone_end(optimizer: str) -> None:
    methods = ("an", "em", "gr") if optimizer == "newton" else ("an", "ll-r", *OPTIONS)
    options = {**OPTIONS, "imcl": {}}
    rows = [np.arange(20), np.arange(10, IMAGES)]
    labels, parts = [TABLE.select(each) for each in rows], torch.stack([FEATURES[each] for each in rows])
    plans = [
        HeadPlan(name, options.get(name, {}), 1e-2, table, weight_decay=1e-3, part=part)
        for name in methods
        for part, table in enumerate(labels)
    ]
    settings: dict[str, Any] = {"epochs": 3, "batch_size": BATCH, "optimizer": optimizer}
    settings["basis"] = FeatureBasis.fit(FEATURES, rotate=True)
    together = train_heads(parts, plans, **settings)
    for part, features in enumerate(parts):
        own = [replace(plan, part=0) for plan in plans if plan.part == part]
        for alone, beside in zip(train_heads(features, own, **settings), together[part::2], strict=True):
            np.testing.assert_allclose(beside.weight, alone.weight, atol=2e-5)
            np.testing.assert_allclose(beside.bias, alone.bias, atol=2e-5)


def test_heads_that_have_converged_stop_and_others_go_on() -> None:
    plans = [HeadPlan(name, {}, 1.0, TABLE, weight_decay=1.0) for name in ("an", "gr")]
    settings: dict[str, Any] = {"batch_size": BATCH, "optimizer": "newton", "standardize": True}
    steady, scheduled = train_heads(FEATURES, plans, epochs=15, **settings)
    assert steady.stopped is not None and steady.best_epoch == steady.stopped < 15
    assert scheduled.stopped is None and scheduled.best_epoch == 15, "its loss depends on the epoch"


def test_a_failed_head_keeps_its_best_epoch_and_a_reason() -> None:
    labels: dict[str, Any] = {"val_features": VAL_FEATURES, "val_labels": VAL}
    plans = [HeadPlan("an", {}, 1e-2, TABLE), HeadPlan("an", {}, 1e38, TABLE)]
    good, bad = train_heads(FEATURES, plans, epochs=3, batch_size=BATCH, **labels)
    assert good.failed is None and len(good.history) == 3
    assert bad.failed is not None and "lower learning rate" in bad.failed
    assert not bad.history and bad.best_epoch == 0 and np.isfinite(bad.weight).all()


def test_every_head_stops_by_its_own_score() -> None:
    engine = engine_of(plans_for("an", "em"))
    best = BestEpochs(engine, stop_below=0.03)
    losses = np.zeros(4)
    scores = [[0.5, 0.6, 0.58], [0.5, 0.46, 0.9], [0.7, 0.6, 0.9], [0.1, 0.2, 0.3]]
    for epoch in (1, 2, 3):
        best.update(epoch, losses, np.array([values[epoch - 1] for values in scores]))
    results = best.results()
    assert [result.stopped for result in results] == [None, 2, 2, None]
    assert [(result.best_epoch, result.best_score) for result in results] == [(2, 0.6), (1, 0.5), (1, 0.7), (3, 0.3)]
    assert [len(result.history) for result in results] == [3, 2, 2, 3]
    assert engine.active.index_select(0, engine.slot_of_plan).tolist() == [True, False, False, True]


def test_every_method_learns_and_the_best_epoch_of_every_head_is_kept() -> None:
    plans, seen = plans_for(*methods(), rates=(3e-1, 1e-2)), list[tuple[int, int]]()
    given: dict[str, Any] = {"val_features": VAL_FEATURES, "val_labels": VAL.to_dense(), "batch_size": BATCH}
    results = train_heads(FEATURES, plans, epochs=6, progress=lambda *done: seen.append(done), **given)
    assert seen == [(epoch, 6) for epoch in range(1, 7)]
    assert len({result.best_epoch for result in results}) > 1
    assert min(result.best_score or 0.0 for result in results[::2]) > 0.7, "they start at 0.43"
    for result in results:
        scores = [entry["score"] for entry in result.history]
        assert result.best_score == max(scores) and result.best_epoch == 1 + scores.index(max(scores))
        logits = VAL_FEATURES @ torch.from_numpy(result.weight).T + torch.from_numpy(result.bias)
        assert average_precision(logits, VAL) == pytest.approx(result.best_score, abs=1e-6)


@pytest.mark.parametrize("select", ["clean", "known", "observed"])
def test_scores_are_those_of_the_rule(select: str) -> None:
    val = VAL if select == "clean" else some_labels(7, images=80, unknown=0.3)
    given: dict[str, Any] = {"val_features": VAL_FEATURES, "val_labels": val, "select": select}
    (result,) = train_heads(FEATURES, plans_for("an", rates=(1e-2,)), epochs=1, batch_size=BATCH, **given)
    logits = VAL_FEATURES @ torch.from_numpy(result.weight).T + torch.from_numpy(result.bias)
    unknown = "absent" if select == "observed" else "ignore"
    labels = measurable_labels(val) if select == "known" else val
    assert result.best_score == pytest.approx(average_precision(logits, labels, unknown=unknown), abs=1e-6)  # type: ignore[call-overload]


def test_a_hook_is_called_before_every_step() -> None:
    plans = [*plans_for("an", "ll-ct"), HeadPlan("ll-ct", {"delta_rel": 20.0}, 1e-2, some_labels(1))]
    engine, steps = engine_of(plans), []

    def look(rows: Tensor, logits: Tensor, labels: Tensor, modified: Callable[[], Tensor]) -> None:
        weight, bias = engine.heads
        expected = FEATURES[rows] @ weight.mT + bias[:, None]
        torch.testing.assert_close(logits, expected)
        for plan, seen in zip(plans, labels, strict=True):
            assert torch.equal(seen, plan.labels.batch(rows))
        steps.append((len(rows), modified()))

    engine.train_epoch(3, look)
    assert [rows for rows, _ in steps] == [BATCH] * (IMAGES // BATCH) + [IMAGES % BATCH]
    marked = torch.stack([mask.sum(dim=(1, 2)) for _, mask in steps]).sum(dim=0).tolist()
    assert marked[:2] == [0, 0] and 0 < marked[2] <= marked[3] < marked[4]


def test_labels_that_do_not_fit_are_read_from_tables_and_heads_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = plans_for("an", "ll-cp", "asl")
    dense = train_epochs(engine_of(plans), 1, 2)
    monkeypatch.setattr(engine_module, "MEMORY_SHARE", 10**18)
    sparse = train_epochs(engine_of(plans), 1, 2)
    assert dense.tables.dense is not None and sparse.tables.dense is None
    torch.testing.assert_close(sparse.heads, dense.heads, rtol=0, atol=0)
    monkeypatch.setattr(engine_module, "free_memory", lambda device: 1000)
    with pytest.raises(InputError, match=r"1\.0 kB"):
        engine_of(plans)


def test_heads_continue_from_other_weights_whatever_the_chunk_size(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(plans_for("an", "em"))
    weight, bias = torch.randn(4, CLASSES, FEATURES.shape[1]), torch.randn(4, CLASSES)
    engine.set_heads(weight, bias)
    assert torch.equal(engine.heads[0], weight) and torch.equal(engine.heads[1], bias)
    for chunk in (engine_module.CHUNK, 7 * 4 * CLASSES):
        monkeypatch.setattr(engine_module, "CHUNK", chunk)
        torch.testing.assert_close(engine.logits(FEATURES), FEATURES @ weight.mT + bias[:, None])


def test_heads_of_one_method_share_a_loss_where_only_numbers_differ() -> None:
    """Two heads with other sizes of the dictionary of `imcl` used to crash."""
    imcl: dict[str, Any] = {"lambda_features": 0.0, "dictionary": 30}
    plans = [
        HeadPlan("em", {"alpha": 0.1}, 1e-2, TABLE),
        HeadPlan("em", {"alpha": 0.2}, 1e-3, some_labels(1)),
        HeadPlan("em", {"alpha": 0.2, "reduction": "sum"}, 1e-3, TABLE),
        *(HeadPlan("role", {"expected_positives": number}, 1e-3, TABLE) for number in (1.0, 2.0)),
        HeadPlan("role", {"expected_positives": 2.0}, 1e-3, TABLE, seed=1),
        HeadPlan("role", {"expected_positives": 2.0}, 1e-3, some_labels(1)),
        *(HeadPlan("imcl", imcl | each, 1e-2, TABLE) for each in ({"dictionary": 10}, {}, {"lambda_labels": 0.5})),
    ]
    together = train_epochs(engine_of(plans), 1, 2)
    assert sorted(group.plans for group in together.groups) == [(0, 1), (2,), (3, 4), (5,), (6,), (7,), (8, 9)]
    for number in (7, 8, 9):
        alone = train_epochs(engine_of([plans[number]]), 1, 2)
        torch.testing.assert_close(together.heads[0][number], alone.heads[0][0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"val_features": FEATURES, "val_labels": VAL}, "val"),
        ({"features": FEATURES[:5]}, "30 images"),
        ({"plans": [HeadPlan("an", {"reduction": "none"}, 1e-2, TABLE)]}, "scalar"),
        ({"plans": [HeadPlan("an", {}, 0.0, TABLE)]}, "above 0"),
        ({"plans": [*plans_for("an"), HeadPlan("an", {}, 1e-2, some_labels(1, images=61))]}, "images"),
    ],
)
def test_wrong_arguments_are_rejected(change: dict[str, Any], named: str) -> None:
    given: dict[str, Any] = {"features": FEATURES, "plans": plans_for("an"), "epochs": 2, "batch_size": 4, **change}
    with pytest.raises(InputError, match=named):
        train_heads(given.pop("features"), given.pop("plans"), **given)
