"""What losses of single entries do beyond the equations that the references hold: penalties, priors, schedules."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.losses.batches import set_heads, some_batches
from tests.losses.reference import reference_of
from tests.losses.test_loss_values import check
from torch import Tensor

from labelgap.core.errors import InputError
from labelgap.labels import LabelTable
from labelgap.losses import loss
from labelgap.losses.role import ExpectedPositivesLoss


def expecting(**options: Any) -> ExpectedPositivesLoss:
    made = loss("epr", **options)
    assert isinstance(made, ExpectedPositivesLoss)
    return made


def test_epr_without_a_number_says_how_to_give_it_at_its_first_use() -> None:
    made, table = expecting(), LabelTable.from_dense([[1, -1, 0, -1]])
    with pytest.raises(InputError, match=r"expected_positives=… *, or"):
        made.prepare(table)
    with pytest.raises(InputError, match=r"loss_fn\.expected_positives"):
        made(torch.zeros(1, 4), table.batch([0]))
    made.expected_positives = 2.0
    made.prepare(table)
    assert made(torch.zeros(1, 4), table.batch([0])).item() == pytest.approx(np.log(2) / 2)


def sizes(values: Tensor, name: str) -> float:
    """Σ|θ| or Σθ², number by number."""
    return math.fsum(abs(value) if name == "l1r" else value * value for value in values.double().flatten().tolist())


@pytest.mark.parametrize("name", ["l1r", "l2r"])
@pytest.mark.parametrize("weight", [0.5, torch.tensor([[0.0, 0.1, 0.2], [1.0, 2.0, 3.0]], dtype=torch.float64)])
def test_every_head_pays_for_its_own_slice_of_stacked_parameters(name: str, weight: float | Tensor) -> None:
    made = loss(name, weight=weight)
    set_heads(made, (2, 3))
    made.prepare(LabelTable.from_dense([[1, -1, 0]]))
    random = torch.Generator().manual_seed(0)
    parameters = [torch.randn(2, 3, *shape, generator=random) for shape in ((4, 5), (1, 5), ())]
    penalty = made.penalty(parameters)
    assert isinstance(penalty, Tensor) and penalty.shape == (2, 3) and penalty.dtype == torch.float32
    weights = torch.as_tensor(weight).expand(2, 3)
    for head in ((row, column) for row in range(2) for column in range(3)):
        alone = sum(sizes(values[head], name) for values in parameters)
        assert penalty[head].item() == pytest.approx(weights[head].item() * alone, rel=1e-6)


def test_a_penalty_of_half_precision_weights_does_not_overflow_and_no_parameters_cost_nothing() -> None:
    penalty = loss("l2r", weight=1e-6).penalty([torch.full((100,), 300.0, dtype=torch.float16)])
    assert isinstance(penalty, Tensor)
    assert penalty.item() == pytest.approx(9.0) and penalty.dtype == torch.float32
    assert loss("l1r").penalty([]) == loss("an").penalty([torch.ones(3)]) == 0.0


PRIORS = np.linspace(0.05, 1.0, 20).round(2).tolist()


@pytest.mark.parametrize(
    "options",
    [
        {"priors": PRIORS},
        {"priors": PRIORS, "prior_threshold": 0.9, "likelihood_topk": 1, "eps": 1e-5},
        {"priors": PRIORS, "prior_threshold": 0.0, "reduction": "none"},
        {"priors": PRIORS, "mode": "negative"},
    ],
)
def test_csl_leaves_out_unknown_labels_of_frequent_classes(options: dict[str, Any]) -> None:
    for batch in some_batches():
        check("csl", reference_of("csl"), batch, options, torch.float64)
        check("csl", reference_of("csl"), batch, options, torch.float16)


def test_priors_are_one_for_every_class() -> None:
    with pytest.raises(InputError, match=r"20 .* 3 "):
        loss("csl", priors=PRIORS)(torch.zeros(1, 3), torch.tensor([[1, 0, -1]]))


def test_a_class_exactly_at_the_threshold_is_not_frequent() -> None:
    made = loss("csl", priors=[0.3, 0.31], prior_threshold=0.3, likelihood_topk=0)
    for dtype in (torch.float16, torch.float32, torch.float64):
        assert made.modified(torch.zeros(1, 2, dtype=dtype), torch.tensor([[-1, -1]])).tolist() == [[False, True]]
    assert torch.float64 not in {buffer.dtype for buffer in made.buffers()}, "Apple's GPUs have no float64"


@pytest.mark.parametrize("epochs", [1, 25])
def test_prepare_tells_the_number_of_epochs(epochs: int) -> None:
    for epoch in {1, max(epochs // 2, 1), epochs}:
        for batch in some_batches(epoch):
            for options in reference_of("gr").options:
                check("gr", reference_of("gr"), replace(batch, epochs=epochs), dict(options), torch.float64)


def test_a_schedule_that_ended_early_is_a_warning_that_names_prepare() -> None:
    made = loss("gr")
    made.set_epoch(10)
    with pytest.warns(UserWarning, match=r"10 .*prepare\(table, epochs=…\)"):
        made.set_epoch(11)
    made.prepare(LabelTable.from_dense([[1, -1]]), epochs=25)
    made.set_epoch(25)
    made.set_epoch(30)
