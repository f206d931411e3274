"""The steps of a GPU, run on the CPU: nothing synchronizes, and heads end where the CPU's end."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.losses.reference import reference_of
from tests.losses.test_loss_device import Watch
from tests.training.heads.reference_loop import BATCH, EPOCHS, some_features, some_labels

import labelgap as lg
from labelgap.losses.base import selection, terms
from labelgap.training.heads import HeadPlan, LinearEngine, grouping
from labelgap.training.heads.optimizers import StackedAdam

pytestmark = pytest.mark.usefixtures("quiet")

TABLE = some_labels()
FEATURES = some_features(TABLE)
OPTIONS: dict[str, dict[str, Any]] = {
    "epr": {"expected_positives": 2.0},
    "role": {"expected_positives": 2.0},
    "em-apl": {"warmup": 2},
}
METHODS = ("an", "em", "epr", "role", "ll-r", "ll-ct-abs", "ll-cp", "em-apl", "imcl", "l1r", "asl", "two-way")


def as_on_a_device(plans: list[HeadPlan]) -> LinearEngine:
    """An engine that does on the CPU what it does on a GPU, without the capture."""
    engine = LinearEngine(FEATURES, plans, epochs=EPOCHS, batch_size=BATCH, dtype=torch.float64)
    engine.host_syncs, engine.all_active, engine.graphed_step = False, False, engine.make_graphed_step()
    engine.graphed_step.disabled = "this is a CPU"
    engine.optimizer = StackedAdam(engine.optimizer.parameters, engine.active)
    return engine


def train_all(engine: LinearEngine) -> LinearEngine:
    for epoch in range(1, EPOCHS + 1):
        engine.train_epoch(epoch)
        engine.end_epoch()
    return engine


@pytest.mark.parametrize("method", lg.methods())
def test_no_step_synchronizes(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (selection, terms):
        monkeypatch.setattr(module, "host_array", lambda values: None)
    tables = (TABLE, some_labels(1))
    plans = [HeadPlan(method, options, 1e-2, table) for options in reference_of(method).options for table in tables]
    engine = as_on_a_device(plans)
    engine.train_epoch(2)
    rows = torch.arange(BATCH)
    with torch.no_grad(), Watch() as watch:
        engine.train_batch(rows)
    assert not watch.problems, watch.problems


def test_steps_of_a_device_end_where_those_of_the_cpu_end() -> None:
    plans = [HeadPlan(name, OPTIONS.get(name, {}), lr, TABLE) for name in METHODS for lr in (1e-2, 1e-3)]
    plain = LinearEngine(FEATURES, plans, epochs=EPOCHS, batch_size=BATCH, dtype=torch.float64)
    for found, expected in zip(train_all(as_on_a_device(plans)).heads, train_all(plain).heads, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


def test_a_failing_head_of_a_device_does_not_change_the_others() -> None:
    engines = {}
    for bad in (1e-3, 1e308):
        plans = [HeadPlan(name, OPTIONS.get(name, {}), lr, TABLE) for name in METHODS for lr in (1e-2, bad)]
        engines[bad] = train_all(as_on_a_device(plans))
    for good, both in zip(engines[1e-3].heads, engines[1e308].heads, strict=True):
        assert torch.equal(good[::2], both[::2])
    assert engines[1e308].failed[::2] == [None] * len(METHODS)
    failed = dict(zip(METHODS, engines[1e308].failed[1::2], strict=True))
    del failed["two-way"]  # where logits are no numbers it finds no pair, and costs nothing
    assert None not in failed.values()


def test_a_device_sums_the_losses_that_the_cpu_sums() -> None:
    plans = [HeadPlan(name, OPTIONS.get(name, {}), 1e-2, TABLE) for name in METHODS]
    plain = LinearEngine(FEATURES, plans, epochs=EPOCHS, batch_size=BATCH, dtype=torch.float64)
    losses = [engine.train_epoch(1) for engine in (as_on_a_device(plans), plain)]
    torch.testing.assert_close(*map(torch.from_numpy, losses), rtol=0, atol=1e-9)


def moved(module: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [*module.named_buffers(), *module.named_parameters()]


def test_losses_for_a_device_without_float64_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouping, "widest_float", lambda device: torch.float32)
    plans = [HeadPlan(name, each, 1e-2, TABLE) for name in lg.methods() for each in reference_of(name).options]
    about: dict[str, Any] = {"epochs": EPOCHS, "device": torch.device("cpu"), "dtype": torch.float32, "batch_size": 8}
    losses = [group.loss_fn for group in grouping.group_plans(plans, [0] * len(plans), **about)]
    assert len(losses) < len(plans), "options are stacked"
    wide = {f"{each.name}.{name}" for each in losses for name, value in moved(each) if value.dtype == torch.float64}
    assert not wide, "they could not be moved there"
