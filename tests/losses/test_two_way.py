"""What the two-way loss and the softmax do beyond the equations that the references hold."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from labelgap.core.errors import InputError
from labelgap.labels import LabelTable
from labelgap.losses import loss, two_way
from labelgap.losses.base import fused

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
def test_logits_that_are_not_numbers_cost_nan_in_their_head_only(
    name: str, formula: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head that has diverged would seem perfect if it cost nothing."""
    if formula:
        monkeypatch.setattr(two_way, "is_fusible", lambda eps: False)
    logits = torch.stack([some_logits(), some_logits(), torch.full((3, 4), torch.nan, dtype=torch.float64)])
    logits[1, 0, 1] = torch.nan
    cost = loss(name, unknown="negative")(logits, LABELS)
    assert cost.isnan().tolist() == [False, True, True]
    assert all(loss(name, unknown="negative")(head, LABELS).isnan() for head in logits[1:])
