"""Heads trained together end where each ends alone: in float64 to nine digits, for every method."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.losses.reference import reference_of
from tests.training.heads.reference_loop import (
    BATCH,
    CLASSES,
    EPOCHS,
    IMAGES,
    Alone,
    some_features,
    some_labels,
    train_alone,
    train_together,
)
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy
from torch.nn.functional import logsigmoid

import labelgap as lg
from labelgap.core.seeds import numpy_generator
from labelgap.training.heads import HeadPlan, LinearEngine
from labelgap.training.heads.engine import initial_head

pytestmark = pytest.mark.usefixtures("quiet")

TABLE = some_labels()
FEATURES = some_features(TABLE)


def plans_of_every_method() -> list[HeadPlan]:
    """All options of the methods' references, without ranks that are drawn in every step."""
    sets = [(name, options) for name in lg.methods() for options in reference_of(name).options]
    return [
        HeadPlan(name, options, (1e-2, 3e-3)[number % 2], TABLE, seed=number // 2 % 2)
        for number, (name, options) in enumerate(sets)
        if options.get("rank") != "sampled"
    ]


def test_every_method_trains_together_as_alone() -> None:
    plans = plans_of_every_method()
    assert {plan.method for plan in plans} == set(lg.methods())
    for plan, weight, bias in zip(plans, *train_together(plans, FEATURES).heads, strict=True):
        single = train_alone(plan, FEATURES).head
        for found, expected in ((weight, single.weight), (bias, single.bias)):
            torch.testing.assert_close(found, expected.detach(), rtol=0, atol=1e-9, msg=f"{plan} {dict(plan.options)}")


LOSSES: dict[str, tuple[dict[str, Any], Callable[[Tensor, Tensor, int], Tensor]]] = {
    "bce": ({}, lambda x, y, t: cross_entropy(x, (y == 1).double(), weight=(y != -1).double())),
    "an-ls": ({"smoothing": 0.2}, lambda x, y, t: cross_entropy(x, (y == 1).double() * 0.6 + 0.2)),
    "wan": ({}, lambda x, y, t: cross_entropy(x, (y == 1).double(), weight=1 - (y == -1).double() * 0.8)),
    "em": ({"alpha": 0.3}, lambda x, y, t: em(x, y)),
    "epr": ({"expected_positives": 2.0}, lambda x, y, t: LOSSES["bce"][1](x, y, t) + expected(x)),
    "ll-ct": ({"delta_rel": 2.5}, lambda x, y, t: large_loss(x, y, t, corrected=True)),
    "ll-r": ({"delta_rel": 2.5}, lambda x, y, t: large_loss(x, y, t, corrected=False)),
}


def em(x: Tensor, y: Tensor) -> Tensor:
    p = x.sigmoid()
    known = -(y == 1).double() * logsigmoid(x) - (y == 0).double() * logsigmoid(-x)
    return (known + 0.3 * (y == -1).double() * (p * logsigmoid(x) + (1 - p) * logsigmoid(-x))).mean()


def expected(x: Tensor) -> Tensor:
    return ((x.sigmoid().sum(dim=1).mean() - 2.0) / CLASSES) ** 2


def large_loss(x: Tensor, y: Tensor, epoch: int, *, corrected: bool) -> Tensor:
    loss = cross_entropy(x, (y == 1).double(), reduction="none")
    count = math.ceil(round(int((y == -1).sum()) * (epoch - 1) * 0.025, 9))
    if count == 0:
        return loss.mean()
    level = loss.detach()[y == -1].sort(descending=True).values[count - 1]
    large = (y == -1) & (loss.detach() >= level)
    return torch.where(large, -logsigmoid(x) if corrected else 0.0, loss).mean()


def test_heads_end_where_plain_loops_end() -> None:
    plans = [HeadPlan(name, options, 1e-2, TABLE, seed=4) for name, (options, _) in LOSSES.items()]
    labels = torch.from_numpy(TABLE.to_dense())
    for plan, weight in zip(plans, train_together(plans, FEATURES).heads[0], strict=True):
        start, zero = initial_head(FEATURES.shape[1], CLASSES, seed=4)
        w, b = start.double().requires_grad_(), zero.double().requires_grad_()
        adam = torch.optim.Adam([w, b], lr=1e-2)
        for epoch in range(1, EPOCHS + 1):
            for rows in torch.split(torch.from_numpy(numpy_generator(0, "order", epoch).permutation(IMAGES)), BATCH):
                adam.zero_grad()
                loss = LOSSES[plan.method][1](FEATURES[rows] @ w.T + b, labels[rows], epoch)
                torch.autograd.backward(loss)
                adam.step()
        torch.testing.assert_close(weight, w.detach(), rtol=0, atol=1e-9, msg=plan.method)


def test_heads_may_have_different_labels() -> None:
    tables = [TABLE, some_labels(1), some_labels(2, unknown=0.0)]
    plans = [
        HeadPlan(name, {}, 1e-2, table)
        for name in ("iu", "an", "ll-r", "ll-r-abs", "asl", "softmax", "ll-cp")
        for table in tables
    ]
    for plan, weight in zip(plans, train_together(plans, FEATURES).heads[0], strict=True):
        torch.testing.assert_close(weight, train_alone(plan, FEATURES).head.weight.detach(), rtol=0, atol=1e-9)


def test_losses_and_revisions_are_those_of_heads_alone() -> None:
    options: dict[str, dict[str, Any]] = {
        "ll-cp": {"delta_rel": 5},
        "em-apl": {"warmup": 2},
        "curriculum": {"tau": 0.7},
    }
    plans = [HeadPlan(name, options.get(name, {}), lr, TABLE) for name in ("an", *options) for lr in (3e-2, 1e-2)]
    engine = LinearEngine(FEATURES, plans, epochs=EPOCHS, batch_size=BATCH, dtype=torch.float64)
    singles, revised = [Alone(plan, FEATURES) for plan in plans], {plan.method: 0 for plan in plans}
    for epoch in range(1, EPOCHS + 1):
        losses, revisions = engine.train_epoch(epoch), engine.end_epoch()
        for head, single in enumerate(singles):
            loss, told = single.train_epoch(epoch)
            assert math.isclose(losses[head], loss, abs_tol=1e-9)
            assert [(item.image, item.class_name, item.value) for item in revisions[head]] == [
                (item.image, item.class_name, item.value) for item in told
            ]
            revised[plans[head].method] += len(told)
    assert revised.pop("an") == 0 and all(revised.values())


def test_a_single_head_returns_its_revisions() -> None:
    engine = LinearEngine(FEATURES, [HeadPlan("ll-cp", {"delta_rel": 5}, 1e-2, TABLE)], epochs=2, batch_size=BATCH)
    assert not len(engine.end_epoch()[0])
    engine.train_epoch(2)
    assert len(engine.end_epoch()[0])


@pytest.mark.parametrize(
    "settings",
    [
        {"weight_decay": 0.01},
        {"optimizer": "sgd"},
        {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.01},
        {"optimizer": "sgd", "momentum": 0.9, "nesterov": True},
    ],
)
def test_optimizers_are_torchs_and_loss_parameters_do_not_decay(settings: dict[str, Any]) -> None:
    options = {"expected_positives": 2.0}
    pairs = [(name, lr) for name in ("epr", "role") for lr in (1e-1, 1e-2)]
    decays = {"weight_decay": settings.get("weight_decay", 0.0)}
    plans = [HeadPlan(name, options, lr, TABLE, **decays) for name, lr in pairs]
    rest = {name: value for name, value in settings.items() if name not in ("optimizer", "weight_decay")}
    kind: Any = torch.optim.SGD if settings.get("optimizer") == "sgd" else torch.optim.Adam
    weights = train_together(plans, FEATURES, optimizer=settings.get("optimizer", "adam"), **rest).heads[0]
    for plan, weight in zip(plans, weights, strict=True):
        single = Alone(plan, FEATURES)
        learned = [{**group, "weight_decay": 0.0} for group in single.loss_fn.parameter_groups(plan.lr)]
        single.optimizer = kind([{"params": list(single.head.parameters())}, *learned], lr=plan.lr, **rest, **decays)
        for epoch in range(1, EPOCHS + 1):
            single.train_epoch(epoch)
        torch.testing.assert_close(weight, single.head.weight.detach(), rtol=0, atol=1e-9)
