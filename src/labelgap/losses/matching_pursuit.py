"""Orthogonal matching pursuit in several spaces at once, for a whole batch (Huynh & Elhamifar, CVPR 2020, take it).

A vector is written as a combination of a few atoms of a dictionary: the atom most like it is taken, then the one most
like what is left, and so on. Here every row of a batch does so at the same time, and an atom is like a row when it is
so in all spaces together: its labels and its features.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from labelgap.losses.terms import Number, per_head

__all__ = ["View", "matching_pursuit"]

DEPENDENT = 1e-4
"""An atom whose angle to the span of those chosen before has a smaller sine adds nothing: its coefficient is 0."""
EQUAL = 1e-5
"""Correlations that differ by less are equal, whatever the rounding; hard labels often give equal ones."""


class View:
    """What a pursuit has found in one space, labels or features; every vector has been made a unit vector.

    Args:
        target: ``(…, B, P)``, what is to be combined.
        atoms: ``(…, M, P)``, of what.
        weight: how much the correlations of this space count, ``(…, 1, 1)``.
    """

    def __init__(self, target: Tensor, atoms: Tensor, weight: Tensor) -> None:
        self.residual = normalize(target, dim=-1)
        self.atoms, self.weight = normalize(atoms, dim=-1), weight
        length, lengths = target.norm(dim=-1, keepdim=True), atoms.norm(dim=-1, keepdim=True).mT
        self.scale = torch.where(lengths > 0, length / lengths, 0.0)
        self.coefficients = torch.zeros_like(self.scale)
        self.basis: list[tuple[Tensor, Tensor]] = []

    def correlations(self) -> Tensor:
        """Return how well each atom explains what is left, weighted, ``(…, B, M)``."""
        return self.weight * (self.residual @ self.atoms.mT).abs()

    def take(self, place: Tensor, taken: Tensor) -> None:
        """Explain what is left by one more atom: one step of least squares by Gram and Schmidt.

        Args:
            place: ``(…, B, 1)``, which atom.
            taken: ``(…, B, 1)``, whether.
        """
        vector = torch.take_along_dim(self.atoms, place, dim=-2) * taken
        recipe = torch.zeros_like(self.coefficients).scatter(-1, place, taken.to(self.coefficients.dtype))
        for other, its_recipe in (*self.basis, *self.basis):  # twice, against rounding
            share = (vector * other).sum(dim=-1, keepdim=True)
            vector, recipe = vector - share * other, recipe - share * its_recipe
        length = vector.norm(dim=-1, keepdim=True)
        factor = torch.where(length > DEPENDENT, 1 / length, 0.0)
        vector, recipe = vector * factor, recipe * factor
        share = (self.residual * vector).sum(dim=-1, keepdim=True)
        self.residual, self.coefficients = self.residual - share * vector, self.coefficients + share * recipe
        self.basis.append((vector, recipe))


@torch.no_grad()
def matching_pursuit(
    views: tuple[View, ...], allowed: Tensor, *, atoms: Number, threshold: Number, most: int
) -> tuple[Tensor, ...]:
    r"""Choose the same few atoms in all views by orthogonal matching pursuit, and combine them in each.

    Again and again the atom with the largest :math:`\sum_v w_v |\langle r_v, d_v \rangle| / (\|t_v\| \|d_v\|)` joins
    (t a row's target, r what the atoms chosen before leave of it), the first of equal ones, until that sum is not above
    the threshold. The coefficients of each view are those of least squares, of which a dependent atom has 0.

    Args:
        views: where to compare.
        allowed: ``(…, B, M)``, which row may use which atom.
        atoms: how many a row may use; like the next, a tensor of shape ``(…)`` gives every head its own.
        threshold: the weighted correlation above which an atom is worth it.
        most: the largest of ``atoms``.

    Returns:
        the coefficients of every view, ``(…, B, M)``, and which rows found any atom, ``(…, B, 1)``.

    Example:
        >>> one = View(torch.tensor([[3.0, 4.0]]), torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 1.0]]), torch.ones(1, 1))
        >>> matching_pursuit((one,), torch.tensor([[True, True, False]]), atoms=2, threshold=1e-3, most=2)[0]
        tensor([[1.5000, 4.0000, 0.0000]])
    """
    found = torch.zeros_like(allowed[..., :1])
    for step in range(most):
        score = sum((view.correlations() for view in views), start=torch.zeros_like(found, dtype=views[0].weight.dtype))
        score = torch.where(allowed, score, -torch.inf)
        best = score.amax(dim=-1, keepdim=True)
        place = (score >= best - EQUAL).int().argmax(dim=-1, keepdim=True)
        taken = (best > per_head(threshold, best)) & (per_head(atoms, best) > step)
        allowed = allowed & ~torch.zeros_like(allowed).scatter(-1, place, taken)
        for view in views:
            view.take(place, taken)
        found = found | taken
    return *(view.coefficients * view.scale for view in views), found
