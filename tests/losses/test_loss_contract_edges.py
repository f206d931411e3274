"""What a loss says of itself and refuses: options in its repr, values that are no labels."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from labelgap.core.errors import InputError
from labelgap.labels import LabelTable
from labelgap.losses import loss

LABELS = torch.tensor([[1, 0, -1], [-1, 1, 0]])


def test_the_repr_shows_the_options() -> None:
    assert repr(loss("ll-ct", delta_rel=0.3)).startswith("LargeLossCorrection(ll-ct, delta_rel=0.3, ")


@pytest.mark.parametrize("value", [0.5, 2.0, 255.0])
def test_a_value_that_is_no_label_is_refused_in_the_first_batch(value: float) -> None:
    wrong = LABELS.float()
    wrong[1, 2] = value
    with pytest.raises(InputError, match=f"{value:g}"):
        loss("an")(torch.zeros(2, 3), wrong)
    loss("an")(torch.zeros(2, 3), torch.tensor([[1.0, 0.0, float("nan")], [-1.0, 1.0, 0.0]]))


def test_transforms_of_torch_func_are_refused_in_words() -> None:
    made = loss("an")
    with pytest.raises(InputError, match=r"torch\.func"):
        torch.func.vmap(torch.func.grad(lambda row: made(row, LABELS[:1])))(torch.zeros(4, 1, 3))


def test_role_takes_the_expected_positives_of_fully_known_images() -> None:
    made = loss("role")
    made.prepare(LabelTable.from_dense(np.array([[1, 0, 1], [1, 0, 0]])), epochs=2)
    assert made.expected_positives == 1.5
    with pytest.raises(InputError, match="expected_positives"):
        loss("role").prepare(LabelTable.from_dense(LABELS.numpy()), epochs=2)
