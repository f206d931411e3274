"""What Cole et al. 2021 say beyond the equations that the references hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.losses.batches import some_batches
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from labelgap.core.errors import InputError
from labelgap.labels import LabelTable
from labelgap.losses import loss
from labelgap.losses.ranking import pairwise_ranking
from labelgap.losses.role import ExpectedPositivesLoss


def test_a_known_absent_keeps_its_full_weight_in_wan() -> None:
    logits, labels = torch.zeros(1, 5), torch.tensor([[0, -1, -1, -1, 1]])
    costs = loss("wan", reduction="none")(logits, labels)
    torch.testing.assert_close(costs / np.log(2), torch.tensor([[1, 0.25, 0.25, 0.25, 1]]))


def test_the_weight_of_wan_is_one_when_there_is_a_single_class() -> None:
    assert loss("wan")(torch.zeros(2, 1), torch.tensor([[-1], [-1]])).item() == pytest.approx(np.log(2))


class Largest(TorchDispatchMode):
    """Remembers the size of the largest tensor that is made."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for item in result if isinstance(result, tuple | list) else [result]:
            self.size = max(self.size, item.numel() if isinstance(item, Tensor) else 0)
        return result


def test_pairs_are_never_laid_out() -> None:
    logits = torch.randn(4, 5000, requires_grad=True)
    labels = torch.randint(-1, 2, (4, 5000))
    largest = Largest()
    with largest:
        torch.autograd.backward(pairwise_ranking(logits, labels).sum())
    assert largest.size == logits.numel()


def test_a_row_without_a_pair_costs_nothing_in_pairwise_ranking() -> None:
    labels = torch.tensor([[1, 1, 1], [-1, 0, -1], [1, -1, -1]])
    costs = pairwise_ranking(torch.randn(3, 3), labels, unknown="ignore")
    assert not costs.any()


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


def test_expected_positives_may_be_replaced_and_move_with_the_module() -> None:
    made = expecting(expected_positives=1.5)
    assert made.expected_positives == 1.5
    made.expected_positives = torch.tensor([1.0, 2.0])
    moved = made.to("meta").expected_positives
    assert isinstance(moved, Tensor) and moved.device.type == "meta"
    made.expected_positives = 3
    assert made.expected_positives == 3.0


@pytest.mark.parametrize("value", [0, -1, float("nan"), "many"])
def test_expected_positives_must_be_above_zero(value: Any) -> None:
    with pytest.raises(InputError, match="expected_positives"):
        expecting(expected_positives=value)
    with pytest.raises(InputError, match="expected_positives"):
        expecting().expected_positives = value


def test_more_positives_than_classes_cannot_be_expected() -> None:
    with pytest.raises(InputError, match="between 0 and 2"):
        expecting(expected_positives=3).prepare(LabelTable.from_dense([[1, -1]]))


def test_the_matrix_of_epr_has_the_loss_as_its_mean() -> None:
    batch = next(some_batches())
    logits, labels = torch.from_numpy(batch.logits), torch.from_numpy(batch.labels)
    matrix, mean = (expecting(expected_positives=2.0, reduction=kind)(logits, labels) for kind in ("none", "mean"))
    torch.testing.assert_close(matrix.mean(), mean)
