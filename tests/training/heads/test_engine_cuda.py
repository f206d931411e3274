"""The linear engine on a GPU: steps replayed from a CUDA graph end where the CPU's end. Skipped where there is none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.losses.reference import reference_of
from tests.training.heads.reference_loop import BATCH, EPOCHS, some_features, some_labels, train_epochs, train_together

import labelgap as lg
from labelgap.training.heads import HeadPlan, LinearEngine, train_heads

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device on this machine"),
    pytest.mark.usefixtures("quiet"),
]

TABLE, VAL = some_labels(), some_labels(7, images=80, unknown=0.0)
FEATURES = some_features(TABLE)


def plans_of(method: str) -> list[HeadPlan]:
    sets = [options for options in reference_of(method).options if options.get("rank") != "sampled"]
    return [HeadPlan(method, options, lr, TABLE) for options in sets for lr in (1e-2, 3e-3)]


@pytest.mark.parametrize("method", lg.methods())
def test_captured_steps_end_where_the_cpu_ends(method: str) -> None:
    engine = train_together(plans_of(method), FEATURES, device="cuda")
    assert engine.graphed_step is not None and engine.graphed_step.disabled is None
    assert engine.graphed_step.graph is not None
    expected = train_together(plans_of(method), FEATURES)
    for found, there in zip(engine.heads, expected.heads, strict=True):
        torch.testing.assert_close(found.cpu(), there, rtol=0, atol=1e-8)


def test_captured_and_eager_steps_agree_for_all_methods_at_once() -> None:
    plans = [plan for method in lg.methods() for plan in plans_of(method)]
    engines = [train_together(plans, FEATURES, device="cuda", graphs=graphs) for graphs in (True, False)]
    first = engines[0].graphed_step
    assert first is not None and first.disabled is None and engines[1].graphed_step is None
    for found, expected in zip(engines[0].heads, engines[1].heads, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("settings", [{}, {"optimizer": "sgd", "momentum": 0.9, "nesterov": True}])
def test_a_failing_head_does_not_change_the_others_on_a_gpu(settings: dict[str, Any]) -> None:
    engines = {}
    for bad in (1e-3, 1e308):
        plans = [HeadPlan(name, {}, lr, TABLE) for name in ("an", "em", "asl", "ll-cp") for lr in (1e-2, bad)]
        engines[bad] = train_together(plans, FEATURES, device="cuda", **settings)
    for good, both in zip(engines[1e-3].heads, engines[1e308].heads, strict=True):
        torch.testing.assert_close(good[::2], both[::2], rtol=0, atol=1e-10)
    assert engines[1e308].failed[::2] == [None] * 4 and None not in engines[1e308].failed[1::2]


def test_a_resumed_engine_ends_with_the_same_numbers() -> None:
    options: dict[str, dict[str, Any]] = {"role": {"expected_positives": 2.0}, "ll-cp": {"delta_rel": 5.0}}
    plans = [HeadPlan(name, options.get(name, {}), lr, TABLE) for name in ("an", *options) for lr in (1e-2, 1e-3)]

    def made() -> LinearEngine:
        return LinearEngine(FEATURES, plans, epochs=EPOCHS, batch_size=BATCH, device="cuda", dtype=torch.float64)

    whole, resumed = train_epochs(made(), 1, EPOCHS), made()
    resumed.load_state_dict(train_epochs(made(), 1, 3).state_dict())
    train_epochs(resumed, 4, EPOCHS)
    for found, expected in zip(resumed.heads, whole.heads, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_whole_trainings_score_as_on_the_cpu() -> None:
    features, unseen = FEATURES.float(), some_features(VAL, torch.float32)
    plans = [HeadPlan(name, {}, lr, TABLE) for name in ("an", "em", "ll-r") for lr in (1e-2, 1e-3)]
    settings: dict[str, Any] = {"epochs": 4, "batch_size": BATCH, "val_features": unseen, "val_labels": VAL}
    there = train_heads(features, plans, device="cuda", **settings)
    here = train_heads(features, plans, **settings)
    for found, expected in zip(there, here, strict=True):
        scores = [[entry["score"] for entry in result.history] for result in (found, expected)]
        np.testing.assert_allclose(scores[0], scores[1], atol=5e-3)
        np.testing.assert_allclose(found.weight, expected.weight, atol=1e-2)
