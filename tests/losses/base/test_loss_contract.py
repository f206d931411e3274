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
    ElementwiseLoss,
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
    check_choice,
    check_integer,
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
    assert {"bias", "corrected"} == set(made.state_dict())


def observable(loss_fn: Loss) -> dict[str, object]:
    """Public attributes, buffers and recorded marks of a loss; tensors as lists."""
    plain = {name: str(value) for name, value in vars(loss_fn).items() if not name.startswith("_") or name == "_marks"}
    return {**plain, **{name: value.nan_to_num(nan=-9.0).tolist() for name, value in loss_fn.named_buffers()}}


def test_forward_changes_no_state_and_after_step_commits() -> None:
    made = EveryHook()
    made.prepare(LABELS)
    made.set_epoch(2)
    index, logits = torch.tensor([0, 3]), torch.tensor([[0.0, 1.0, 2.0], [0.5, 0.1, 0.2]], requires_grad=True)
    arguments = (logits, LABELS.batch(index), index, FEATURES[index])
    before = observable(made)
    cost = made(*arguments)
    assert torch.equal(cost, made(*arguments))
    assert observable(made) == before
    torch.autograd.backward(cost)
    made.after_step()
    assert made.corrected.nonzero().tolist() == [[0, 1]]
    assert not made.modified(logits, LABELS.batch(index), index)[0].any()


@pytest.mark.parametrize("name", ["ll-cp", "imcl", "role", "em-apl", "curriculum", "ll-ct"])
def test_a_forward_pass_leaves_every_attribute_as_it_was(name: str) -> None:
    made = loss(name, **reference_of(name).plain)
    made.prepare(LABELS)
    made.set_epoch(2)
    before, index = observable(made), torch.arange(6)
    made(torch.randn(6, 3, requires_grad=True), LABELS.batch(index), index=index, features=FEATURES)
    assert observable(made) == before


def test_without_a_backward_pass_the_last_forward_counts_unless_the_step_is_skipped() -> None:
    made = EveryHook()
    made.prepare(LABELS)
    made.set_epoch(2)
    logits = torch.tensor([[0.0, 1.0, 2.0], [0.5, 0.1, 0.2]], requires_grad=True)
    for index in torch.tensor([[0, 3], [1, 4]]):
        made(logits, LABELS.batch(index), index, FEATURES[index])
    made.skip_step()
    made.after_step()
    assert not made.corrected.any()
    for index in torch.tensor([[0, 3], [1, 4]]):
        made(logits, LABELS.batch(index), index, FEATURES[index])
    made.after_step()
    assert made.corrected.nonzero()[:, 0].tolist() == [1]


def test_after_step_commits_every_batch_that_was_accumulated() -> None:
    made = EveryHook()
    made.prepare(LABELS)
    made.set_epoch(2)
    for index in torch.tensor([[0, 3], [1, 4]]):
        logits = torch.tensor([[0.0, 1.0, 2.0], [0.5, 0.1, 0.2]], requires_grad=True)
        torch.autograd.backward(made(logits, LABELS.batch(index), index, FEATURES[index]))
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
def test_every_method_is_described_and_shows_its_name(name: str) -> None:
    entry = describe_method(name)
    assert entry.name == name and entry.summary and entry.reference
    made = loss(name, **reference_of(name).plain)
    assert made.name == name and name in repr(made)
    assert inspect.getdoc(entry.loss_class), f"{entry.loss_class.__name__} has no docstring"


@pytest.mark.parametrize("name", methods())
def test_a_method_is_final(name: str) -> None:
    kind = describe_method(name).loss_class
    assert not inspect.isabstract(kind)
    subclasses = [other.__name__ for other in kind.__subclasses__() if other.__module__.startswith("labelgap")]
    assert not subclasses, f"{kind.__name__} is final, but {subclasses} inherit from it: share an abstract class"


@pytest.mark.parametrize("name", methods())
def test_the_epoch_is_not_in_the_checkpoint_but_in_the_clock(name: str) -> None:
    made = loss(name, **reference_of(name).plain)
    made.set_epoch(4)
    assert (made.epoch, made.epoch_tensor.item()) == (4, 4)
    assert "epoch_tensor" not in made.state_dict()
    with pytest.raises(InputError, match="counted from 1"):
        made.set_epoch(0)
    with pytest.raises(InputError, match="at least one"):
        made.prepare(LABELS, epochs=0)


@pytest.mark.parametrize("name", methods())
def test_an_unknown_option_names_the_nearest(name: str) -> None:
    for option in method_options(name):
        with pytest.raises(UnknownNameError, match=rf"no option of '{name}' called '{option}x'.* '{option}'\?"):
            loss(name, **{f"{option}x": 1})


