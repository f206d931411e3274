"""What Zhou et al. 2022 say beyond the equations that the references hold, and the penalties on weights."""

from __future__ import annotations

import math

import pytest
import torch
from tests.losses.batches import set_heads, some_batches
from torch import Tensor, nn

from labelgap.labels import LabelTable
from labelgap.losses import loss

TABLE = LabelTable.from_dense([[1, -1, 0]])


def test_a_focal_loss_without_focus_is_assume_negative_by_halves() -> None:
    for batch in some_batches():
        logits, labels = torch.from_numpy(batch.logits), torch.from_numpy(batch.labels)
        found = loss("focal", gamma=0.0, alpha=0.5)(logits, labels)
        torch.testing.assert_close(found, loss("an")(logits, labels) / 2)


def test_the_gradient_of_em_is_the_one_that_the_paper_prints() -> None:
    g = torch.linspace(-12, 12, 49, dtype=torch.float64).reshape(7, 7).requires_grad_()
    unknown, present = torch.full((7, 7), -1), torch.ones(7, 7)
    (on_unknown,) = torch.autograd.grad(loss("em", alpha=0.2, reduction="sum")(g, unknown), g)
    torch.testing.assert_close(on_unknown, 0.2 * g * torch.exp(-g) / (1 + torch.exp(-g)) ** 2)
    (on_present,) = torch.autograd.grad(loss("em", alpha=0.2, reduction="sum")(g, present), g)
    torch.testing.assert_close(on_present, torch.sigmoid(g) - 1)


def test_em_may_cost_less_than_nothing_and_entmin_never_does() -> None:
    logits, labels = torch.tensor([[0.0, 3.0]]), torch.tensor([[-1, -1]])
    assert loss("em")(logits, labels) < 0 < loss("entmin")(logits, labels)


@pytest.mark.parametrize("name", ["em", "entmin", "dw", "n-ls"])
def test_a_known_absent_keeps_its_full_weight(name: str) -> None:
    costs = loss(name, reduction="none")(torch.zeros(1, 2), torch.tensor([[0, -1]]))
    torch.testing.assert_close(costs[0, 0], torch.tensor(2.0).log())


def sizes(values: Tensor, name: str) -> float:
    """Σ|θ| or Σθ², number by number."""
    return math.fsum(abs(value) if name == "l1r" else value * value for value in values.double().flatten().tolist())


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2), nn.LayerNorm(2)).double()


@pytest.mark.parametrize("name", ["l1r", "l2r"])
def test_the_penalty_is_the_weight_times_the_size_of_all_parameters(name: str) -> None:
    made, parameters = loss(name, weight=1e-3), list(network().parameters())
    assert made.needs == {"penalty"}
    penalty = made.penalty(iter(parameters))
    assert isinstance(penalty, Tensor) and penalty.shape == ()
    assert penalty.item() == pytest.approx(1e-3 * sum(sizes(values.detach(), name) for values in parameters), rel=1e-12)
    for values, slope in zip(parameters, torch.autograd.grad(penalty, parameters), strict=True):
        torch.testing.assert_close(slope, 1e-3 * (values.sign() if name == "l1r" else 2 * values).detach())


@pytest.mark.parametrize("name", ["l1r", "l2r"])
@pytest.mark.parametrize("weight", [0.5, torch.tensor([[0.0, 0.1, 0.2], [1.0, 2.0, 3.0]], dtype=torch.float64)])
def test_every_head_pays_for_its_own_slice_of_stacked_parameters(name: str, weight: float | Tensor) -> None:
    made = loss(name, weight=weight)
    set_heads(made, (2, 3))
    made.prepare(TABLE)
    random = torch.Generator().manual_seed(0)
    parameters = [torch.randn(2, 3, *shape, generator=random) for shape in ((4, 5), (1, 5), ())]
    penalty = made.penalty(parameters)
    assert isinstance(penalty, Tensor) and penalty.shape == (2, 3) and penalty.dtype == torch.float32
    weights = torch.as_tensor(weight).expand(2, 3)
    for head in ((row, column) for row in range(2) for column in range(3)):
        alone = sum(sizes(values[head], name) for values in parameters)
        assert penalty[head].item() == pytest.approx(weights[head].item() * alone, rel=1e-6)


def test_heads_of_one_weight_are_penalised_as_each_would_be_alone() -> None:
    """The sum over heads of loss and penalty has the gradient of each head's own sum, whatever the number of heads."""
    made = loss("l2r", weight=0.3)
    set_heads(made, (4,))
    made.prepare(TABLE)
    weights = torch.randn(4, 2, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    losses = made(weights, torch.tensor([[1, -1, 0], [-1, -1, 1]])) + made.penalty([weights])
    assert losses.shape == (4,)
    (together,) = torch.autograd.grad(losses.sum(), weights)
    alone = loss("l2r", weight=0.3)
    own = weights[2].detach().requires_grad_()
    total = alone(own, torch.tensor([[1, -1, 0], [-1, -1, 1]])) + alone.penalty([own])
    (gradient,) = torch.autograd.grad(total, own)
    torch.testing.assert_close(together[2], gradient)


def test_a_penalty_of_half_precision_weights_does_not_overflow() -> None:
    penalty = loss("l2r", weight=1e-6).penalty([torch.full((100,), 300.0, dtype=torch.float16)])
    assert isinstance(penalty, Tensor)
    assert penalty.item() == pytest.approx(9.0) and penalty.dtype == torch.float32


def test_no_parameters_and_other_methods_cost_nothing() -> None:
    assert loss("l1r").penalty([]) == 0.0
    assert loss("an").penalty([torch.ones(3)]) == 0.0
