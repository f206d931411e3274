"""A loss that is not a number: the step is not taken, the images are named, the last good state stays.

``test_divergence.py`` shows how the training of a network continues.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import labelgap as lg
from labelgap.core.errors import RunError
from labelgap.core.seeds import numpy_generator
from labelgap.losses import ElementwiseLoss
from labelgap.training.checkpoint import LAST
from labelgap.training.loop.divergence import NanGuard, are_finite, check_finite


class Breaks(ElementwiseLoss):
    """Costs nothing sensible from the second epoch on, in the third batch."""

    calls = 0

    def entries(self, logits: Tensor, labels: Tensor) -> Tensor:
        Breaks.calls += int(torch.is_grad_enabled())
        bad = self.epoch == 2 and Breaks.calls == 8
        return torch.nn.functional.softplus(logits) * (float("nan") if bad else 1.0)


def test_a_head_on_fixed_features_stops_with_the_step_and_its_images_named_and_the_last_good_state_kept(
    tmp_path: Path,
) -> None:
    data = lg.load("digits", train=44, val=20, test=20)
    settings: dict[str, Any] = {"epochs": 3, "batch_size": 8, "device": "cpu", "quiet": True, "trace": "off"}
    settings |= {"lr": 1e-3, "weight_decay": 0.0}
    Breaks.calls = -1  # the sixth step of an epoch has four images
    with pytest.raises(RunError, match="step 3 of epoch 2") as caught:
        lg.fit(data, Breaks(), backbone="small-cnn", protocol="linear", out=tmp_path / "run", **settings)
    order = numpy_generator(0, "order", 2).permutation(44)
    expected = [data.train.labels.images[row] for row in order[16:24]]
    assert f"(images {', '.join(expected[:3])} …)" in str(caught.value)
    assert "state is that of epoch 1" in str(caught.value) and "--clip" not in str(caught.value)
    assert (tmp_path / "run" / LAST).exists() and len(lg.open_run(tmp_path / "run").history) == 1


def test_a_step_that_spoils_the_weights_at_the_end_of_an_epoch_is_noticed_before_it_is_kept() -> None:
    check_finite("the weights", are_finite([torch.ones(2), torch.zeros(0)]), 1)
    with pytest.raises(RunError, match=r"after epoch 2.* good state is that of epoch 1"):
        check_finite("the weights", are_finite([torch.ones(2), torch.tensor([1.0, float("nan")])]), 2)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD])
def test_a_bad_step_changes_nothing_and_needs_no_look_by_the_host(kind: type[torch.optim.Optimizer]) -> None:
    weight = nn.Parameter(torch.ones(3))
    optimizer = kind([weight], lr=0.1, fused=True)  # type: ignore[call-arg]
    guard = NanGuard(["a", "b", "c"], 2, torch.device("cpu"))
    for step, loss in enumerate((1.0, float("inf"), 2.0), 1):
        guard.update(torch.tensor(loss), torch.tensor([1, 2]), step)
        weight.grad = torch.full((3,), loss)
        guard.guard(optimizer)
        optimizer.step()
        if step == 1:
            after_first = weight.detach().clone()
    assert torch.equal(weight, after_first), "from the bad step on nothing is taken"
    with pytest.raises(RunError, match=r"step 2 of epoch 5 \(images b, c\)"):
        guard.check(5)