@pytest.mark.parametrize(("written", "meant"), [("ll-tc", "ll-ct"), ("anls", "an-ls"), ("WAN", "wan"), ("bcee", "bce")])
def test_an_unknown_method_names_the_nearest(written: str, meant: str) -> None:
    with pytest.raises(UnknownNameError, match=f"no method '{written}'. Did you mean '{meant}'"):
        loss(written)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("an", {"eps": -1}, "an: eps=-1: it lies between 0 and 1"),
        ("an", {"reduction": "max"}, "reduction='max': it is one of 'mean', 'sum', 'none'"),
        ("an-ls", {"smoothing": 1.5}, "smoothing=1.5: it lies between 0 and 1"),
        ("an-ls", {"smoothing": "much"}, "smoothing='much': a number is needed"),
        ("an-ls", {"smoothing": [0.1, 0.2]}, "one number, or a tensor with one per head"),
        ("bce-ls", {"smoothing": torch.tensor([0.1, float("nan")])}, "smoothing=.*lies between 0 and 1"),
        ("wan", {"weight": -0.1}, "weight=-0.1: it must be at least 0"),
        ("pr", {"unknown": "absent"}, "unknown='absent': it is one of 'negative', 'ignore'"),
        ("epr", {"expected_positives": 0}, "expected_positives=0: it must be above 0"),
        ("ll-r", {"delta_rel": 101}, "delta_rel=101: it lies between 0 and 100"),
        ("ll-ct", {"base": "some"}, "base='some': it is one of 'unknown', 'all'"),
        ("ll-r-abs", {"r0": 0}, "r0=0: it must be above 0"),
        ("ll-r-abs", {"delta_abs": -1}, "delta_abs=-1: it must be at least 0"),
        ("ll-ct-abs", {"warmup": 0.5}, "warmup=0.5: a whole number is needed"),
    ],
)
def test_a_bad_option_says_what_is_allowed(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        loss(name, **options)


def test_checks_return_what_they_let_through() -> None:
    heads = torch.tensor([0.0, 1.0])
    assert check_choice("base", "all", ("unknown", "all")) == "all"
    assert check_number("eps", 1, 0, 1) == 1.0
    assert torch.equal(torch.as_tensor(check_number("eps", heads, 0, 1)), heads)
    assert check_integer("warmup", 2.0) == 2
    assert torch.equal(torch.as_tensor(check_integer("warmup", heads)), heads)
    with pytest.raises(InputError, match="must be finite"):
        check_number("weight", float("inf"))


@pytest.mark.parametrize(
    ("logits", "labels", "message"),
    [
        (torch.zeros(2, 3), torch.zeros(3, 3), "not of the same batch: labels have shape \\(2, 3\\)\\."),
        (torch.zeros(2, 3), torch.zeros(4, 2, 3), "not of the same batch"),
        (torch.zeros(4, 2, 3), torch.zeros(2, 2, 3), "\\(2, 3\\) or that of the logits"),
        (torch.zeros(3), torch.zeros(3), "a row per image; got \\(3,\\)"),
        (torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 3), "must be floats, not torch.int64"),
    ],
)
@pytest.mark.parametrize("name", ["an", "ll-r"])
def test_what_cannot_be_a_batch_is_refused_in_words(name: str, logits: Tensor, labels: Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        loss(name)(logits, labels)


@pytest.mark.parametrize("name", ["an", "ll-r", "two-way", "csl"])
def test_what_is_no_tensor_is_refused_with_the_way_to_make_one(name: str) -> None:
    logits, labels = torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.int8)
    given: list[tuple[Any, Any, str]] = [(logits, labels.numpy(), "ndarray"), (logits, labels.tolist(), "list")]
    for x, y, kind in [*given, (logits.numpy(), labels, "ndarray")]:
        with pytest.raises(InputError, match=f"must be tensors: torch.as_tensor makes one of a {kind}"):
            loss(name)(x, y)
    with pytest.raises(InputError, match=r"takes a LabelTable: lg\.LabelTable\.from_dense\(labels\) makes one"):
        loss(name).prepare(labels)  # type: ignore[arg-type]


def test_what_a_loss_needs_is_asked_for() -> None:
    made = EveryHook()
    made.prepare(LABELS)
    logits, index = torch.zeros(2, 3), torch.tensor([0, 1])
    labels = LABELS.batch(index)
    with pytest.raises(InputError, match="'EveryHook' keeps state per image: pass the rows of the table, index=…"):
        made(logits, labels, features=FEATURES[index])
    with pytest.raises(InputError, match="uses the features: pass them, features=…"):
        made(logits, labels, index)
    with pytest.raises(InputError, match="one row number for each of 2 images"):
        made(logits, labels, torch.arange(3), FEATURES[index])
    wrong: list[tuple[Any, str]] = [(index.numpy(), "ndarray"), (index.bool(), r"torch\.bool"), ([0, 1], "list")]
    for rows, given in wrong:
        with pytest.raises(InputError, match=f"index must be a tensor of row numbers, int64 or int32, not {given}"):
            made(logits, labels, rows, FEATURES[index])
    with pytest.raises(InputError, match="one row for each of 2 images"):
        made(logits, labels, index, FEATURES)


def test_a_stateless_loss_needs_logits_and_labels_only() -> None:
    class Twice(ElementwiseLoss):
        def entries(self, logits: Tensor, labels: Tensor) -> Tensor:
            return 2 * logits * (labels == PRESENT)

    assert Twice()(torch.ones(1, 2), torch.tensor([[1, 0]])).item() == 1.0
    assert Twice().penalty([]) == 0.0
    assert Twice().parameter_groups(0.1) == []
    assert len(Twice().end_epoch()) == 0


@pytest.mark.parametrize(
    "module", [item.name for item in pkgutil.iter_modules(labelgap.losses.__path__) if not item.ispkg]
)
def test_every_file_has_an_example(module: str) -> None:
    loaded = importlib.import_module(f"labelgap.losses.{module}")
    assert any(test.examples for test in doctest.DocTestFinder().find(loaded)), f"{module}.py has no doctest"
