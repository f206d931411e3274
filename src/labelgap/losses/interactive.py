"""Interactive learning with partial labels (Huynh & Elhamifar, "Interactive Multi-Label CNN Learning with Partial
Labels", CVPR 2020).

Similar images have similar labels. The features of each image are written as a combination of a few images of a
dictionary, and so are its labels, the unknown ones as the network predicts them; the residual is a cost. A learned
graph G between the classes fills gaps in the labels of the dictionary first. As the network changes, so do the images
it is compared with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from labelgap.core.distributed import gather_rows
from labelgap.core.errors import InputError
from labelgap.core.seeds import numpy_generator
from labelgap.labels import LabelTable
from labelgap.labels.codes import PRESENT
from labelgap.losses.base.fused import fused_mixture, over_batch
from labelgap.losses.base.mixture import IGNORED, Mixture
from labelgap.losses.base.state import PerImageState
from labelgap.losses.base.terms import (
    Number,
    check_integer,
    check_number,
    host_array,
    per_head,
    states,
    widen,
    widest_float,
)

DICTIONARY = 256


def asymmetric_sigmoid(logits: Tensor, asymmetry: Number = 2.0) -> Tensor:
    r"""Turn logits into soft labels between −1/c and 1, with a logit of 0 at 0.

    .. math:: y = \frac{e^v - e^{-v}/c}{e^v + e^{-v}} = \left(1 + \tfrac1c\right) \sigma(2v) - \tfrac1c,
        \qquad v = x + \tfrac12 \ln \tfrac1c

    Example:
        >>> asymmetric_sigmoid(torch.tensor([[-9.0, 0.0, 9.0]]))
        tensor([[-0.5000,  0.0000,  1.0000]])
    """
    c = over_batch(asymmetry, logits)
    shift = c.log() if isinstance(c, Tensor) else math.log(c)
    return (1 + 1 / c) * torch.sigmoid(2 * logits - shift) - 1 / c


def soft_labels(values: Tensor, labels: Tensor, asymmetry: Number = 2.0) -> Tensor:
    """Replace soft labels ``(…, B, K)`` where the label is known: 1 where present, −1/c where absent."""
    present, _, unknown = states(labels)
    known = torch.where(present, values.new_ones(()), -1 / over_batch(asymmetry, values))
    return torch.where(unknown, values, known)


def co_occurrence(table: LabelTable) -> Tensor:
    """Return the initial graph, ``(K, K)``: the share of class j among the images of class i.

    It counts the images where i is known to be present and j is known; 1 for i = j, 0 where there is no such image.
    Every column is divided by its sum.
    """
    from scipy.sparse import csr_array  # it takes a fifth of a second

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
SHORT = 1e-12
"""A shorter vector has no direction."""


View = tuple[Tensor, Tensor, Tensor]
"""Vectors to represent, ``(…, B, P)``, the atoms of the dictionary, ``(…, M, P)``, and the weight, ``(…, 1, 1)``."""


@torch.no_grad()
def matching_pursuit(
    views: Sequence[View], allowed: Tensor, *, atoms: Number, threshold: Number, max_atoms: int
) -> tuple[Tensor, ...]:
    r"""Choose the same few atoms in all views by orthogonal matching pursuit, and combine them in each.

    Each step adds the atom with the largest :math:`\sum_v w_v |\langle r_v, d_v \rangle| / (\|t_v\| \|d_v\|)` (t a
    row's target, r its residual), the first of equal ones, until that sum is not above the threshold. The coefficients
    of each view are those of least squares, of which a dependent atom has 0.

    ``allowed`` ``(…, B, M)`` says which row may use which atom, ``atoms`` how many (at most ``max_atoms``). Returns the
    coefficients of every view, ``(…, B, M)``, and which rows found any atom, ``(…, B, 1)``.

    Residuals are never computed: all that the steps need of them, and of what Gram–Schmidt makes of the atoms, are the
    inner products with the atoms, (views, …, B, M).
    """
    wide = widest_float(allowed.device)
    dependent = max(DEPENDENT**2, 16 * torch.finfo(wide).eps)  # squares of lengths are rounded
    spaces = [_space(target.to(wide), dictionary.to(wide), allowed.shape, max_atoms) for target, dictionary, _ in views]
    correlations, scale = (torch.stack(parts) for parts in zip(*(space[:2] for space in spaces), strict=True))
    weights = torch.stack([weight.to(wide).expand(*allowed.shape[:-2], 1, 1) for *_, weight in views])
    threshold, most = per_head(threshold, correlations), per_head(atoms, correlations)
    found, size = torch.zeros_like(allowed[..., :1]), allowed.shape[-1]
    # beside the products with the atoms is of which atoms it is made: of the residual, minus the coefficients
    residual = torch.cat([correlations, torch.zeros_like(correlations)], dim=-1)
    basis: list[Tensor] = []
    for step in range(max_atoms):
        score = torch.where(allowed, (weights * residual[..., :size].abs()).sum(dim=0), -torch.inf)
        best = score.amax(dim=-1, keepdim=True)
        place = (score >= best - EQUAL).int().argmax(dim=-1, keepdim=True)
        taken = (best > threshold) & (most > step)
        found, chosen = found | taken, torch.zeros_like(score).scatter_(-1, place, 1.0)
        allowed = allowed & ~(taken & (chosen > 0))
        places = place.expand(*residual.shape[:-1], 1)
        vector = torch.cat([torch.stack([space[2](place) for space in spaces]), chosen.expand_as(correlations)], dim=-1)
        for other in basis:
            vector = vector - other.gather(-1, places) * other
        square = vector.gather(-1, places)
        factor = torch.where(taken & (square > dependent), square.rsqrt(), 0.0)
        vector = vector * factor
        residual = residual - residual.gather(-1, places) * factor * vector
        basis.append(vector)
    return *(-residual[..., size:] * scale).unbind(), found


def _space(
    target: Tensor, atoms: Tensor, shape: torch.Size, max_atoms: int
) -> tuple[Tensor, Tensor, Callable[[Tensor], Tensor]]:
    """Return the cosines of targets and atoms, the ratio of their lengths, and what looks up the cosines of atoms.

    All are ``(…, B, M)``, the last for one atom of every row; few rows look up less than all pairs of atoms.
    """
    length, lengths = (torch.linalg.vector_norm(values, dim=-1, keepdim=True) for values in (target, atoms))
    inverse, heads = lengths.clamp(min=SHORT).reciprocal(), shape[:-2]
    known, transposed = inverse.mT, atoms.mT
    everything = shape[-2] * max_atoms >= shape[-1]
    table = (atoms @ transposed * inverse * known if everything else atoms).expand(*heads, -1, -1)

    def cosines(place: Tensor) -> Tensor:
        rows = table.gather(-2, place.expand(*shape[:-1], table.shape[-1]))
        if everything:
            return rows
        found: Tensor = rows @ transposed * known * known.expand(shape).gather(-1, place)
        return found

    cosine = target @ transposed * known * length.clamp(min=SHORT).reciprocal()
    return cosine.expand(shape), (length * known).expand(shape), cosines


class _Product(torch.autograd.Function):
    """Some rows of the product of labels and graph, which is known, and their gradient in the graph."""

    @staticmethod
    def forward(ctx: Any, product: Tensor, rows: Tensor, graph: Tensor) -> Tensor:
        ctx.save_for_backward(rows)
        return product.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, Tensor]:
        """Multiply with the labels."""
        (rows,) = ctx.saved_tensors
        return None, None, rows.mT @ gradients[0]


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
        graph = co_occurrence(table).to(device).expand(*self.heads, -1, -1)
        self.graph = nn.Parameter(graph.clone(memory_format=torch.contiguous_format))  # as its gradient is
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
        graph = self.graph.to(logits.dtype)
        thought, their_features = self._dictionary(logits.dtype, features)
        on_host = host_array(slot) is not None
        told = thought @ (graph.detach() if on_host else graph)
        theirs = soft_labels(told, self.atom_labels, self.asymmetry)
        weights = per_head(self.lambda_labels, logits), per_head(self.lambda_features, logits)
        total = (weights[0] + weights[1]).clamp(min=torch.finfo(logits.dtype).tiny)
        views = (
            (mine.detach(), theirs.detach(), weights[0] / total),
            (features.detach(), their_features, weights[1] / total),
        )
        allowed = self.seen[..., None, :] & (slot != torch.arange(theirs.shape[-2], device=slot.device))
        *coefficients, found = matching_pursuit(
            views, allowed, atoms=self.atoms, threshold=self.threshold, max_atoms=self.max_atoms
        )
        a, b = (part.to(logits.dtype) for part in coefficients)
        if on_host:  # only of atoms that were chosen the graph has a gradient
            chosen = torch.from_numpy(np.flatnonzero(a.numpy().reshape(-1, a.shape[-1]).any(axis=0)))
            a = a.index_select(-1, chosen)
            rows = told.index_select(-2, chosen), thought.index_select(-2, chosen)
            told = _Product.apply(*rows, graph)  # type: ignore[no-untyped-call]
            theirs = soft_labels(told, self.atom_labels[chosen], self.asymmetry)
        unlike = weights[0] * (mine - a @ theirs) ** 2
        strange = weights[1] * ((features - b @ their_features) ** 2).sum(dim=-1, keepdim=True) / logits.shape[-1]
        known = fused_mixture(logits, labels, Mixture(unknown=IGNORED), eps=self.eps, reduction=self.reduction)
        cost = known + self.reduce(found * (unlike + strange))
        return self.mark(cost, slot, logits, features)

    def _dictionary(self, dtype: torch.dtype, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the labels of all atoms, before the graph, ``(…, M, K)``, and their features, ``(…, M, D)``."""
        kept = self.atom_features.to(dtype)
        if not kept.shape[-1]:
            kept = features.new_zeros((*kept.shape[:-1], features.shape[-1]))
        if kept.shape[-1] != features.shape[-1]:
            raise InputError(f"'{self.name}' knows {kept.shape[-1]} features an image, not {features.shape[-1]}.")
        thought = asymmetric_sigmoid(self.atom_logits.to(dtype), self.asymmetry)
        return soft_labels(thought, self.atom_labels, self.asymmetry), kept

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
