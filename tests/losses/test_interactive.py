"""Interactive learning: the dictionary, the choice of atoms, the graph, and what a checkpoint holds of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.losses.reference import Batch
from tests.losses.reference_interactive import interactive_learning
from torch import Tensor

from labelgap.core.errors import InputError
from labelgap.labels import ABSENT, PRESENT, UNKNOWN, LabelTable
from labelgap.losses import Loss, loss
from labelgap.losses.base import state
from labelgap.losses.interactive import InteractiveLearning, View, asymmetric_sigmoid, co_occurrence, matching_pursuit

IMAGES, CLASSES, FEATURES = 12, 5, 4


def some_table(seed: int = 0, images: int = IMAGES) -> LabelTable:
    random = np.random.default_rng(seed)
    return LabelTable.from_dense(random.choice([PRESENT, ABSENT, UNKNOWN], (images, CLASSES), p=[0.25, 0.35, 0.4]))


def made_with(table: LabelTable, **options: object) -> InteractiveLearning:
    made = loss("imcl", **options)
    made.prepare(table, seed=1)
    assert isinstance(made, InteractiveLearning)
    return made


def step(made: Loss, table: LabelTable, rows: list[int], seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """One forward pass over some rows, and its commit."""
    random = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(rows), CLASSES, generator=random).requires_grad_()
    features = torch.randn(len(rows), FEATURES, generator=random)
    cost = made(logits, table.batch(rows), index=torch.tensor(rows, dtype=torch.int64), features=features)
    torch.autograd.backward(cost, retain_graph=True)
    made.after_step()
    return cost, logits.detach(), features


@given(x=st.floats(-300, 300), c=st.floats(0.1, 10))
def test_the_asymmetric_sigmoid_is_the_papers(x: float, c: float) -> None:
    v = x + 0.5 * math.log(1 / c)
    wanted = (math.exp(v) - math.exp(-v) / c) / (math.exp(v) + math.exp(-v))
    found = asymmetric_sigmoid(torch.tensor([[x]], dtype=torch.float64), c).item()
    assert found == pytest.approx(wanted, abs=1e-12)
    assert -1 / c - 1e-12 <= found <= 1 + 1e-12
    assert asymmetric_sigmoid(torch.zeros(1, 1, dtype=torch.float64), c).item() == pytest.approx(0, abs=1e-14)


def test_the_graph_starts_from_what_is_known_to_occur_together() -> None:
    table = some_table(3, images=40)
    dense = table.to_dense().tolist()
    share = [[0.0] * CLASSES for _ in range(CLASSES)]
    for i in range(CLASSES):
        for j in range(CLASSES):
            both = [row for row in dense if row[i] == PRESENT and row[j] != UNKNOWN]
            share[i][j] = 1.0 if i == j else sum(row[j] == PRESENT for row in both) / max(len(both), 1)
    wanted = [[share[i][j] / sum(row[j] for row in share) for j in range(CLASSES)] for i in range(CLASSES)]
    np.testing.assert_allclose(co_occurrence(table).numpy(), wanted, rtol=1e-6)
    torch.testing.assert_close(made_with(table).graph.detach(), co_occurrence(table))


def test_an_image_is_never_its_own_atom_and_an_unseen_one_nobodys() -> None:
    table = some_table()
    made = made_with(table, threshold=0.0, lambda_labels=0.0, lambda_features=1.0, reduction="none")
    features = torch.eye(IMAGES)
    features[3] = features[0]

    def left(rows: list[int]) -> list[float]:
        """What the features of the rows cost, by themselves."""
        logits = torch.zeros(len(rows), CLASSES)
        labels = torch.full((len(rows), CLASSES), UNKNOWN)
        costs: Tensor = made(logits, labels, index=torch.tensor(rows), features=features[rows])
        made.skip_step()
        torch.autograd.backward(costs.sum())
        return [float(cost) for cost in costs.detach().sum(dim=1)]

    assert left([0]) == [0.0]  # nothing was seen: no term at all
    made.after_step()
    assert left([0]) == [0.0]  # itself alone was seen
    assert left([1]) == [0.0]  # what was seen is not like it
    assert left([3]) == pytest.approx([0.0], abs=1e-12)  # explained by image 0
    logits, labels = torch.zeros(1, CLASSES), torch.full((1, CLASSES), UNKNOWN)
    made.skip_step()
    torch.autograd.backward(made(logits, labels, index=torch.tensor([1]), features=features[[0]] + features[[1]]).sum())
    made.after_step()
    assert left([3]) == pytest.approx([0.0], abs=1e-12)
    assert left([0]) == pytest.approx([0.5])  # by image 1 alone, at 45 degrees: sin² is left


def test_the_dictionary_is_a_seeded_sample_and_knows_no_other_image() -> None:
    table = some_table(images=300)
    assert made_with(table).seen.shape == (256,)
    made = made_with(table, dictionary=7)
    held = (made.slot[:, 0] < 7).nonzero().flatten()
    assert len(held) == 7 and made.slot[held, 0].tolist() == list(range(7))
    assert torch.equal(made.atom_labels, table.batch(held.numpy()))
    again, other = loss("imcl", dictionary=7), loss("imcl", dictionary=7)
    again.prepare(table, seed=1)
    other.prepare(table, seed=2)
    assert torch.equal(made.slot, again.get_buffer("slot")) and not torch.equal(made.slot, other.get_buffer("slot"))
    strangers = [row for row in range(300) if row not in held.tolist()][:4]
    _, logits, _ = step(made, table, [*strangers, int(held[5])], seed=0)
    assert made.seen.tolist() == [False] * 5 + [True, False]
    assert torch.equal(made.atom_logits[5], logits[4]) and not made.atom_logits[:5].any()


def test_every_step_of_a_training_costs_what_the_reference_says() -> None:
    """Ten steps over batches that come again; the state is what the loop made of it, and the graph stays positive."""
    torch.manual_seed(0)
    table = some_table(5)
    made = made_with(table).double()
    weights = torch.nn.Parameter(torch.randn(FEATURES, CLASSES, dtype=torch.float64))
    images = torch.randn(IMAGES, FEATURES, dtype=torch.float64)
    (group,) = made.parameter_groups(0.3)
    assert group == {"params": [made.graph], "lr": 0.3}
    optimizer = torch.optim.Adam([{"params": [weights]}, group], lr=0.3)
    seen: dict[int, tuple[Tensor, Tensor]] = {}
    for number in range(10):
        index = torch.from_numpy(np.random.default_rng(number % 4).permutation(IMAGES)[:5])
        logits, labels = images[index] @ weights, table.batch(index)
        cost = made(logits, labels, index=index, features=images[index])
        state = {key: value.detach().numpy().copy() for key, value in made.state_dict().items()}
        if not state["atom_features"].shape[-1]:
            state["atom_features"] = np.zeros((IMAGES, FEATURES))
        batch = Batch(logits.detach().numpy(), labels.numpy(), index.numpy(), images[index].numpy(), table, state=state)
        assert cost.item() == pytest.approx(interactive_learning(batch).loss, rel=1e-9)
        for row, values in zip(index.tolist(), logits.detach(), strict=True):
            seen[row] = values, images[row]
        optimizer.zero_grad()
        cost.backward()
        optimizer.step()
        made.after_step()
        assert made.graph.min() >= 0
        assert made.seen.nonzero().flatten().tolist() == sorted(seen)
        for row, (thought, looked) in seen.items():
            assert torch.equal(made.atom_logits[row], thought) and torch.equal(made.atom_features[row], looked)
    assert (made.graph == 0).any() and not torch.allclose(made.graph, co_occurrence(table).double())


def test_a_checkpoint_is_complete_even_before_the_first_batch() -> None:
    table = some_table()
    made, fresh, early = made_with(table), made_with(table), made_with(table)
    early.load_state_dict(made_with(table).state_dict())
    assert early.atom_features.shape == (IMAGES, 0)
    step(made, table, [0, 1, 2, 3], seed=0)
    step(made, table, [4, 5, 6], seed=1)
    fresh.load_state_dict(made.state_dict())
    early.load_state_dict(made.state_dict())
    assert fresh.atom_features.shape == (IMAGES, FEATURES)
    losses = [step(one, table, [7, 0, 3], seed=2)[0].item() for one in (made, fresh, early)]
    assert losses[0] == losses[1] == losses[2]
    for key, value in made.state_dict().items():
        assert torch.equal(value, fresh.state_dict()[key])


def test_features_of_another_number_and_a_graph_that_cannot_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    made = made_with(table := some_table())
    assert made.state_bytes == 16 * CLASSES**2 + 4 * IMAGES * CLASSES + 8 * IMAGES
    step(made, table, [0, 1], seed=0)
    with pytest.raises(InputError, match=r"4 features .*6"):
        made(torch.zeros(1, CLASSES), table.batch([0]), index=torch.tensor([0]), features=torch.zeros(1, 6))
    monkeypatch.setattr(state, "free_memory", lambda device: 16 * CLASSES**2 - 1)
    with pytest.raises(InputError, match=r"graph between 5 classes: 400 bytes, and 399 bytes are free\. Take fewer"):
        made_with(table)


def pursued(target: Tensor, atoms: Tensor, count: int, allowed: Tensor | None = None) -> Tensor:
    view = View(target, atoms, torch.ones(1, 1, dtype=target.dtype))
    allowed = torch.ones(len(target), len(atoms), dtype=torch.bool) if allowed is None else allowed
    return matching_pursuit((view,), allowed, atoms=count, threshold=1e-3, max_atoms=count)[0]


def test_a_combination_of_few_atoms_is_found_again() -> None:
    random = np.random.default_rng(0)
    atoms = torch.from_numpy(np.linalg.qr(random.normal(size=(30, 30)))[0][:20] * random.uniform(0.1, 9, (20, 1)))
    wanted = torch.zeros(6, 20, dtype=torch.float64)
    for row in range(6):
        wanted[row, torch.from_numpy(random.choice(20, 3, replace=False))] = torch.tensor([2.0, -0.7, 0.2]).double()
    torch.testing.assert_close(pursued(wanted @ atoms, atoms, 3), wanted, rtol=1e-9, atol=1e-9)


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 4), space=st.integers(1, 9))
def test_what_is_left_over_is_at_right_angles_to_every_atom_used(seed: int, count: int, space: int) -> None:
    random = np.random.default_rng(seed)
    target, atoms = (torch.from_numpy(random.normal(size=(rows, space))) for rows in (5, 11))
    coefficients = pursued(target, atoms, count)
    used = coefficients != 0
    assert (used.sum(dim=1) <= min(count, space)).all()
    left = target - coefficients @ atoms
    for row in range(5):
        chosen = atoms[used[row]]
        assert (chosen @ left[row]).abs().max() < 1e-9
        best = np.linalg.lstsq(chosen.numpy().T, target[row].numpy(), rcond=None)[0]
        np.testing.assert_allclose(coefficients[row][used[row]].numpy(), best, rtol=1e-6, atol=1e-8)


def test_a_copy_of_an_atom_adds_nothing_and_the_first_of_equals_is_taken() -> None:
    atoms = torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 1.0], [2.0, 0.0, 2.0], [0.0, 1.0, 0.0]])
    labels = View(torch.tensor([[1.0, 0.1, 1.0]]), atoms, torch.full((1, 1), 0.1))
    looks = torch.tensor([[0.0, 0.0], [0.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
    features = View(torch.tensor([[0.0, 1.0]]), looks, torch.full((1, 1), 0.9))
    allowed = torch.ones(1, 4, dtype=torch.bool)
    a, b, found = matching_pursuit((labels, features), allowed, atoms=3, threshold=1e-3, max_atoms=3)
    torch.testing.assert_close(a, torch.tensor([[0.0, 1.0, 0.0, 0.1]]))
    torch.testing.assert_close(b, torch.tensor([[0.0, 1.0, 0.0, 0.0]]))
    assert found.item()
