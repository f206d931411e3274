"""The contract between a loss and a training loop: every hook, a loop that calls them, one that sets no epoch."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from tests.losses.batches import batch_of, forward, scores_of, some_labels
from tests.losses.reference import reference_of
from torch import Tensor, nn

from labelgap.core.errors import InputError, UnknownNameError
from labelgap.labels import LabelTable
from labelgap.losses import Loss, loss, methods
from labelgap.losses.large_loss import PermanentCorrection

LABELS = LabelTable.from_dense(
    [[1, -1, 0], [-1, -1, 1], [1, 1, -1], [-1, 0, -1], [1, -1, -1], [0, -1, -1]], classes=["cat", "dog", "owl"]
)
FEATURES = torch.tensor([[1.0, 0, 2, 1], [0, 1, 1, 0], [2, 1, 0, 0], [0, 0, 1, 1], [1, 1, 1, 1], [0, 2, 0, 1]])


def second_epoch() -> PermanentCorrection:
    """What corrects the likeliest unknown label of a batch."""
    made = loss("ll-cp")
    assert isinstance(made, PermanentCorrection)
    made.prepare(LABELS)
    made.set_epoch(2)
    return made


def arguments(*rows: int) -> tuple[Tensor, ...]:
    """A batch of two images, in which the last class of the first has the highest logit."""
    index, logits = torch.tensor(rows), torch.tensor([[0.0, 1.0, 2.0], [0.5, 0.1, 0.2]], requires_grad=True)
    return logits, LABELS.batch(index), index, FEATURES[index]


def test_forward_changes_no_state_and_after_step_commits() -> None:
    made, given = second_epoch(), arguments(0, 3)
    before = {key: value.clone() for key, value in made.state_dict().items()}
    cost = made(*given)
    assert torch.equal(cost, made(*given)) and made.epoch == 2
    assert all(torch.equal(value, before[key]) for key, value in made.state_dict().items())
    torch.autograd.backward(cost)
    made.after_step()
    assert made.corrected_in.nonzero().tolist() == [[0, 1]]


def test_without_a_backward_pass_the_last_forward_counts_unless_the_step_is_skipped() -> None:
    made = second_epoch()
    made(*arguments(0, 3)), made(*arguments(1, 4))
    made.skip_step()
    with torch.no_grad():
        made(*arguments(1, 4))
    made.after_step()
    assert not made.corrected_in.any()
    made(*arguments(0, 3)), made(*arguments(1, 4))
    made.after_step()
    assert made.corrected_in.nonzero()[:, 0].tolist() == [1]


def test_after_step_commits_every_batch_that_was_accumulated() -> None:
    made = second_epoch()
    for rows in ((0, 3), (1, 4)):
        torch.autograd.backward(made(*arguments(*rows)))
    assert not made.corrected_in.any()
    made.after_step()
    assert made.corrected_in.nonzero()[:, 0].tolist() == [0, 1]


@pytest.mark.parametrize("name", methods())
def test_the_same_loop_trains_every_method(name: str) -> None:
    """The loop of ``labelgap.losses.base.loss``, in miniature."""
    weights, made = nn.Parameter(torch.zeros(4, 3)), loss(name, **reference_of(name).plain)
    assert made.needs <= {"index", "features", "scores", "penalty"}
    made.initialize_from(LABELS)
    made.prepare(LABELS, epochs=2, seed=3)
    optimizer = torch.optim.SGD([{"params": [weights]}, *made.parameter_groups(0.1)], lr=0.1)

    for epoch in (1, 2):
        made.set_epoch(epoch)
        for index in torch.tensor([[5, 0, 2], [4, 1, 3]]):
            cost = made(FEATURES[index] @ weights, LABELS.batch(index), index=index, features=FEATURES[index])
            optimizer.zero_grad()
            torch.autograd.backward(cost + made.penalty([weights]))
            optimizer.step()
            made.after_step()
        made.end_epoch(scores_of((FEATURES @ weights).detach(), range(6)) if "scores" in made.needs else None)
    assert weights.isfinite().all() and weights.detach().any()


@pytest.mark.parametrize("name", methods())
def test_the_epoch_is_in_the_state_and_states_without_it_load(name: str) -> None:
    """What the loss costs in that epoch comes with it; older versions stored no epoch."""
    made, other = (loss(name, **reference_of(name).plain) for _ in range(2))
    for one in (made, other):
        one.prepare(LABELS, epochs=10)
    made.set_epoch(4)
    state = made.state_dict()
    other.load_state_dict(state)
    assert (other.epoch, int(other.epoch_tensor)) == (4, 4)
    index, logits = torch.arange(6), torch.linspace(-3, 3, 18).view(6, 3)
    mine, theirs = (one(logits, LABELS.batch(index), index=index, features=FEATURES) for one in (made, other))
    assert torch.equal(mine, theirs)
    other.load_state_dict({key: value for key, value in state.items() if key != "epoch_tensor"})
    assert (other.epoch, int(other.epoch_tensor)) == (4, 4) and "epoch_tensor" in state
    holder = nn.ModuleDict({"loss": made})
    holder.load_state_dict({f"loss.{key}": value for key, value in state.items() if key != "epoch_tensor"})
    with pytest.raises(InputError):
        made.set_epoch(0)
    with pytest.raises(InputError):
        made.prepare(LABELS, epochs=0)


BAD_OPTIONS: dict[str, dict[str, Any]] = {
    "an": {"eps": -1, "reduction": "max"},
    "an-ls": {"smoothing": [1.5, "much", [0.1, 0.2]]},
    "bce-ls": {"smoothing": torch.tensor([0.1, float("nan")])},
    "wan": {"weight": [-0.1, float("inf")]},
    "pr": {"unknown": "absent"},
    "epr": {"expected_positives": [0, -1, float("nan"), "many"]},
    "ll-r": {"delta_rel": 101, "base": "some"},
    "ll-r-abs": {"r0": 0, "delta_abs": -1, "warmup": 0.5},
    "gr": {"q2": [0, 2.5], "q3": [0, 2.5], "alpha": [0.5, [0, 1], [0, 1, 0, 1]], "beta": ["0,1,2,3", [0, 1, 2, None]]},
    "asl": {"margin": 2, "detach_focus": "no"},
    "csl": {
        "mode": "some",
        "likelihood_topk": 1.5,
        "gamma_unknown": -1,
        "priors": [[0.5, 1.5], [[0.5]], torch.tensor([-0.1])],
    },
    "curriculum": {"strategy": "all", "tau": 0.5, "theta": 1.1, "warmup": [0, 1.5]},
    "imcl": {"atoms": [0, 1.5], "dictionary": 0, "asymmetry": 0, "threshold": 2, "lambda_labels": -1},
    "two-way": {"temperature_pos": 0, "temperature_neg": -1, "bias": float("inf"), "reduction": "none"},
    "warp": {"rank": "some", "reduction": "none"},
    "rml": {"beta": 1.5, "stop": 2, "weight": -1, "reduction": "none"},
    "softmax": {"reduction": "none"},
}


@pytest.mark.parametrize(
    ("name", "option"), [(name, option) for name, every in BAD_OPTIONS.items() for option in every]
)
def test_a_bad_option_is_refused_by_its_name(name: str, option: str) -> None:
    values = BAD_OPTIONS[name][option]
    for value in values if isinstance(values, list) else [values]:
        with pytest.raises(InputError, match=f"^{name}: {option}"):
            loss(name, **{option: value})
    for written, meant in ((f"{name}x", name), (f"{name[0]}{name}", name)):
        with pytest.raises(UnknownNameError, match=f"'{written}'.* '{meant}'"):
            loss(written)


NO_BATCHES: list[tuple[Any, Any]] = [
    (torch.zeros(2, 3), torch.zeros(3, 3)),
    (torch.zeros(2, 3), torch.zeros(4, 2, 3)),
    (torch.zeros(4, 2, 3), torch.zeros(2, 2, 3)),
    (torch.zeros(3), torch.zeros(3)),
    (torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 3)),
    (torch.zeros(2, 3), torch.zeros(2, 3).numpy()),
    (torch.zeros(2, 3), [[0, 0, 0], [1, 1, 1]]),
    (torch.zeros(2, 3).numpy(), torch.zeros(2, 3)),
    *((torch.zeros(2, 3), torch.tensor([[1, 0, -1], [-1, 1, wrong]])) for wrong in (0.5, 2.0, 255.0)),
]


@pytest.mark.parametrize("name", ["an", "ll-r", "two-way", "csl"])
def test_what_cannot_be_a_batch_is_refused(name: str) -> None:
    for logits, labels in NO_BATCHES:
        with pytest.raises(InputError):
            loss(name)(logits, labels)
    with pytest.raises(InputError, match="LabelTable"):
        loss(name).prepare([[1, 0]])  # type: ignore[arg-type]
    loss(name)(torch.zeros(2, 3), torch.tensor([[1.0, 0.0, float("nan")], [-1.0, 1.0, 0.0]]))


def test_transforms_of_torch_func_are_refused_in_words() -> None:
    made, labels = loss("an"), torch.tensor([[1, 0, -1]])
    with pytest.raises(InputError, match=r"torch\.func"):
        torch.func.vmap(torch.func.grad(lambda row: made(row, labels)))(torch.zeros(4, 1, 3))


def test_what_a_loss_needs_is_asked_for() -> None:
    made = loss("imcl")
    made.prepare(LABELS)
    logits, index = torch.zeros(2, 3), torch.tensor([0, 1])
    wrong: list[Any] = [None, torch.arange(3), index.numpy(), index.bool(), [0, 1]]
    for rows, features in [(rows, FEATURES[index]) for rows in wrong] + [(index, None), (index, FEATURES)]:
        with pytest.raises(InputError, match="features" if rows is index else "index"):
            made(logits, LABELS.batch(index), rows, features)


IMAGES, CLASSES, EPOCHS = 12, 5, 8
DEPENDENT = {
    "curriculum",
    "em-apl",
    "gpr",
    "gr",
    "ll-cp",
    "ll-cp-abs",
    "ll-ct",
    "ll-ct-abs",
    "ll-r",
    "ll-r-abs",
    "splc",
}
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
