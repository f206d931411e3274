"""Optimizers, schedules and moving averages against their formulas."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from tests.training.plain_config import PLAIN
from torch import nn

from labelgap.training.config import RunConfig
from labelgap.training.loop.optimizers import MovingAverage, build_optimizer, build_scheduler


def config_of(**changed: Any) -> RunConfig:
    return RunConfig.checked(**{**PLAIN, "lr": 0.1, **changed})


def weights_after(config: RunConfig, gradients: list[float]) -> list[float]:
    weight = nn.Parameter(torch.tensor([1.0], dtype=torch.float64))
    optimizer = build_optimizer([{"params": [weight], "lr": config.lr}], config)
    seen = []
    for gradient in gradients:
        weight.grad = torch.tensor([gradient], dtype=torch.float64)
        optimizer.step()
        seen.append(weight.item())
    return seen


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_follows_its_formula_with_momentum_and_weight_decay(nesterov: bool) -> None:
    config = config_of(optimizer="sgd", momentum=0.9, nesterov=nesterov, weight_decay=0.01)
    weight, velocity, expected = 1.0, 0.0, []
    for gradient in (0.5, -0.2, 0.3):
        total = gradient + 0.01 * weight
        velocity = 0.9 * velocity + total
        weight -= 0.1 * (total + 0.9 * velocity if nesterov else velocity)
        expected.append(weight)
    assert weights_after(config, [0.5, -0.2, 0.3]) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("decay", [0.0, 0.05])
def test_adam_follows_its_formula_and_adamw_shrinks_the_weights_beside_it(decay: float) -> None:
    weight, first, second, expected = 1.0, 0.0, 0.0, []
    for step, gradient in enumerate((0.5, -0.2, 0.3), 1):
        weight *= 1 - 0.1 * decay
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        weight -= 0.1 * (first / (1 - 0.9**step)) / (math.sqrt(second / (1 - 0.999**step)) + 1e-8)
        expected.append(weight)
    config = config_of(optimizer="adamw" if decay else "adam", weight_decay=decay)
    assert weights_after(config, [0.5, -0.2, 0.3]) == pytest.approx(expected, abs=1e-9)


def rates(config: RunConfig, steps_per_epoch: int, steps: int) -> list[list[float]]:
    """The rates of two groups, step by step."""
    groups = [{"params": [nn.Parameter(torch.zeros(1))], "lr": rate} for rate in (0.1, 0.001)]
    optimizer = build_optimizer(groups, config)
    scheduler = build_scheduler(optimizer, config, steps_per_epoch)
    seen = []
    for _ in range(steps):
        seen.append([group["lr"] for group in optimizer.param_groups])
        optimizer.step()
        scheduler.step()
    return seen


def test_rates_rise_in_the_warm_up_and_then_fall_along_a_cosine_step_by_step() -> None:
    seen = rates(config_of(schedule="cosine", warmup=0.5), steps_per_epoch=10, steps=40)
    factors = [(s + 1) / 5 for s in range(5)] + [0.5 * (1 + math.cos(math.pi * (s - 5) / 35)) for s in range(5, 40)]
    assert np.allclose(seen, [[0.1 * factor, 0.001 * factor] for factor in factors], rtol=1e-12)


def test_the_moving_average_is_the_weighted_mean_of_all_weights_so_far_and_comes_back_from_a_checkpoint() -> None:
    network = nn.BatchNorm1d(2).double()
    average, expected = MovingAverage(network, 0.5), 1.0
    for step, value in enumerate((3.0, -1.0, 4.0), 1):
        nn.init.constant_(network.weight, value)
        network(torch.tensor([[1.0, 2.0], [3.0, 5.0]]).double())
        average.update_parameters(network)
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * value
    found = average.module.state_dict()
    assert found["weight"].tolist() == pytest.approx([expected] * 2)
    assert torch.equal(found["running_mean"], network.state_dict()["running_mean"])
    other = MovingAverage(nn.BatchNorm1d(2).double(), 0.5)
    other.load_state_dict(average.state_dict())
    assert other.n_averaged == 4
    torch.testing.assert_close(other.module.state_dict(), found, rtol=0, atol=0)
