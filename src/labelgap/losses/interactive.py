"""Interactive learning with partial labels (Huynh & Elhamifar, "Interactive Multi-Label CNN Learning with Partial
Labels", CVPR 2020).

Similar images have similar labels. The features of each image are written as a combination of a few images of a
dictionary, and so are its labels, the unknown ones as the network predicts them; the residual is a cost. A learned
graph G between the classes fills gaps in the labels of the dictionary first. As the network changes, so do the images
it is compared with.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor, nn
from torch.nn.functional import normalize

from labelgap.core.distributed import gather_rows
from labelgap.core.errors import InputError
from labelgap.core.seeds import numpy_generator
from labelgap.labels import LabelTable
from labelgap.labels.codes import PRESENT
from labelgap.losses.base.fused import fused_mixture
from labelgap.losses.base.mixture import IGNORED, Mixture
from labelgap.losses.base.state import PerImageState
from labelgap.losses.base.terms import Number, check_integer, check_number, per_head, states, widen

DICTIONARY = 256


def asymmetric_sigmoid(logits: Tensor, asymmetry: Number = 2.0) -> Tensor:
    r"""Turn logits into soft labels between −1/c and 1, with a logit of 0 at 0.

    .. math:: y = \frac{e^v - e^{-v}/c}{e^v + e^{-v}} = \left(1 + \tfrac1c\right) \sigma(2v) - \tfrac1c,
        \qquad v = x + \tfrac12 \ln \tfrac1c

    Example:
        >>> asymmetric_sigmoid(torch.tensor([[-9.0, 0.0, 9.0]]))
        tensor([[-0.5000,  0.0000,  1.0000]])
    """
    c = per_head(asymmetry, logits)
    return (1 + 1 / c) * torch.sigmoid(2 * logits - c.log()) - 1 / c


def soft_labels(values: Tensor, labels: Tensor, asymmetry: Number = 2.0) -> Tensor:
    """Replace soft labels ``(…, B, K)`` where the label is known: 1 where present, −1/c where absent."""
    present, absent, _ = states(labels)
    return torch.where(present, 1.0, torch.where(absent, -1 / per_head(asymmetry, values), values))


def co_occurrence(table: LabelTable) -> Tensor:
    """Return the initial graph, ``(K, K)``: the share of class j among the images of class i.

    It counts the images where i is known to be present and j is known; 1 for i = j, 0 where there is no such image.
    Every column is divided by its sum.
    """
    known = csr_array((np.ones(len(table.values), dtype=np.float32), table.columns, table.starts), shape=table.shape)
    is_present = (table.values == PRESENT).astype(np.float32)
    present = csr_array((is_present, table.columns, table.starts), shape=table.shape)
    share = (present.T @ present).toarray() / np.maximum((present.T @ known).toarray(), 1)
    np.fill_diagonal(share, 1)
    return torch.from_numpy((share / share.sum(axis=0)).astype(np.float32))


DEPENDENT = 1e-4
"""An atom whose angle to the span of those chosen before has a smaller sine adds nothing: its coefficient is 0."""
EQUAL = 1e-5
"""Correlations that differ by less are equal, whatever the rounding; hard labels often give equal ones."""


class View:
    """The state of a pursuit in one space, labels or features; all vectors are normalized.

    The vectors to represent are ``(…, B, P)``, the atoms of the dictionary ``(…, M, P)``, the weight of the
    correlations of this space ``(…, 1, 1)``.
    """

    def __init__(self, target: Tensor, atoms: Tensor, weight: Tensor) -> None:
        self.residual = normalize(target, dim=-1)
        self.atoms, self.weight = normalize(atoms, dim=-1), weight
        length, lengths = target.norm(dim=-1, keepdim=True), atoms.norm(dim=-1, keepdim=True).mT
        self.scale = torch.where(lengths > 0, length / lengths, 0.0)
        self.coefficients = torch.zeros_like(self.scale)
        self.basis: list[tuple[Tensor, Tensor]] = []

    def correlations(self) -> Tensor:
        """Return the weighted correlation of each atom with the residual, ``(…, B, M)``."""
        return self.weight * (self.residual @ self.atoms.mT).abs()

    def take(self, place: Tensor, taken: Tensor) -> None:
        """Add the atom ``place`` ``(…, B, 1)`` to the rows that are ``taken`` ``(…, B, 1)``, by Gram–Schmidt."""
        vector = torch.take_along_dim(self.atoms, place, dim=-2) * taken
        combination = torch.zeros_like(self.coefficients).scatter(-1, place, taken.to(self.coefficients.dtype))
        for other, other_combination in (*self.basis, *self.basis):  # twice, against rounding
            share = (vector * other).sum(dim=-1, keepdim=True)
            vector, combination = vector - share * other, combination - share * other_combination
        length = vector.norm(dim=-1, keepdim=True)
        factor = torch.where(length > DEPENDENT, 1 / length, 0.0)
        vector, combination = vector * factor, combination * factor
        share = (self.residual * vector).sum(dim=-1, keepdim=True)
        self.residual, self.coefficients = self.residual - share * vector, self.coefficients + share * combination
        self.basis.append((vector, combination))


@torch.no_grad()
def matching_pursuit(
    views: tuple[View, ...], allowed: Tensor, *, atoms: Number, threshold: Number, max_atoms: int
) -> tuple[Tensor, ...]:
    r"""Choose the same few atoms in all views by orthogonal matching pursuit, and combine them in each.

    Each step adds the atom with the largest :math:`\sum_v w_v |\langle r_v, d_v \rangle| / (\|t_v\| \|d_v\|)` (t a
    row's target, r its residual), the first of equal ones, until that sum is not above the threshold. The coefficients
    of each view are those of least squares, of which a dependent atom has 0.

    ``allowed`` ``(…, B, M)`` says which row may use which atom, ``atoms`` how many (at most ``max_atoms``). Returns the
    coefficients of every view, ``(…, B, M)``, and which rows found any atom, ``(…, B, 1)``.
    """
    found = torch.zeros_like(allowed[..., :1])
    for step in range(max_atoms):
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


class InteractiveLearning(PerImageState):
    r"""Cost of the known labels, plus the residuals of labels and features given a few similar images; final.

    .. math:: L = \frac1{BK} \sum_b \Bigl\{ \sum_{k\,\text{known}} \ell_k
        + \lambda_L \bigl\| y - \textstyle\sum_i a_i Y_i \bigr\|^2
        + \lambda_F \bigl\| f - \textstyle\sum_i b_i F_i \bigr\|^2 \Bigr\}

    with ℓ the logistic loss, f the features, y the ``asymmetric_sigmoid`` of the logits, and :math:`Y_i` that of atom i
    times G; where a label is known both are 1 or −1/c. ``matching_pursuit`` chooses the atoms, a and b, with weights
    proportional to the two λ, and never an image for itself; they are constants to the gradient. Unknown labels cost
    nothing but through y. An image without an atom has the first term only.

    The dictionary is a seeded sample of the training images. An atom holds the logits and features of the image in the
    last step that contained it, and cannot be chosen before. G starts from ``co_occurrence`` and has the learning rate
    of the head; negative values are set to 0 after every step.

    The features' term grows with the square of their length, and a network that starts from random weights can shorten
    its features instead of learning anything; give it ``lambda_features=0``. Where features are fixed it is a constant.

    Args:
        lambda_labels: :math:`\lambda_L`.
        lambda_features: :math:`\lambda_F`.
        asymmetry: c; an absent label is −1/c.
        atoms: how many a row may use.
        threshold: the correlation above which an atom is used.
        dictionary: how many images are in the dictionary; 256, or all where there are fewer, when not given.
        eps: added inside the logarithms of known labels.
        reduction: "mean", "sum" or "none"; the features' term lies on all K entries of an image in equal parts.
    """

    needs = frozenset({"index", "features"})
    shared_options = frozenset({"dictionary"})
    graph: nn.Parameter
    slot: Tensor
    seen: Tensor
    atom_labels: Tensor
    atom_logits: Tensor
    atom_features: Tensor

    def __init__(
        self,
        lambda_labels: Number = 1.0,
        lambda_features: Number = 0.5,
        asymmetry: Number = 2.0,
        atoms: Number = 3,
        threshold: Number = 1e-3,
        dictionary: int | None = None,
        eps: Number = 0.0,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction)
        self.lambda_labels = check_number("lambda_labels", lambda_labels, 0)
        self.lambda_features = check_number("lambda_features", lambda_features, 0)
        self.asymmetry = check_number("asymmetry", asymmetry, 0, above=True)
        self.atoms = check_integer("atoms", atoms, 1)
        self.threshold = check_number("threshold", threshold, 0, 1)
        self.eps = check_number("eps", eps, 0, 1)
        self.max_atoms = int(torch.as_tensor(atoms).max())
        self.dictionary = DICTIONARY if dictionary is None else int(check_integer("dictionary", dictionary, 1))

    def prepare(self, table: LabelTable, epochs: int = 10, seed: int = 0) -> None:
        """Draw the dictionary and create the graph; features are allocated when their number is known."""
        super().prepare(table, epochs, seed)
        self.require_known_states()
        device, classes = self.epoch_tensor.device, len(table.classes)
        size = 4 * 4 * math.prod((*self.heads, classes, classes))  # the graph, its gradient, Adam's two moments
        remedy = "Take fewer classes, or a method without a graph (iu, curriculum)."
        self.require_memory(size, f"learns a graph between {classes:,} classes", remedy)
        self.state_bytes += size
        rows = np.sort(numpy_generator(seed, "imcl").permutation(len(table))[: self.dictionary])
        slot = torch.full((len(table), 1), len(rows))
        slot[torch.from_numpy(rows), 0] = torch.arange(len(rows))
        self.graph = nn.Parameter(co_occurrence(table).expand(*self.heads, -1, -1).clone().to(device))
        self.register_buffer("slot", slot.to(device), persistent=False)
        self.register_buffer("atom_labels", table.batch(rows).to(device), persistent=False)
        self.register_buffer("seen", torch.zeros(*self.heads, len(rows), dtype=torch.bool, device=device))
        self.register_buffer("atom_logits", torch.zeros(*self.heads, len(rows), classes, device=device))
        self.register_buffer("atom_features", torch.zeros(*self.heads, len(rows), 0, device=device))
        self.state_bytes += self.atom_logits.nbytes + slot.nbytes

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        """Let the graph learn at the rate of the head."""
        self.prepared_table()
        return [{"params": [self.graph], "lr": lr}]

    def cost(self, logits: Tensor, labels: Tensor, index: Tensor | None, features: Tensor | None) -> Tensor:
        """Explain the batch by the dictionary."""
        slot = self.state_rows("slot", index)
        assert features is not None
        features = widen(features).to(logits.dtype)
        mine = soft_labels(asymmetric_sigmoid(logits, self.asymmetry), labels, self.asymmetry)
        theirs, their_features = self._dictionary(logits.dtype, features)
        weights = per_head(self.lambda_labels, logits), per_head(self.lambda_features, logits)
        total = (weights[0] + weights[1]).clamp(min=torch.finfo(logits.dtype).tiny)
        views = (
            View(mine.detach(), theirs.detach(), weights[0] / total),
            View(features.detach(), their_features, weights[1] / total),
        )
        allowed = self.seen[..., None, :] & (slot != torch.arange(theirs.shape[-2], device=slot.device))
        a, b, found = matching_pursuit(
            views, allowed, atoms=self.atoms, threshold=self.threshold, max_atoms=self.max_atoms
        )
        unlike = weights[0] * (mine - a @ theirs) ** 2
        strange = weights[1] * ((features - b @ their_features) ** 2).sum(dim=-1, keepdim=True) / logits.shape[-1]
        known = fused_mixture(logits, labels, Mixture(unknown=IGNORED), eps=self.eps)
        cost = self.reduce(known + found * (unlike + strange))
        return self.mark(cost, slot, logits, features)

    def _dictionary(self, dtype: torch.dtype, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the labels of all atoms, through the graph, ``(…, M, K)``, and their features, ``(…, M, D)``."""
        kept = self.atom_features.to(dtype)
        if not kept.shape[-1]:
            kept = features.new_zeros((*kept.shape[:-1], features.shape[-1]))
        if kept.shape[-1] != features.shape[-1]:
            raise InputError(f"'{self.name}' knows {kept.shape[-1]} features an image, not {features.shape[-1]}.")
        thought = asymmetric_sigmoid(self.atom_logits.to(dtype), self.asymmetry)
        told = soft_labels(thought, self.atom_labels, self.asymmetry) @ self.graph.to(dtype)
        return soft_labels(told, self.atom_labels, self.asymmetry), kept

    @torch.no_grad()
    def after_step(self) -> None:
        """Update the atoms that the step contained, in every process, and keep the graph ≥ 0."""
        super().after_step()
        self.graph.clamp_(min=0)

    def commit(self, *values: Tensor) -> None:
        """Store the logits and features of the dictionary's images."""
        slot, logits, features = (gather_rows(value, dim=-2) for value in values)
        if not self.atom_features.shape[-1]:
            self.atom_features = self.atom_features.new_zeros((*self.atom_features.shape[:-1], features.shape[-1]))
        if not len(slot):
            return
        here = (slot == torch.arange(self.seen.shape[-1], device=slot.device)).int()
        now, row = here.amax(dim=0) > 0, here.argmax(dim=0)
        for atoms, current in ((self.atom_logits, logits), (self.atom_features, features)):
            atoms.copy_(torch.where(now[:, None], current.index_select(-2, row).to(atoms.dtype), atoms))
        self.seen |= now

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        """Let a checkpoint say how many features there are, before the first batch does."""
        stored = state_dict.get(f"{prefix}atom_features")
        if isinstance(stored, Tensor) and self.table is not None:
            self.atom_features = self.atom_features.new_zeros((*self.atom_features.shape[:-1], stored.shape[-1]))
        super()._load_from_state_dict(state_dict, prefix, *arguments)
