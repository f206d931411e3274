"""A loss that depends on the epoch warns, once, in a training loop that does not set it."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pytest
import torch
from tests.losses.batches import batch_of, forward, some_labels
from tests.losses.reference import reference_of

from labelgap.losses import Loss, loss, methods

IMAGES, CLASSES, EPOCHS = 12, 5, 8
DEPENDENT = {"curriculum", "em-apl", "gr", "ll-cp", "ll-cp-abs", "ll-ct", "ll-ct-abs", "ll-r", "ll-r-abs", "splc"}
RANDOM = np.random.default_rng(0)
BATCH = batch_of(some_labels("partial", (IMAGES, CLASSES), RANDOM), RANDOM.normal(scale=3, size=(IMAGES, CLASSES)))


def new_loss(name: str, *, prepare: bool = True) -> Loss:
    made = loss(name, **reference_of(name).plain)
    if prepare:
        made.prepare(BATCH.table, epochs=EPOCHS)
    return made


def steps(made: Loss, count: int) -> list[warnings.WarningMessage]:
    """Train for so many steps, each with all images; return the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(count):
            torch.autograd.backward(forward(made, BATCH, torch.from_numpy(BATCH.logits).requires_grad_()).sum())
            made.after_step()
    return caught


@pytest.mark.parametrize("name", methods())
def test_a_loop_is_warned_once_where_the_epoch_matters_and_is_not_set(name: str) -> None:
    made, costs = new_loss(name), set()
    assert made.epoch_dependent == (name in DEPENDENT)
    caught = steps(made, 5)
    assert len(caught) == made.epoch_dependent
    for warning in caught:
        assert warning.category is UserWarning and warning.filename.endswith("batches.py"), "the line of the call"
    made.set_epoch(1)
    assert not steps(made, 5)
    made = new_loss(name)
    for epoch in range(1, EPOCHS + 1):
        made.set_epoch(epoch)
        costs.add(forward(made, BATCH, torch.from_numpy(BATCH.logits)).item())
    for epoch in range(1, EPOCHS + 1):
        made.set_epoch(epoch)
        assert not steps(made, 1)
    by_rounds = "scores" in made.needs  # the epochs decide when labels are revised
    assert (len(costs) > 1) == (made.epoch_dependent and not by_rounds)
    made.set_epoch(3)
    assert len(steps(made, 5)) == made.epoch_dependent, "an epoch that does not end"
    assert not steps(made, 5) and not steps(copy.deepcopy(made), 5)


@pytest.mark.parametrize("name", ["gr", "ll-ct", "splc"])
def test_an_epoch_of_unknown_length_may_take_any_number_of_steps(name: str) -> None:
    made = new_loss(name, prepare=False)
    made.set_epoch(1)
    assert not steps(made, 20)
    assert not loss("splc", warmup=0).epoch_dependent and loss("splc", warmup=torch.tensor([0, 2])).epoch_dependent


def test_micro_batches_and_heads_are_the_images_of_one_epoch() -> None:
    made, labels = new_loss("ll-r"), torch.from_numpy(BATCH.labels)
    for epoch in (1, 2):
        made.set_epoch(epoch)
        for rows in torch.split(torch.arange(IMAGES), 5):
            made(torch.zeros(7, len(rows), CLASSES, requires_grad=True), labels[rows]).sum().backward()


def test_what_does_not_train_neither_warns_nor_counts() -> None:
    logits = torch.from_numpy(BATCH.logits)
    for made in (new_loss("ll-ct"), new_loss("ll-ct", prepare=False)):
        for _ in range(5):
            forward(made, BATCH, logits)
            with torch.no_grad():
                forward(made, BATCH, logits.clone().requires_grad_())
            forward(made.eval(), BATCH, logits.clone().requires_grad_())
            made.train()
        assert len(steps(made, 1)) == 1
