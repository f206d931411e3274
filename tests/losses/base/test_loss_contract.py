"""The contract between a loss and a training loop: one that uses every hook, and a loop that calls it."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch
from tests.losses.reference import reference_of
from torch import Tensor, nn

import labelgap.losses
from labelgap.core.errors import InputError, UnknownNameError
from labelgap.labels import PRESENT, UNKNOWN, LabelTable, Revisions
from labelgap.losses import (
    Loss,
    MultiHead,
    TrainingScores,
    describe_method,
    loss,
    method_options,
    methods,
)
from labelgap.losses.base.terms import (
    Number,
    check_number,
    cost_present,
    per_head,
    reduce,
    states,
)

LABELS = LabelTable.from_dense(
    [[1, -1, 0], [-1, -1, 1], [1, 1, -1], [-1, 0, -1], [1, -1, -1], [0, -1, -1]], classes=["cat", "dog", "owl"]
)
FEATURES = torch.tensor([[1.0, 0, 2, 1], [0, 1, 1, 0], [2, 1, 0, 0], [0, 0, 1, 1], [1, 1, 1, 1], [0, 2, 0, 1]])

NEEDS = frozenset({"index", "features", "scores", "penalty"})


class EveryHook(MultiHead, Loss):
    """Learns a bias per image, takes the likeliest unknown label of a batch as present, and uses every hook."""

    needs = NEEDS
    weight: Number
    corrected: Tensor

    def __init__(self, weight: Number = 0.01) -> None:
        super().__init__()
        self.weight = check_number("weight", weight, 0)
        self.calls: list[str] = []

    def initialize_from(self, table: LabelTable, val: LabelTable | None = None) -> dict[str, Any]:
        self.calls.append(f"initialize {len(table)}")
        return {}

    def prepare(self, table: LabelTable, epochs: int = 10, seed: int = 0) -> None:
        super().prepare(table, epochs, seed)
        self.calls.append(f"prepare {epochs} {seed}")
        self.table, self.bias = table, nn.Parameter(torch.zeros(*self.heads, *table.shape))
        self.register_buffer("corrected", torch.zeros(*self.heads, *table.shape, dtype=torch.int64))
        self.state_bytes = self.bias.nbytes + self.corrected.nbytes

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        return [{"params": [self.bias], "lr": 10 * lr}]

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        self.calls.append(f"epoch {epoch}")

    def modified(self, logits: Tensor, labels: Tensor, index: Tensor | None = None) -> Tensor:
        open_ = states(labels).unknown & (self.corrected[..., index, :] == 0)
        value = torch.where(open_, logits.detach(), -torch.inf)
        return open_ & (value >= value.amax(dim=(-2, -1), keepdim=True)) & (self.epoch_tensor > 1)

    def cost(self, logits: Tensor, labels: Tensor, index: Tensor | None, features: Tensor | None) -> Tensor:
        assert index is not None and features is not None
        revised = self.corrected[..., index, :] > 0
        marked = self.modified(logits, labels, index)
        present = states(labels).present | revised | marked
        shifted = logits + self.bias[..., index, :]
        entries = cost_present(torch.where(present, shifted, -shifted))
        weight = per_head(self.weight, logits) * features.square().mean(-1, keepdim=True)
        return self.mark(reduce(entries + weight, "mean"), index, marked)

    def commit(self, *values: Tensor) -> None:
        index, marked = values
        self.corrected[..., index, :] += marked * self.epoch_tensor

    def end_epoch(self, scores: TrainingScores | None = None) -> Revisions:
        assert scores is not None
        seen = torch.cat([index for index, _ in scores()])
        self.calls.append(f"end {sorted(seen.tolist())}")
        rows, columns = (self.corrected.reshape(-1, *self.table.shape)[0] == self.epoch).nonzero().unbind(-1)
        return Revisions.from_arrays(self.table, rows.numpy(), columns.numpy(), source="every-hook", epoch=self.epoch)

    def penalty(self, parameters: Iterable[Tensor]) -> Number:
        return 1e-3 * torch.stack([parameter.square().sum() for parameter in parameters]).sum()


def train(made: Loss, weights: nn.Parameter, epochs: int) -> Revisions:
    """The loop of ``labelgap.losses.base.loss``, in miniature; one linear head for each leading axis."""
    assert isinstance(made, MultiHead)
    made.heads = tuple(weights.shape[:-2])
    made.initialize_from(LABELS)
    made.prepare(LABELS, epochs=epochs, seed=3)
    optimizer = torch.optim.SGD([{"params": [weights]}, *made.parameter_groups(0.1)], lr=0.1)
    revisions = Revisions()

    def scores() -> Iterator[tuple[Tensor, Tensor]]:
        for rows in (torch.arange(4), torch.arange(4, 6)):
            yield rows, (FEATURES[rows] @ weights).detach()

    for epoch in range(1, epochs + 1):
        made.set_epoch(epoch)
        for index in torch.tensor([[5, 0, 2], [4, 1, 3]]):
            logits = FEATURES[index] @ weights
            losses = made(logits, LABELS.batch(index), index=index, features=FEATURES[index])
            assert losses.shape == weights.shape[:-2]
            optimizer.zero_grad()
            torch.autograd.backward(losses.sum() + made.penalty([weights]))
            optimizer.step()
            made.after_step()
        revisions += made.end_epoch(scores if "scores" in made.needs else None)
    return revisions


def test_a_loop_calls_every_hook_of_a_loss() -> None:
    weights = nn.Parameter(torch.zeros(2, 4, 3))
    made = EveryHook(weight=torch.tensor([0.01, 0.02]))
    revisions = train(made, weights, epochs=3)
    everyone = [0, 1, 2, 3, 4, 5]
    ends = [item for epoch in (1, 2, 3) for item in (f"epoch {epoch}", f"end {everyone}")]
    assert made.calls == ["initialize 6", "prepare 3 3", *ends]
    assert made.state_bytes == 2 * 6 * 3 * (4 + 8)
    assert made.bias.detach().any() and weights.detach().any()
    assert {revision.epoch for revision in revisions} == {2, 3}
    assert {revision.source for revision in revisions} == {"every-hook"}
    assert all(revision.value == PRESENT for revision in revisions)
    row_of, column_of = LABELS.images.index, LABELS.classes.index
    observed = [LABELS.to_dense()[row_of(item.image), column_of(item.class_name)] for item in revisions]
    assert observed == [UNKNOWN] * len(revisions)
    assert {"bias", "corrected", "epoch_tensor"} == set(made.state_dict())


def observable(loss_fn: Loss) -> dict[str, object]:
    """Public attributes, buffers and recorded marks of a loss; tensors as lists."""
    plain = {name: str(value) for name, value in vars(loss_fn).items() if not name.startswith("_") or name == "_marks"}
    return {**plain, **{name: value.nan_to_num(nan=-9.0).tolist() for name, value in loss_fn.named_buffers()}}


def second_epoch() -> EveryHook:
    made = EveryHook()
    made.prepare(LABELS)
    made.set_epoch(2)
    return made


def arguments(*rows: int) -> tuple[Tensor, ...]:
    """A batch of two images, in which the last class of the first has the highest logit."""
    index, logits = torch.tensor(rows), torch.tensor([[0.0, 1.0, 2.0], [0.5, 0.1, 0.2]], requires_grad=True)
    return logits, LABELS.batch(index), index, FEATURES[index]


def test_forward_changes_no_state_and_after_step_commits() -> None:
    made, given = second_epoch(), arguments(0, 3)
    before = observable(made)
    cost = made(*given)
    assert torch.equal(cost, made(*given)) and observable(made) == before
    torch.autograd.backward(cost)
    made.after_step()
    assert made.corrected.nonzero().tolist() == [[0, 1]]
    assert not made.modified(*given[:3])[0].any()


def test_without_a_backward_pass_the_last_forward_counts_unless_the_step_is_skipped() -> None:
    made = second_epoch()
    made(*arguments(0, 3)), made(*arguments(1, 4))
    made.skip_step()
    with torch.no_grad():
        made(*arguments(1, 4))
    made.after_step()
    assert not made.corrected.any()
    made(*arguments(0, 3)), made(*arguments(1, 4))
    made.after_step()
    assert made.corrected.nonzero()[:, 0].tolist() == [1]


def test_after_step_commits_every_batch_that_was_accumulated() -> None:
    made = second_epoch()
    for rows in ((0, 3), (1, 4)):
        torch.autograd.backward(made(*arguments(*rows)))
    assert not made.corrected.any()
    made.after_step()
    assert made.corrected.nonzero()[:, 0].tolist() == [0, 1]


@pytest.mark.parametrize("name", methods())
def test_the_same_loop_trains_every_method(name: str) -> None:
    weights = nn.Parameter(torch.zeros(4, 3))
    made = loss(name, **reference_of(name).plain)
    assert made.needs <= NEEDS
    train(made, weights, epochs=2)
    assert weights.isfinite().all() and weights.detach().any()


@pytest.mark.parametrize("name", methods())
def test_a_method_is_final(name: str) -> None:
    kind = describe_method(name).loss_class
    assert not inspect.isabstract(kind)
    subclasses = [other.__name__ for other in kind.__subclasses__() if other.__module__.startswith("labelgap")]
    assert not subclasses, f"{kind.__name__} is final, but {subclasses} inherit from it: share an abstract class"


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


@pytest.mark.parametrize("name", methods())
def test_an_unknown_option_names_the_nearest(name: str) -> None:
    for option in method_options(name):
        with pytest.raises(UnknownNameError, match=rf"no option of '{name}' called '{option}x'.* '{option}'\?"):
            loss(name, **{f"{option}x": 1})


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
    made = EveryHook()
    made.prepare(LABELS)
    logits, index = torch.zeros(2, 3), torch.tensor([0, 1])
    wrong: list[Any] = [None, torch.arange(3), index.numpy(), index.bool(), [0, 1]]
    for rows, features in [(rows, FEATURES[index]) for rows in wrong] + [(index, None), (index, FEATURES)]:
        with pytest.raises(InputError, match="features" if rows is index else "index"):
            made(logits, LABELS.batch(index), rows, features)


@pytest.mark.parametrize(
    "module", [item.name for item in pkgutil.iter_modules(labelgap.losses.__path__) if not item.ispkg]
)
def test_every_file_has_an_example(module: str) -> None:
    loaded = importlib.import_module(f"labelgap.losses.{module}")
    assert any(test.examples for test in doctest.DocTestFinder().find(loaded)), f"{module}.py has no doctest"
