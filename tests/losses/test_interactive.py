"""Interactive learning: the dictionary, the choice of atoms, the graph, and what a checkpoint holds of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.losses.reference import Batch
from tests.losses.reference_interactive import interactive_learning
from torch import Tensor

from labelgap.core.errors import InputError
from labelgap.labels import ABSENT, PRESENT, UNKNOWN, LabelTable
from labelgap.losses import Loss, loss
from labelgap.losses.base import state
from labelgap.losses.interactive import InteractiveLearning, co_occurrence

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
    with pytest.raises(InputError, match=r"5 classes: 400 .*399 "):
        made_with(table)
