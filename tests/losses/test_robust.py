"""The schedules of the generalised robust loss, which the references hold for ten epochs only."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from tests.losses.batches import some_batches
from tests.losses.reference import reference_of
from tests.losses.test_loss_values import check

from labelgap.labels import LabelTable
from labelgap.losses import Loss, loss

TABLE = LabelTable.from_dense([[1, -1, 0]])


def of_an_even_chance(made: Loss, epochs: int, epoch: int) -> float:
    """The cost of an unknown label with the logit 0."""
    made.prepare(TABLE, epochs=epochs)
    made.set_epoch(epoch)
    return float(made(torch.zeros(1, 1, dtype=torch.float64), torch.tensor([[-1]])))


@pytest.mark.parametrize("epochs", [1, 4, 25])
def test_prepare_tells_the_number_of_epochs(epochs: int) -> None:
    for epoch in {1, max(epochs // 2, 1), epochs}:
        for batch in some_batches(epoch):
            for options in reference_of("gr").options:
                check("gr", reference_of("gr"), replace(batch, epochs=epochs), dict(options), torch.float64)


def test_the_first_and_the_last_epoch_by_hand() -> None:
    present, absent = (1 - 0.5**0.01) / 0.01, 0.5
    for epoch, w, center, width in ((1, 0.0, 0.575, 1.625), (4, 1.5, 0.8, 0.5)):
        k = 1 / (1 + math.exp(2 - w * 0.5))
        v = math.exp(-(((0.5 - center) / width) ** 2) / 2)
        found = of_an_even_chance(loss("gr"), 4, epoch)
        assert found == pytest.approx(v * (k * present + (1 - k) * absent), rel=1e-12)


def test_a_schedule_that_ended_early_is_a_warning_that_names_prepare() -> None:
    made = loss("gr")
    made.set_epoch(10)
    with pytest.warns(UserWarning, match=r"after the 10 epochs that it assumes: prepare\(table, epochs=…\)"):
        made.set_epoch(11)
    made.prepare(LabelTable.from_dense([[1, -1]]), epochs=25)
    made.set_epoch(25)
    made.set_epoch(30)
