"""The steps of a GPU, there, imitated on the CPU, or by kernels: nothing waits, and heads end where the CPU's end."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from tests.losses.kernels.kernel_cases import DEVICE, REASON, kernels_for_any_size
from tests.losses.kernels.kernel_cases import METHODS as KERNEL_METHODS
from tests.losses.reference import reference_of
from tests.losses.test_loss_device import Watch
from tests.training.heads.reference_loop import BATCH, EPOCHS, some_features, some_labels, train_epochs, train_together

import labelgap as lg
from labelgap.losses import interactive, ranking
from labelgap.losses.base import selection, terms
from labelgap.losses.kernels import disabled
from labelgap.training.heads import HeadPlan, LinearEngine, grouping
from labelgap.training.heads.optimizers import StackedAdam

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),  # of thresholds and rounds
    pytest.mark.filterwarnings("ignore:(divide by zero|invalid value|overflow):RuntimeWarning"),  # of the interpreter
]
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device on this machine")

TABLE, VAL = some_labels(), some_labels(7, images=80, unknown=0.0)
FEATURES = some_features(TABLE)
OPTIONS: dict[str, dict[str, Any]] = {"em-apl": {"warmup": 2}, "ll-cp": {"delta_rel": 5.0}}
OPTIONS |= {name: {"expected_positives": 2.0} for name in ("epr", "role")}
METHODS = ("an", "em", "epr", "role", "ll-r", "ll-ct-abs", "ll-cp", "em-apl", "imcl", "l1r", "l2r", "asl", "two-way")
MOMENTUM: dict[str, Any] = {"optimizer": "sgd", "momentum": 0.9, "nesterov": True}


def plans_of(methods: Sequence[str], tables: Sequence[lg.LabelTable] = (TABLE,)) -> list[HeadPlan]:
    """All options of the methods' references, without ranks that are drawn in every step."""
    sets = [(name, options) for name in methods for options in reference_of(name).options]
    return [HeadPlan(*each, 1e-2, table) for each in sets if each[1].get("rank") != "sampled" for table in tables]


def engine_of(device: str, plans: Sequence[HeadPlan], **settings: Any) -> LinearEngine:
    """An engine on a device; "imitated" does on the CPU what it does on a GPU, without the capture."""
    kind, about = device if device == "cuda" else "cpu", {"epochs": EPOCHS, "batch_size": BATCH, **settings}
    engine = LinearEngine(FEATURES, plans, device=kind, dtype=torch.float64, **about)
    if device == "imitated":
        engine.host_syncs, engine.all_active, engine.graphed_step = False, False, engine.make_graphed_step()
        engine.graphed_step.disabled = "this is a CPU"
        engine.optimizer = StackedAdam(engine.optimizer.parameters, engine.active)
    return engine


@pytest.mark.parametrize("method", lg.methods())
def test_no_step_synchronizes(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (selection, terms, ranking, interactive):
        monkeypatch.setattr(module, "host_array", lambda values: None)
    engine = engine_of("imitated", plans_of([method], (TABLE, some_labels(1))))
    engine.train_epoch(2)
    with torch.no_grad(), Watch() as watch:
        engine.train_batch(torch.arange(BATCH))
    assert not watch.problems, watch.problems


@pytest.mark.parametrize(
    ("device", "methods"),
    [
        ("imitated", METHODS),
        pytest.param("cuda", lg.methods(), marks=GPU),
        *(pytest.param("cuda", [method], marks=GPU) for method in lg.methods()),
    ],
)
def test_steps_of_a_device_end_where_those_of_the_cpu_end(device: str, methods: Sequence[str]) -> None:
    found, expected = (engine_of(each, plans_of(methods)) for each in (device, "cpu"))
    for epoch in range(1, EPOCHS + 1):
        losses = [torch.from_numpy(engine.train_epoch(epoch)) for engine in (found, expected)]
        torch.testing.assert_close(*losses, rtol=0, atol=1e-8)
        assert [len(each) for each in found.end_epoch()] == [len(each) for each in expected.end_epoch()]
    for head, wanted in zip(found.heads, expected.heads, strict=True):
        torch.testing.assert_close(head.cpu(), wanted, rtol=0, atol=1e-8)
    step = found.graphed_step
    assert step is not None and (device == "imitated" or (step.disabled is None and step.graph is not None))


@pytest.mark.parametrize(
    ("device", "settings", "quantifier"),
    [
        ("cpu", {}, all),
        ("cpu", {"optimizer": "sgd"}, any),
        ("imitated", {}, all),
        pytest.param("cuda", {}, all, marks=GPU),
        pytest.param("cuda", MOMENTUM, any, marks=GPU),
    ],
)
def test_a_failing_head_changes_no_other(
    device: str, settings: dict[str, Any], quantifier: Callable[[Any], bool]
) -> None:
    engines = {}
    for bad in (1e-3, 1e308):
        plans = [HeadPlan(name, OPTIONS.get(name, {}), lr, TABLE) for name in METHODS for lr in (1e-2, bad)]
        engines[bad] = train_epochs(engine_of(device, plans, **settings), 1, EPOCHS)
    for good, both in zip(engines[1e-3].heads, engines[1e308].heads, strict=True):
        torch.testing.assert_close(good[::2], both[::2], rtol=0, atol=1e-10 if device == "cuda" else 0)
    assert engines[1e-3].failed == [None] * 2 * len(METHODS) and engines[1e308].failed[::2] == [None] * len(METHODS)
    failed = dict(zip(METHODS, engines[1e308].failed[1::2], strict=True))
    del failed["two-way"]  # where logits are no numbers it finds no pair, and costs nothing
    assert quantifier(epoch is not None for epoch in failed.values())


@pytest.mark.parametrize("settings", [{}, MOMENTUM])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=GPU)])
def test_a_resumed_engine_ends_with_the_same_numbers(device: str, settings: dict[str, Any]) -> None:
    plans = [HeadPlan(name, OPTIONS.get(name, {}), lr, TABLE) for name in METHODS for lr in (1e-2, 1e-3)]
    whole = train_epochs(engine_of(device, plans, **settings), 1, EPOCHS)
    stored, atol = io.BytesIO(), 1e-12 if device == "cuda" else 0
    torch.save(train_epochs(engine_of(device, plans, **settings), 1, 3).state_dict(), stored)
    stored.seek(0)
    resumed = engine_of(device, plans, **settings)
    resumed.load_state_dict(torch.load(stored, weights_only=True))
    train_epochs(resumed, 4, EPOCHS)
    for found, expected in zip(resumed.heads, whole.heads, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=atol)
    for mine, theirs in zip(resumed.groups, whole.groups, strict=True):
        states = [dict(group.loss_fn.state_dict()) for group in (mine, theirs)]
        torch.testing.assert_close(*states, rtol=0, atol=atol, equal_nan=True)


