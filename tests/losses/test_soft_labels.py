"""Soft labels of a table in losses that are mixtures: the formula, the linear engine, and the state of `gpr`."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.training.heads.reference_loop import BATCH, EPOCHS, Alone, some_features, some_labels

import labelgap as lg
from labelgap.core.errors import InputError
from labelgap.labels import PRESENT, UNKNOWN, LabelTable, SoftLabels
from labelgap.training.heads import HeadPlan, LinearEngine

OPTIONS: dict[str, dict[str, Any]] = {
    **{name: {} for name in ("an", "wan", "bce-ls", "n-ls", "em", "entmin", "dw", "ll-r", "ll-ct", "ll-cp", "gpr")},
    "epr": {"expected_positives": 1.5},
    "role": {"expected_positives": 1.5},
    "l2r": {"weight": 0.01},
}


def some_soft(table: LabelTable, seed: int = 0) -> LabelTable:
    random = np.random.default_rng(seed)
    weight = random.random(table.shape) * (random.random(table.shape) < 0.7)
    return table.with_soft(SoftLabels(random.random(table.shape).astype(np.float32), weight.astype(np.float32)))


PLAIN = some_labels()
SOFT = some_soft(PLAIN)
FEATURES = some_features(PLAIN)


def plain_cost(method: str, x: float, y: int) -> float:
    """What an entry costs without soft labels."""
    here, away = math.log1p(math.exp(-x)), math.log1p(math.exp(x))
    if y != UNKNOWN:
        return here if y == PRESENT else away
    p = 1 / (1 + math.exp(-x))
    return {"an": away, "dw": 0.1 * away, "iu": 0.0, "em": -0.2 * (p * here + (1 - p) * away)}[method]


def soft_entries(method: str, logits: NDArray[np.float64], table: LabelTable) -> NDArray[np.float64]:
    """(1 − s)·ℓ + s·(−t ln p − (1 − t) ln(1 − p)) where a label is unknown."""
    codes, found = table.to_dense(), np.zeros(table.shape)
    assert table.soft is not None
    for place in np.ndindex(table.shape):
        x, cost = float(logits[place]), plain_cost(method, float(logits[place]), int(codes[place]))
        t, s = float(table.soft.target[place]), float(table.soft.weight[place])
        soft = t * math.log1p(math.exp(-x)) + (1 - t) * math.log1p(math.exp(x))
        found[place] = cost if codes[place] != UNKNOWN else (1 - s) * cost + s * soft
    return found


@pytest.mark.parametrize("method", ["an", "dw", "iu", "em"])
def test_an_unknown_label_costs_a_mixture_of_its_rule_and_of_its_target(method: str) -> None:
    logits = np.random.default_rng(1).normal(0, 3, SOFT.shape)
    for reduction, wanted in (("none", soft_entries(method, logits, SOFT)), ("mean", None), ("sum", None)):
        loss = lg.loss(method, reduction=reduction)
        loss.prepare(SOFT)
        rows = torch.randperm(len(SOFT))
        found = loss(torch.from_numpy(logits)[rows], SOFT.batch(rows), index=rows).numpy()
        whole = soft_entries(method, logits, SOFT)
        wanted = whole[rows.numpy()] if reduction == "none" else getattr(whole, reduction)()
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_rows_are_needed_where_labels_are_soft() -> None:
    loss = lg.loss("an")
    loss.prepare(SOFT)
    with pytest.raises(InputError):
        loss(torch.zeros(SOFT.shape), SOFT.batch(np.arange(len(SOFT))))
    loss.prepare(PLAIN)
    loss(torch.zeros(SOFT.shape), SOFT.batch(np.arange(len(SOFT))))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("method", OPTIONS)
def test_the_engine_trains_soft_labels_as_a_loop_does(method: str) -> None:
    options = OPTIONS[method]
    plans = [
        HeadPlan(method, options, 1e-2, SOFT),
        HeadPlan(method, options, 1e-2, PLAIN),
        HeadPlan(method, options, 1e-3, some_soft(PLAIN, 1)),
        HeadPlan("em", {}, 1e-2, SOFT),
        HeadPlan("an", {}, 1e-2, PLAIN),
    ]
    engine = LinearEngine(FEATURES, plans, epochs=EPOCHS, batch_size=BATCH, dtype=torch.float64)
    singles = [Alone(plan, FEATURES) for plan in plans]
    for epoch in range(1, EPOCHS + 1):
        losses = engine.train_epoch(epoch)
        engine.end_epoch()
        np.testing.assert_allclose(losses, [single.train_epoch(epoch)[0] for single in singles], atol=1e-9)
    weights = engine.heads[0]
    for found, single in zip(weights, singles, strict=True):
        torch.testing.assert_close(found, single.head.weight.detach(), rtol=0, atol=1e-9)
    assert (weights[0] - weights[1]).abs().max() > 1e-4


def test_the_optimizer_of_all_images_takes_soft_labels() -> None:
    engines = [
        LinearEngine(FEATURES, [HeadPlan("an", {}, 1.0, table)], epochs=3, batch_size=1, optimizer="newton")
        for table in (SOFT, PLAIN, PLAIN.with_soft(SoftLabels(*(0 * part for part in SOFT.soft or ()))))
    ]
    soft, plain, none = (engine.train_epoch(1)[0] for engine in engines)
    assert none == pytest.approx(plain)
    assert soft != pytest.approx(plain, rel=1e-3)


def test_a_teacher_follows_the_classifier() -> None:
    loss = lg.loss("gpr", momentum=0.8)
    loss.prepare(SOFT)
    loss.set_epoch(1)
    logits, rows = torch.randn(4, len(SOFT.classes), requires_grad=True), torch.tensor([3, 1, 7, 2])
    loss(logits, SOFT.batch(rows), index=rows).backward()
    loss.after_step()
    assert SOFT.soft is not None
    wanted = SOFT.soft.target.copy()
    wanted[rows] = 0.8 * wanted[rows] + 0.2 / (1 + np.exp(-logits.detach().numpy()))
    np.testing.assert_allclose(loss.state_dict()["teacher"], wanted, rtol=1e-5)


def test_a_table_keeps_soft_labels_with_its_rows() -> None:
    assert SOFT.soft is not None
    part = SOFT.select([4, 2])
    assert part.soft is not None
    np.testing.assert_array_equal(part.soft.target, SOFT.soft.target[[4, 2]])
    assert SOFT != PLAIN
    assert SOFT.with_soft(None) == PLAIN
    assert pickle.loads(pickle.dumps(SOFT)) == SOFT
    assert some_soft(PLAIN, 1) != SOFT
    assert SOFT.drop(0.5).soft is None
