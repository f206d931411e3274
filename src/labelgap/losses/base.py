"""What an objective is: the cost of a batch, and how it revises labels, behind one contract.

A training loop calls the hooks in this order; an objective overrides those it needs::

    objective.prepare(table, epochs=10, seed=0)          # before the optimiser is built
    optimiser = Adam([..., *objective.parameter_groups(lr)])
    for epoch in 1 … epochs:
        objective.set_epoch(epoch)
        for batch:
            loss = objective(logits, labels, index, features) + objective.penalty(parameters)
            loss.backward(); optimiser.step(); objective.after_step()
        revisions = objective.end_epoch(scores)

A stateless objective needs only ``loss_fn(logits, labels)`` and drops into any loop.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from labelgap.core.errors import InputError
from labelgap.labels import LabelTable, Revisions
from labelgap.losses.mixture import Mixture
from labelgap.losses.option_checks import check_choice
from labelgap.losses.terms import Number, check_shapes, reduce, widen

__all__ = ["ElementwiseLoss", "Loss", "NEEDS", "ReducedLoss", "TrainingScores"]

NEEDS = frozenset({"index", "features", "scores", "penalty"})

TrainingScores = Callable[[], Iterator[tuple[Tensor, Tensor]]]
"""Gives ``(index, logits)`` batches of every training image once, in eval mode and without augmentation."""


class Loss(nn.Module, ABC):
    """The cost of a batch of logits under labels of three states. Abstract: a method is a final subclass.

    Attributes:
        needs: what the loop must supply out of "index", "features", "scores", "penalty".
        across_batch: whether the cost of an image depends on the others of its batch, so that the mean over two halves
            of a batch is not that of the whole.
        name: the name it was made under.
        epoch: the current epoch, counted from 1.
        state_bytes: memory of its per-image state once prepared.
    """

    needs: ClassVar[frozenset[str]] = frozenset()
    batch_dependent: bool = False

    def __init__(self) -> None:
        super().__init__()
        self.name = type(self).__name__
        self.epoch = 1
        self.state_bytes = 0
        self.register_buffer("clock", torch.ones((), dtype=torch.int64), persistent=False)

    clock: Tensor
    """The epoch as a tensor on the device, so that a compiled or captured step follows it."""

    def prepare(self, table: LabelTable, epochs: int = 10, seed: int = 0, heads: tuple[int, ...] = ()) -> None:
        """Learn N, K, the number of epochs and the known labels, before the optimiser is built.

        Args:
            table: the observed labels of the training images; ``index`` means its rows.
            epochs: how many will be trained.
            seed: of whatever the objective draws.
            heads: the leading axes, when many heads are trained at once.
        """
        if epochs < 1:
            raise InputError(f"epochs={epochs}: at least one is needed.")

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        """Return optimiser groups of what the objective itself learns; none by default."""
        return []

    def set_epoch(self, epoch: int) -> None:
        """Tell the epoch, counted from 1."""
        if epoch < 1:
            raise InputError(f"epoch {epoch}: epochs are counted from 1.")
        self.epoch = epoch
        self.clock.fill_(epoch)

    def forward(
        self, logits: Tensor, labels: Tensor, index: Tensor | None = None, features: Tensor | None = None
    ) -> Tensor:
        """Return the loss of a batch, of shape ``(…)``; changes no state.

        Args:
            logits: ``(…, B, K)``
            labels: ``(B, K)`` or ``(…, B, K)`` of PRESENT, ABSENT, UNKNOWN (or NaN): always what was observed.
            index: ``(B,)`` row numbers of the table, if ``needs`` says so.
            features: ``(B, D)``, if ``needs`` says so.
        """
        check_shapes(logits, labels)
        rows = logits.shape[-2]
        if index is None and "index" in self.needs:
            raise InputError(f"'{self.name}' keeps something per image: give the rows of the table, index=…")
        if features is None and "features" in self.needs:
            raise InputError(f"'{self.name}' looks at the features: give them, features=…")
        if index is not None and index.shape != (rows,):
            raise InputError(f"index has shape {tuple(index.shape)}: one row number for each of {rows} images.")
        if features is not None and (features.ndim < 2 or features.shape[-2] != rows):
            raise InputError(f"features have shape {tuple(features.shape)}: one row for each of {rows} images.")
        return self.cost(widen(logits), labels, index, features)

    @abstractmethod
    def cost(self, logits: Tensor, labels: Tensor, index: Tensor | None, features: Tensor | None) -> Tensor:
        """Return the loss of a batch that was checked and widened; the body of ``forward``."""

    @torch.no_grad()
    def modified(self, logits: Tensor, labels: Tensor, index: Tensor | None = None) -> Tensor:
        """Return which unknown entries the method treats otherwise than its rule for unknown labels, ``(…, B, K)``."""
        return torch.zeros_like(logits, dtype=torch.bool)

    def mixture(self, classes: int) -> Mixture | None:
        """Return the mixture that the entries' costs are, where the method is nothing else; None otherwise.

        Many heads of all such methods are evaluated at once (the linear engine does); ``cost`` stays what it is.
        """
        return None

    def modified_count(self, labels: Tensor) -> Tensor | None:
        """Return how many unknown entries of a batch are ``modified``, ``(…)``, where those are its largest logits.

        None where it is otherwise decided which are.
        """
        return None

    def slopes(
        self, logits: Tensor, labels: Tensor, index: Tensor | None = None, features: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the loss ``(…)`` and its derivative in the logits ``(…, B, K)``, both without a graph.

        That of what the objective learns is left in its parameters' ``grad``. As in ``cost``, nothing is checked.
        """
        leaf, learned = widen(logits).detach().requires_grad_(), list(self.parameters())
        with torch.enable_grad():
            loss = self.cost(leaf, labels, index, features)
            slope, *gradients = torch.autograd.grad(loss.sum(), [leaf, *learned])
        for parameter, gradient in zip(learned, gradients, strict=True):
            parameter.grad = gradient
        return loss.detach(), slope

    def after_step(self) -> None:
        """Commit what the last forward marked; called once the optimiser has stepped."""

    def end_epoch(self, scores: TrainingScores | None = None) -> Revisions:
        """Revise labels at the end of an epoch and return what changed in it.

        Args:
            scores: None, or a callable that gives the logits of every training image, over all processes.
        """
        return Revisions()

    def revisions_of(self, head: tuple[int, ...]) -> Revisions:
        """Return what the last ``end_epoch`` revised for one of many heads, where the method revises labels."""
        return Revisions()

    def penalty(self, parameters: Iterable[Tensor]) -> Number:
        """Return what the weights themselves cost; 0 unless the method says otherwise."""
        return 0.0

    def hold(self, **numbers: Number) -> None:
        """Keep number options as attributes; tensors, one value per head, move with the module."""
        for name, value in numbers.items():
            if hasattr(self, name):
                delattr(self, name)
            if isinstance(value, Tensor):
                self.register_buffer(name, value.detach().clone(), persistent=False)
            else:
                setattr(self, name, value)

    def extra_repr(self) -> str:
        """Show the name the objective was made under."""
        return self.name


class ReducedLoss(Loss, ABC):
    """An objective with a cost per entry that is reduced at the end. Abstract.

    Args:
        reduction: "mean" over all entries of the global batch, "sum", or "none" for the ``(…, B, K)`` matrix.
    """

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        self.reduction = check_choice("reduction", reduction, ("mean", "sum", "none"))

    def reduced(self, entries: Tensor) -> Tensor:
        """Bring the costs of entries ``(…, B, K)`` to what was asked for."""
        return reduce(entries, self.reduction)


class ElementwiseLoss(ReducedLoss, ABC):
    """An objective whose cost per entry follows from logits and labels alone. Abstract: a method says what it is.

    Example:
        >>> class Squares(ElementwiseLoss):
        ...     def entries(self, logits, labels):
        ...         return (logits - labels) ** 2
        >>> Squares()(torch.tensor([[3.0, 0.0]]), torch.tensor([[1, 0]]))
        tensor(2.)
    """

    @abstractmethod
    def entries(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the cost of every entry, ``(…, B, K)``."""

    def cost(self, logits: Tensor, labels: Tensor, index: Tensor | None, features: Tensor | None) -> Tensor:
        """Reduce the entries."""
        return self.reduced(self.entries(logits, labels))
