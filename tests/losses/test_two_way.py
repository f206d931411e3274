"""What the two-way loss and its peers do beyond the equations: NaN, bounded memory, and sampled ranks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from tests.losses.test_loss_device import Watch, sized, watched
from torch import Tensor

from labelgap.core.errors import InputError
from labelgap.labels import LabelTable
from labelgap.losses import loss, ranking, two_way
from labelgap.losses.base import fused
from labelgap.losses.ranking import ramp, sampled_rank

TWO_WAY = ["two-way", "two-way-sample", "two-way-class"]
LABELS = torch.tensor([[1, 0, -1, 1], [0, 1, -1, -1], [-1, 0, 0, -1]])


def some_logits() -> Tensor:
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize(
    ("name", "count"), [("two-way-sample", 2), ("two-way-class", 3), ("softmax", 2), ("warp", 3), ("rml", 3)]
)
def test_the_sum_is_the_mean_times_the_lines_that_count(name: str, count: int) -> None:
    logits = some_logits()
    total, mean = (loss(name, reduction=kind)(logits, LABELS) for kind in ("sum", "mean"))
    torch.testing.assert_close(total, count * mean)


@pytest.mark.parametrize("name", TWO_WAY)
def test_labels_that_leave_nothing_to_contrast_are_refused(name: str) -> None:
    positives = LabelTable.from_dense([[1, -1], [-1, 1]])
    with pytest.raises(InputError, match='unknown="negative", --option unknown=negative'):
        loss(name).prepare(positives)
    loss(name, unknown="negative").prepare(positives)


@pytest.mark.parametrize("name", TWO_WAY)
def test_close_logits_cost_what_distant_ones_do(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With images and classes that have no positive, or no negative."""
    logits = 3 * torch.randn(7, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    labels = torch.randint(-1, 2, (7, 9), dtype=torch.int8, generator=torch.Generator().manual_seed(1))
    labels[2], labels[:, 4], labels[5] = 0, 1, -1
    for reduction in ("mean", "sum"):
        found = []
        for limit in (80.0, 0.0):
            monkeypatch.setattr(fused, "CLOSE", limit)
            leaf = logits.clone().requires_grad_()
            cost = loss(name, bias=0.3, reduction=reduction)(leaf, labels)
            found.append((cost.detach(), *torch.autograd.grad(cost, leaf)))
        torch.testing.assert_close(*found, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("formula", [False, True])
@pytest.mark.parametrize("name", [*TWO_WAY, "softmax"])
def test_nan_logits_cost_nan_in_their_head_only(name: str, formula: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A head that has diverged would seem perfect if it cost nothing."""
    if formula:
        monkeypatch.setattr(two_way, "is_fusible", lambda eps: False)
    logits = torch.stack([some_logits(), some_logits(), torch.full((3, 4), torch.nan, dtype=torch.float64)])
    logits[1, 0, 1] = torch.nan
    cost = loss(name, unknown="negative")(logits, LABELS)
    assert cost.isnan().tolist() == [False, True, True]
    assert all(loss(name, unknown="negative")(head, LABELS).isnan() for head in logits[1:])


MANY = 5000


@pytest.mark.parametrize(
    ("name", "options"),
    [("pr", {}), ("warp", {}), ("warp", {"rank": "sampled"}), ("rml", {}), ("rml", {"unknown": "ignore"})],
)
def test_pairs_are_never_laid_out(name: str, options: dict[str, Any]) -> None:
    random = torch.Generator().manual_seed(0)
    logits = torch.randn(2, MANY, generator=random).requires_grad_()
    labels = torch.randint(-1, 2, (2, MANY), generator=random)
    with Watch() as watch:
        torch.autograd.backward(loss(name, **options)(logits, labels))
    assert 0 < watch.largest <= 2 * (MANY + 1)


@pytest.mark.parametrize("name", ["warp", "rml"])
def test_float32_does_where_the_device_has_no_float64(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(6, 30, generator=torch.Generator().manual_seed(0)).requires_grad_()
    labels = (torch.rand(6, 30, generator=torch.Generator().manual_seed(1)) < 0.2).to(torch.int8)

    def slopes() -> Tensor:
        return torch.autograd.grad(loss(name)(logits, labels), logits)[0]

    exact = slopes()
    monkeypatch.setattr(ranking, "widest_float", lambda device: torch.float32)
    monkeypatch.setattr(torch.Tensor, "double", None)
    torch.testing.assert_close(slopes(), exact, atol=1e-5, rtol=1e-5)
    assert sampled(logits, labels).isfinite()


def test_a_pair_just_at_the_margin_costs_nothing_and_pulls_nowhere() -> None:
    logits = torch.tensor([[1.0, 0.0], [1.0, -1.0]]).requires_grad_()
    labels = torch.tensor([[1, 0], [1, 0]])
    for name, options in (("warp", {}), ("rml", {"weight": 0.0})):
        cost = loss(name, **options)(logits, labels)
        (gradient,) = torch.autograd.grad(cost, logits)
        assert cost.item() == 0 and not gradient.any()
    (gradient,) = torch.autograd.grad(ramp(logits, stop=-0.8, slope=0.9).sum(), logits)
    assert gradient.tolist() == [[0.0, -1.0], [0.0, pytest.approx(-0.1)]]


def chances(violating: int, negatives: int, classes: int) -> dict[int, float]:
    """How likely each ⌊(K − 1)/trials⌋ is, when negatives are drawn until one is within the margin."""
    share = violating / negatives
    found = dict.fromkeys(range(classes), 0.0)
    for trials in range(1, classes):
        found[(classes - 1) // trials] += share * (1 - share) ** (trials - 1)
    found[0] += (1 - share) ** (classes - 1)
    return found


@pytest.mark.parametrize(("violating", "negatives", "classes"), [(1, 9, 10), (3, 9, 20), (9, 9, 10), (40, 60, 80)])
def test_sampled_ranks_are_as_likely_as_by_drawing(violating: int, negatives: int, classes: int) -> None:
    torch.manual_seed(0)
    draws = 40_000
    count, available = torch.full((draws, 1), violating), torch.full((draws, 1), negatives)
    ranks = sampled_rank(count, available, classes).flatten().numpy()
    wanted = chances(violating, negatives, classes)
    assert sum(wanted.values()) == pytest.approx(1)
    for rank, chance in wanted.items():
        deviation = math.sqrt(chance * (1 - chance) / draws)
        assert abs(np.mean(ranks == rank) - chance) <= 5 * deviation + 1e-9, f"rank {rank}"


def sampled(logits: Tensor, labels: Tensor, **options: Any) -> Tensor:
    cost: Tensor = loss("warp", rank="sampled", **options)(logits, labels)
    return cost


def test_sampling_is_exact_where_all_negatives_or_none_violate_the_margin() -> None:
    labels = torch.tensor([[1, 0, 0, -1]])
    for logits in (torch.tensor([[9.0, 1.0, 2.0, 3.0]]), torch.tensor([[0.0, 1.0, 2.0, 3.0]])):
        torch.testing.assert_close(sampled(logits, labels), loss("warp")(logits, labels))
    assert sampled(torch.zeros(1, 1), torch.tensor([[1]])).item() == 0


def test_sampling_neither_waits_for_the_device_nor_loops() -> None:
    watches = [watched("warp", sized(*shape), {"rank": "sampled"}) for shape in ((4, 6), (32, 6), (4, 48))]
    assert not [problem for watch in watches for problem in watch.problems]
    assert len({watch.count for watch in watches}) == 1
