"""Heads whose losses are computed by kernels, on a GPU or in Triton's interpreter, end where they end without."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.losses.kernels.kernel_cases import DEVICE, METHODS, REASON, kernels_for_any_size
from tests.training.heads.reference_loop import some_features, some_labels, train_together

from labelgap.losses.kernels import disabled
from labelgap.training.heads import HeadPlan, LinearEngine

pytestmark = [
    pytest.mark.skipif(REASON is not None, reason=str(REASON)),
    pytest.mark.filterwarnings("ignore:(divide by zero|invalid value|overflow):RuntimeWarning"),  # of the interpreter
]

TABLE = some_labels()
FEATURES = some_features(TABLE, torch.float32)


@pytest.fixture
def taken() -> Iterator[set[Any]]:
    with kernels_for_any_size() as known:
        yield known


def train_both(plans: list[HeadPlan], **settings: Any) -> list[LinearEngine]:
    """Train the same heads with kernels, and without them."""
    settings = {"device": DEVICE, "optimizer": "sgd", **settings}
    engine = train_together(plans, FEATURES, **settings)
    if DEVICE == "cuda":
        assert engine.graphed_step is not None and engine.graphed_step.disabled is None and engine.graphed_step.graph
    with disabled():
        return [engine, train_together(plans, FEATURES, **settings)]


def assert_equal(engines: list[LinearEngine]) -> None:
    for found, expected in zip(*(engine.heads for engine in engines), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=3e-5)


@pytest.mark.parametrize("method", METHODS)
def test_a_single_head_ends_where_it_ends_without_kernels(method: str, taken: set[Any]) -> None:
    options = {"delta_rel": 5.0} if method.startswith("ll-") else {}
    engines = train_both([HeadPlan(method, options, 0.5, TABLE)])
    assert taken and engines[0].kernel.empty
    assert_equal(engines)


def test_many_heads_of_all_methods_end_where_they_end_without_kernels(taken: set[Any]) -> None:
    other = some_labels(3)
    plans = [HeadPlan(method, {}, lr, TABLE) for method in ("em", "asl", "ll-r", "role", "epr") for lr in (0.5, 0.1)]
    plans += [HeadPlan("em", {"alpha": alpha}, 0.2, other) for alpha in (0.1, 0.4)]
    plans = [
        HeadPlan(plan.method, {"expected_positives": 2.0}, plan.lr, TABLE) if plan.method in ("role", "epr") else plan
        for plan in plans
    ]
    engines = train_both(plans)
    assert taken and not engines[0].kernel.empty
    assert [len(group.plans) for group in engines[0].groups if group.loss_fn.name == "em"] == [1] * 4
    assert_equal(engines)


def test_a_head_that_fails_is_frozen_and_the_others_are_not(taken: set[Any]) -> None:
    plans = [HeadPlan(method, {}, lr, TABLE) for method in ("em", "asl") for lr in (0.5, 1e308)]
    engines = train_both(plans)
    assert taken and [engine.failed for engine in engines] == [engines[1].failed] * 2
    assert [failure is None for failure in engines[0].failed] == [True, False] * 2
    for found, expected in zip(*(engine.heads for engine in engines), strict=True):
        torch.testing.assert_close(found[::2], expected[::2], rtol=0, atol=3e-5)


def test_all_images_at_once_end_where_they_end_without_kernels(taken: set[Any]) -> None:
    engines = train_both([HeadPlan("bce", {}, 1.0, TABLE, weight_decay=1e-2)], optimizer="newton")
    assert taken
    assert_equal(engines)
