"""Heads trained together end where each ends alone: in float64 to nine digits, for every method and foreign losses."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from tests.losses.reference import reference_of
from tests.training.heads.reference_loop import BATCH, EPOCHS, Alone, some_features, some_labels
from torch import Tensor, nn
from torch.nn.functional import softplus

import labelgap as lg
from labelgap.core.trust import class_path
from labelgap.labels import PRESENT
from labelgap.losses import AssumeNegative, ElementwiseLoss, Loss
from labelgap.training.heads import HeadPlan, LinearEngine

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


@pytest.mark.parametrize("rates", [[1e-2], [1e-2, 3e-3]], ids=["one head", "two heads"])
@pytest.mark.parametrize(
    "loss_class", [Doubled, LearnedPenalty, LearnedTemperature, OwnForward, TemperedAssumeNegative]
)
def test_heads_of_a_loss_of_somebody_else_share_no_parameter(loss_class: type[Loss], rates: list[float]) -> None:
    check([plan(loss_class, lr) for lr in rates])


def test_heads_of_different_losses_and_options_train_together() -> None:
    temperatures = [plan(LearnedTemperature, 1e-2, weight=weight) for weight in (0.5, 2.0)]
    check([plan(LearnedPenalty, 1e-2), *temperatures, HeadPlan("an", {}, 1e-2, TABLE)])
