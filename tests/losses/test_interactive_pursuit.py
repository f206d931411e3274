"""Orthogonal matching pursuit of a whole batch: which atoms, and how much of each."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from labelgap.losses.interactive import View, matching_pursuit


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


def test_the_threshold_ends_the_search() -> None:
    atoms = torch.eye(3)
    view = View(torch.tensor([[1.0, 0.5, 0.0]]), atoms, torch.ones(1, 1))
    allowed = torch.ones(1, 3, dtype=torch.bool)
    a, found = matching_pursuit((view,), allowed, atoms=3, threshold=0.6, max_atoms=3)
    assert a.tolist() == [[1.0, 0.0, 0.0]] and found.item()
    view = View(torch.tensor([[1.0, 0.5, 0.0]]), atoms, torch.ones(1, 1))
    a, found = matching_pursuit((view,), allowed, atoms=3, threshold=0.9, max_atoms=3)
    assert not a.any() and not found.item()
