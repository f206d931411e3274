"""A loss that depends on the epoch warns, once, in a training loop that does not set it."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pytest
import torch
from tests.losses.batches import batch_of, forward, some_labels
from tests.losses.reference import Batch, reference_of

from labelgap.losses import Loss, loss, methods

IMAGES, CLASSES, EPOCHS = 12, 5, 8
DEPENDENT = {"curriculum", "em-apl", "gr", "ll-cp", "ll-cp-abs", "ll-ct", "ll-ct-abs", "ll-r", "ll-r-abs", "splc"}


def training_images() -> Batch:
    random = np.random.default_rng(0)
    labels = some_labels("partial", (IMAGES, CLASSES), random)
    return batch_of(labels, random.normal(scale=3, size=(IMAGES, CLASSES)))


def new_loss(name: str, batch: Batch | None) -> Loss:
    made = loss(name, **reference_of(name).plain)
    if batch is not None:
        made.prepare(batch.table, epochs=EPOCHS)
    return made


def steps(made: Loss, batch: Batch, count: int) -> list[warnings.WarningMessage]:
    """Train for so many steps, each with all images; return the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(count):
            logits = torch.from_numpy(batch.logits).requires_grad_()
            torch.autograd.backward(forward(made, batch, logits).sum())
            made.after_step()
    return caught


def test_what_depends_on_the_epoch_says_so() -> None:
    assert {name for name in methods() if loss(name, **reference_of(name).plain).epoch_dependent} == DEPENDENT
    assert not loss("splc", warmup=0).epoch_dependent and loss("splc", warmup=torch.tensor([0, 2])).epoch_dependent


@pytest.mark.parametrize("name", methods())
def test_the_cost_changes_with_the_epoch_where_it_is_said_to(name: str) -> None:
    batch = training_images()
    made, costs = new_loss(name, batch), set()
    for epoch in range(1, EPOCHS + 1):
        made.set_epoch(epoch)
        costs.add(forward(made, batch, torch.from_numpy(batch.logits)).item())
    by_rounds = "scores" in made.needs  # the epochs decide when labels are revised
    assert (len(costs) > 1) == (made.epoch_dependent and not by_rounds)


@pytest.mark.parametrize("name", methods())
def test_a_loop_without_set_epoch_is_warned_once_where_the_epoch_matters(name: str) -> None:
    batch = training_images()
    made = new_loss(name, batch)
    caught = steps(made, batch, 5)
    assert len(caught) == (name in DEPENDENT)
    for warning in caught:
        assert warning.category is UserWarning
        assert f"{name} depends on the epoch, which was never set: call loss_fn.set_epoch" in str(warning.message)
        assert warning.filename.endswith("batches.py"), "the line that calls the loss"
    made.set_epoch(1)
    assert not steps(made, batch, 5)


@pytest.mark.parametrize("name", methods())
def test_a_loop_with_set_epoch_is_not_warned(name: str) -> None:
    batch = training_images()
    made = new_loss(name, batch)
    for epoch in range(1, EPOCHS + 1):
        made.set_epoch(epoch)
        assert not steps(made, batch, 1)


@pytest.mark.parametrize("name", sorted(DEPENDENT))
def test_an_epoch_that_does_not_end_is_warned_of_once(name: str) -> None:
    batch = training_images()
    made = new_loss(name, batch)
    made.set_epoch(3)
    (warning,) = steps(made, batch, 5)
    assert "which has been 3 for more than 1.5 times the training images" in str(warning.message)
    assert not steps(made, batch, 5) and not steps(copy.deepcopy(made), batch, 5)


@pytest.mark.parametrize("name", ["gr", "ll-ct", "splc"])
def test_an_epoch_of_unknown_length_may_take_any_number_of_steps(name: str) -> None:
    made = new_loss(name, None)
    made.set_epoch(1)
    assert not steps(made, training_images(), 50)


def test_micro_batches_and_heads_are_the_images_of_one_epoch() -> None:
    batch = training_images()
    made = new_loss("ll-r", batch)
    labels = torch.from_numpy(batch.labels)
    for epoch in (1, 2):
        made.set_epoch(epoch)
        for rows in torch.split(torch.arange(IMAGES), 5):
            made(torch.zeros(7, len(rows), CLASSES, requires_grad=True), labels[rows]).sum().backward()


def test_what_does_not_train_neither_warns_nor_counts() -> None:
    batch = training_images()
    logits = torch.from_numpy(batch.logits)
    for made in (new_loss("ll-ct", batch), new_loss("ll-ct", None)):
        for _ in range(5):
            forward(made, batch, logits)
            with torch.no_grad():
                forward(made, batch, logits.clone().requires_grad_())
            forward(made.eval(), batch, logits.clone().requires_grad_())
            made.train()
        assert len(steps(made, batch, 1)) == 1


def test_a_loss_can_be_compiled_as_one_graph() -> None:
    batch = training_images()
    made = torch.compile(new_loss("ll-ct", batch), backend="eager", fullgraph=True)
    logits = torch.from_numpy(batch.logits).requires_grad_()
    torch.autograd.backward(made(logits, torch.from_numpy(batch.labels)))
