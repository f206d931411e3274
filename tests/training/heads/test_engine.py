"""Heads trained together end where each ends alone; heads that fail or stop, the best epoch, and what is refused."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.losses.reference import reference_of
from tests.training.heads.reference_loop import (
    BATCH,
    EPOCHS,
    IMAGES,
    Alone,
    some_features,
    some_labels,
    train_epochs,
)
from torch import Tensor, nn
from torch.nn.functional import softplus

import labelgap as lg
from labelgap.core.errors import InputError
from labelgap.core.trust import class_path
from labelgap.labels import PRESENT
from labelgap.losses import AssumeNegative, ElementwiseLoss, Loss, methods
from labelgap.metrics import average_precision
from labelgap.training.heads import HeadPlan, LinearEngine, train_heads
from labelgap.training.heads import engine as engine_module
from labelgap.training.heads.solver import FeatureBasis
from labelgap.training.heads.train import BestEpochs

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # of thresholds and rounds

TABLE = some_labels()
FEATURES = some_features(TABLE)


def check(plans: list[HeadPlan], **settings: Any) -> Counter[str]:
    """Compare losses, revisions and weights of heads that train together and alone; count the revisions of a method."""
    engine = LinearEngine(FEATURES, plans, epochs=EPOCHS, batch_size=BATCH, dtype=torch.float64, **settings)
    singles, revised = [Alone(plan, FEATURES, **settings) for plan in plans], Counter[str]()
    for epoch in range(1, EPOCHS + 1):
        together = zip(plans, singles, engine.train_epoch(epoch), engine.end_epoch(), strict=True)
        for plan, single, found, revisions in together:
            loss, told = single.train_epoch(epoch)
            assert math.isclose(found, loss, abs_tol=1e-9), f"{plan} {dict(plan.options)}"
            lists = [[(item.image, item.class_name, item.value) for item in items] for items in (revisions, told)]
            assert lists[0] == lists[1], f"{plan} {dict(plan.options)}"
            revised[plan.method] += len(told)
    for plan, single, *heads in zip(plans, singles, *engine.heads, strict=True):
        for value, expected in zip(heads, single.head.parameters(), strict=True):
            torch.testing.assert_close(value, expected.detach(), rtol=0, atol=1e-9, msg=f"{plan} {dict(plan.options)}")
    return revised


def test_every_method_trains_together_as_alone() -> None:
    """All options of the methods' references, without ranks that are drawn in every step."""
    sets = [(name, options) for name in lg.methods() for options in reference_of(name).options]
    drawn = [each for each in sets if each[1].get("rank") != "sampled"]
    plans = [HeadPlan(*each, (1e-2, 3e-3)[n % 2], TABLE, seed=n // 2 % 2) for n, each in enumerate(drawn)]
    plans += [HeadPlan("curriculum", {"tau": tau}, 3e-2, TABLE) for tau in (0.7, 0.8)]
    plans += [HeadPlan("em-apl", {"warmup": warmup}, 3e-2, TABLE) for warmup in (2, 3)]
    revised = check(plans)
    assert {plan.method for plan in plans} == set(lg.methods())
    assert {name for name, count in revised.items() if count} == {"curriculum", "em-apl", "ll-cp", "ll-cp-abs"}


def test_heads_may_have_different_labels() -> None:
    tables = [TABLE, some_labels(1), some_labels(2, unknown=0.0)]
    methods = ("iu", "an", "ll-r", "ll-r-abs", "asl", "softmax", "ll-cp")
    check([HeadPlan(name, {}, 1e-2, table) for name in methods for table in tables])


def test_rounds_of_pseudo_labels_are_shared_by_heads_of_different_labels() -> None:
    tables = [TABLE, some_labels(1), some_labels(3, unknown=0.4), TABLE]
    sets: list[tuple[str, dict[str, Any]]] = [
        ("em-apl", {"warmup": 1}),
        ("em-apl", {"warmup": 2, "positive_share": 0.1}),
        ("curriculum", {"tau": 0.7}),
    ]
    sets += [("curriculum", {"strategy": "proportion"})]
    plans = [HeadPlan(*each, 3e-2, table, seed=seed) for each in sets for seed, table in enumerate(tables)]
    assert set(check(plans)) == {"em-apl", "curriculum"}
    engine = LinearEngine(SINGLES, plans, epochs=EPOCHS, batch_size=BATCH)
    assert len(engine.groups) == 3, "em-apl of all options, and curriculum of each strategy"


@pytest.mark.parametrize(
    ("decay", "settings"),
    [
        (0.01, {}),
        (0.0, {"optimizer": "sgd"}),
        (0.01, {"optimizer": "sgd", "momentum": 0.9}),
        (0.0, {"optimizer": "sgd", "momentum": 0.9, "nesterov": True}),
    ],
)
def test_optimizers_are_torchs_and_loss_parameters_do_not_decay(decay: float, settings: dict[str, Any]) -> None:
    pairs = [(name, lr) for name in ("epr", "role") for lr in (1e-1, 1e-2)]
    check(
        [HeadPlan(name, {"expected_positives": 2.0}, lr, TABLE, weight_decay=decay) for name, lr in pairs], **settings
    )


class LearnedPenalty(Loss):
    """A parameter that only ``penalty`` uses."""

    needs = frozenset({"penalty"})

    def __init__(self) -> None:
        super().__init__()
        self.strength = nn.Parameter(torch.zeros(2))

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        return [{"params": [self.strength], "lr": 3 * lr}]

    def cost(self, logits: Tensor, labels: Tensor, index: Tensor | None, features: Tensor | None) -> Tensor:
        return softplus(torch.where(labels == PRESENT, -logits, logits)).mean()

    def penalty(self, parameters: Iterable[Tensor]) -> Tensor:
        squares = torch.stack([(parameter**2).sum() for parameter in parameters]).sum()
        return 0.01 * (squares * self.strength.exp() - self.strength).sum()


class OwnForward(Loss):
    """Defines ``forward``, as any module of PyTorch does."""

    def forward(self, logits: Tensor, labels: Tensor, *_: Tensor | None, **__: Tensor | None) -> Tensor:
        return softplus(torch.where(labels == PRESENT, -logits, logits)).mean()


class Doubled(AssumeNegative):
    """Changes ``forward`` of a built-in loss."""

    def forward(self, logits: Tensor, labels: Tensor, *others: Tensor | None, **named: Tensor | None) -> Tensor:
        return 2 * super().forward(logits, labels, *others, **named)


class LearnedTemperature(ElementwiseLoss):
    """A scalar parameter."""

    def __init__(self, weight: float = 1.0) -> None:
        super().__init__()
        self.weight = weight
        self.temperature = nn.Parameter(torch.tensor(1.0))

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        return [{"params": [self.temperature], "lr": lr}]

    def entries(self, logits: Tensor, labels: Tensor) -> Tensor:
        assert logits.ndim == 2
        return self.weight * softplus(self.temperature * torch.where(labels == PRESENT, -logits, logits))


class TemperedAssumeNegative(AssumeNegative):
    """A built-in loss with another cost and a scalar parameter: neither its mixture nor its head axis may be used."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(2.0))

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        return [{"params": [self.temperature], "lr": lr}]

    def entries(self, logits: Tensor, labels: Tensor) -> Tensor:
        return super().entries(self.temperature * logits, labels)


def plan(loss_class: type[Loss], lr: float, **options: Any) -> HeadPlan:
    return HeadPlan(class_path(loss_class), options, lr, TABLE)


@pytest.mark.parametrize(
    "loss_class", [Doubled, LearnedPenalty, LearnedTemperature, OwnForward, TemperedAssumeNegative]
)
def test_heads_of_a_loss_of_somebody_else_share_no_parameter(loss_class: type[Loss]) -> None:
    check([plan(loss_class, lr) for lr in (1e-2, 3e-3)])


VAL = some_labels(7, images=80, unknown=0.0)
SINGLES, VAL_SINGLES = (some_features(table, torch.float32) for table in (TABLE, VAL))
OPTIONS: dict[str, dict[str, Any]] = {"em-apl": {"warmup": 2}, "ll-cp": {"delta_rel": 5.0}, "l1r": {"weight": 1e-3}}
OPTIONS |= {"imcl": {"lambda_features": 0.0}, **{name: {"expected_positives": 2.0} for name in ("epr", "role")}}


def plans_for(*methods: str, rates: tuple[float, ...] = (1e-2, 1e-3)) -> list[HeadPlan]:
    return [HeadPlan(name, OPTIONS.get(name, {}), lr, TABLE) for name in methods for lr in rates]


def engine_of(plans: list[HeadPlan], **settings: Any) -> LinearEngine:
    return LinearEngine(SINGLES, plans, epochs=EPOCHS, batch_size=BATCH, **settings)


@pytest.mark.parametrize("optimizer", ["adam", "newton"])
def test_heads_of_several_parts_end_where_those_of_each_part_alone_end(optimizer: str) -> None:
    methods = ("an", "em", "gr") if optimizer == "newton" else ("an", "ll-r", *OPTIONS)
    options = {**OPTIONS, "imcl": {}}
    rows = [np.arange(20), np.arange(10, IMAGES)]
    labels, parts = [TABLE.select(each) for each in rows], torch.stack([SINGLES[each] for each in rows])
    plans = [
        HeadPlan(name, options.get(name, {}), 1e-2, table, weight_decay=1e-3, part=part)
        for name in methods
        for part, table in enumerate(labels)
    ]
    settings: dict[str, Any] = {"epochs": 3, "batch_size": BATCH, "optimizer": optimizer}
    settings["basis"] = FeatureBasis.fit(SINGLES, rotate=True)
    together = train_heads(parts, plans, **settings)
    for part, features in enumerate(parts):
        own = [replace(plan, part=0) for plan in plans if plan.part == part]
        for alone, beside in zip(train_heads(features, own, **settings), together[part::2], strict=True):
            np.testing.assert_allclose(beside.weight, alone.weight, atol=2e-5)
            np.testing.assert_allclose(beside.bias, alone.bias, atol=2e-5)


def test_heads_that_have_converged_stop_and_others_go_on() -> None:
    plans = [HeadPlan(name, {}, 1.0, TABLE, weight_decay=1.0) for name in ("an", "gr")]
    settings: dict[str, Any] = {"batch_size": BATCH, "optimizer": "newton", "standardize": True}
    steady, scheduled = train_heads(SINGLES, plans, epochs=15, **settings)
    assert steady.stopped is not None and steady.best_epoch == steady.stopped < 15
    assert scheduled.stopped is None and scheduled.best_epoch == 15, "its loss depends on the epoch"


def test_a_failed_head_keeps_its_best_epoch_and_a_reason() -> None:
    labels: dict[str, Any] = {"val_features": VAL_SINGLES, "val_labels": VAL}
    plans = [HeadPlan("an", {}, 1e-2, TABLE), HeadPlan("an", {}, 1e38, TABLE)]
    good, bad = train_heads(SINGLES, plans, epochs=3, batch_size=BATCH, **labels)
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
    given: dict[str, Any] = {"val_features": VAL_SINGLES, "val_labels": VAL.to_dense(), "batch_size": BATCH}
    results = train_heads(SINGLES, plans, epochs=6, progress=lambda *done: seen.append(done), **given)
    assert seen == [(epoch, 6) for epoch in range(1, 7)]
    assert len({result.best_epoch for result in results}) > 1
    assert min(result.best_score or 0.0 for result in results[::2]) > 0.7, "they start at 0.43"
    for result in results:
        scores = [entry["score"] for entry in result.history]
        assert result.best_score == max(scores) and result.best_epoch == 1 + scores.index(max(scores))
        logits = VAL_SINGLES @ torch.from_numpy(result.weight).T + torch.from_numpy(result.bias)
        assert average_precision(logits, VAL) == pytest.approx(result.best_score, abs=1e-6)


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
        ({"val_features": SINGLES, "val_labels": VAL}, "val"),
        ({"features": SINGLES[:5]}, "30 images"),
        ({"plans": [HeadPlan("an", {"reduction": "none"}, 1e-2, TABLE)]}, "scalar"),
        ({"plans": [HeadPlan("an", {}, 0.0, TABLE)]}, "above 0"),
        ({"plans": [*plans_for("an"), HeadPlan("an", {}, 1e-2, some_labels(1, images=61))]}, "images"),
    ],
)
def test_wrong_arguments_are_rejected(change: dict[str, Any], named: str) -> None:
    given: dict[str, Any] = {"features": SINGLES, "plans": plans_for("an"), "epochs": 2, "batch_size": 4, **change}
    with pytest.raises(InputError, match=named):
        train_heads(given.pop("features"), given.pop("plans"), **given)