def test_losses_for_a_device_without_float64_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouping, "widest_float", lambda device: torch.float32)
    plans = plans_of(lg.methods())
    about: dict[str, Any] = {"epochs": EPOCHS, "device": torch.device("cpu"), "dtype": torch.float32, "batch_size": 8}
    losses = [group.loss_fn for group in grouping.group_plans(plans, [0] * len(plans), **about)]
    assert len(losses) < len(plans), "options are stacked"
    tensors = [(each.name, value.dtype) for each in losses for value in (*each.buffers(), *each.parameters())]
    assert not {name for name, dtype in tensors if dtype == torch.float64}, "they could not be moved there"


KERNELS = pytest.mark.skipif(REASON is not None, reason=str(REASON))

SINGLES = some_features(TABLE, torch.float32)


@pytest.fixture
def taken() -> Iterator[set[Any]]:
    with kernels_for_any_size() as known:
        yield known


def train_both(plans: list[HeadPlan], **settings: Any) -> list[LinearEngine]:
    """Train the same heads with kernels, and without them."""
    settings = {"device": DEVICE, "optimizer": "sgd", **settings}
    engine = train_together(plans, SINGLES, **settings)
    if DEVICE == "cuda":
        assert engine.graphed_step is not None and engine.graphed_step.disabled is None and engine.graphed_step.graph
    with disabled():
        return [engine, train_together(plans, SINGLES, **settings)]


def assert_equal(engines: list[LinearEngine]) -> None:
    for found, expected in zip(*(engine.heads for engine in engines), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=3e-5)


@KERNELS
@pytest.mark.parametrize("method", KERNEL_METHODS)
def test_a_single_head_ends_where_it_ends_without_kernels(method: str, taken: set[Any]) -> None:
    options = {"delta_rel": 5.0} if method.startswith("ll-") else {}
    engines = train_both([HeadPlan(method, options, 0.5, TABLE)])
    assert taken and engines[0].kernel.empty
    assert_equal(engines)


@KERNELS
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


@KERNELS
def test_a_head_that_fails_is_frozen_and_the_others_are_not(taken: set[Any]) -> None:
    plans = [HeadPlan(method, {}, lr, TABLE) for method in ("em", "asl") for lr in (0.5, 1e308)]
    engines = train_both(plans)
    assert taken and [engine.failed for engine in engines] == [engines[1].failed] * 2
    assert [failure is None for failure in engines[0].failed] == [True, False] * 2
    for found, expected in zip(*(engine.heads for engine in engines), strict=True):
        torch.testing.assert_close(found[::2], expected[::2], rtol=0, atol=3e-5)


@KERNELS
def test_all_images_at_once_end_where_they_end_without_kernels(taken: set[Any]) -> None:
    engines = train_both([HeadPlan("bce", {}, 1.0, TABLE, weight_decay=1e-2)], optimizer="newton")
    assert taken
    assert_equal(engines)
