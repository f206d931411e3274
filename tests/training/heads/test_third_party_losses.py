"""Losses from outside the package in the linear engine: each head ends where a plain training loop ends."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from tests.training.heads.reference_loop import some_features, some_labels, train_alone, train_together
from tests.training.test_precomputed_features import features
from torch import Tensor, nn
from torch.nn.functional import softplus

import labelgap as lg
from labelgap.labels import PRESENT
from labelgap.losses import AssumeNegative, ElementwiseLoss, Loss
from labelgap.training.heads import HeadPlan, LinearEngine

TABLE = some_labels()
FEATURES = some_features(TABLE)


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

    def forward(
        self, logits: Tensor, labels: Tensor, index: Tensor | None = None, features: Tensor | None = None
    ) -> Tensor:
        return softplus(torch.where(labels == PRESENT, -logits, logits)).mean()


class Doubled(AssumeNegative):
    """Changes ``forward`` of a built-in loss."""

    def forward(
        self, logits: Tensor, labels: Tensor, index: Tensor | None = None, features: Tensor | None = None
    ) -> Tensor:
        return 2 * super().forward(logits, labels, index, features)


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
    return HeadPlan(f"{loss_class.__module__}:{loss_class.__qualname__}", options, lr, TABLE)


def check(plans: list[HeadPlan]) -> LinearEngine:
    engine = train_together(plans, FEATURES)
    for head, single in enumerate(train_alone(each, FEATURES) for each in plans):
        torch.testing.assert_close(engine.heads[0][head], single.head.weight.detach(), rtol=0, atol=1e-9)
        torch.testing.assert_close(engine.heads[1][head], single.head.bias.detach(), rtol=0, atol=1e-9)
    return engine


@pytest.mark.parametrize(
    "loss_class", [Doubled, LearnedPenalty, LearnedTemperature, OwnForward, TemperedAssumeNegative]
)
def test_one_head_trains_as_in_a_plain_loop(loss_class: type[Loss]) -> None:
    check([plan(loss_class, 1e-2)])


@pytest.mark.parametrize("loss_class", [LearnedPenalty, LearnedTemperature, TemperedAssumeNegative])
def test_two_heads_of_a_loss_share_no_parameter(loss_class: type[Loss]) -> None:
    check([plan(loss_class, 1e-2), plan(loss_class, 3e-3)])


def test_heads_of_different_losses_and_options_train_together() -> None:
    check(
        [
            plan(LearnedPenalty, 1e-2),
            plan(LearnedTemperature, 1e-2, weight=0.5),
            plan(LearnedTemperature, 1e-2, weight=2.0),
            HeadPlan("an", {}, 1e-2, TABLE),
        ]
    )


def test_fit_trains_a_loss_of_the_users_own(tmp_path: Any) -> None:
    method = f"{LearnedTemperature.__module__}:LearnedTemperature"
    run = lg.fit(features(), method=method, epochs=2, out=tmp_path / "run", device="cpu", quiet=True)
    assert run.finished


def test_a_loss_that_defines_forward_alone_is_used_as_any_other() -> None:
    logits, labels = torch.randn(4, TABLE.shape[1]), TABLE.batch(range(4))
    torch.testing.assert_close(OwnForward()(logits, labels), lg.loss("an")(logits, labels))
