"""What Cole et al. 2021 and Zhou et al. 2022 say beyond the equations that the references hold."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from tests.losses.batches import set_heads, some_batches
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


def test_expected_positives_may_be_replaced_move_with_the_module_and_are_no_more_than_the_classes() -> None:
    made = expecting(expected_positives=1.5)
    assert made.expected_positives == 1.5
    made.expected_positives = torch.tensor([1.0, 2.0])
    moved = made.to("meta").expected_positives
    assert isinstance(moved, Tensor) and moved.device.type == "meta"
    made.expected_positives = 3
    assert made.expected_positives == 3.0
    with pytest.raises(InputError, match="between 0 and 2"):
        made.prepare(LabelTable.from_dense([[1, -1]]))


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


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("an-ls", {"smoothing": 0.0}), ("an", {})),
        (("bce-ls", {"smoothing": 0.0}), ("iu", {})),
        (("wan", {}), ("wan", {"weight": 1 / 19})),
        (("dw", {"weight": 1 / 19}), ("wan", {})),
        (("n-ls", {"smoothing": 0.0}), ("an", {})),
        (("asl", {"gamma_neg": 0.0, "margin": 0.0, "eps": 1e-5}), ("an", {"eps": 1e-5})),
        (("csl", {"mode": "negative", "gamma_neg": 0.0, "gamma_unknown": 0.0}), ("an", {})),
        (("csl", {"mode": "ignore"}), ("csl", {"likelihood_topk": 20})),
        (("csl", {"mode": "ignore"}), ("csl", {"likelihood_topk": 0, "priors": [1.0] * 20})),
        (("csl", {}), ("csl", {"priors": [0.5] * 20})),
    ],
)
def test_methods_are_each_other_where_they_should_be(one: Any, other: Any) -> None:
    for batch in some_batches():
        logits, labels = torch.from_numpy(batch.logits), torch.from_numpy(batch.labels)
        losses = [loss(name, **options)(logits, labels) for name, options in (one, other)]
        torch.testing.assert_close(*losses)
