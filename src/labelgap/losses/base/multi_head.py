"""What a loss offers to the linear engine, which trains many heads at once, on top of the contract of ``Loss``.

A loss of your own does not need it: the engine then evaluates it head by head. A loss that inherits from ``MultiHead``
accepts logits ``(…, B, K)`` with the axes of ``heads`` in front, number options as tensors of shape ``(…)``, and keeps
its per-image state as ``(…, N, K)``.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from labelgap.labels import Revisions
from labelgap.losses.base.mixture import Mixture


class MultiHead:
    """The protocol of the linear engine; a mixin of ``Loss``.

    Attributes:
        heads: the leading axes, ``()`` for one head; the engine sets it before ``prepare``.
        shared_options: number options that cannot be tensors; heads that differ in one do not share a loss.

    Example:
        >>> MultiHead().mixture(classes=20) is None
        True
    """

    heads: tuple[int, ...] = ()
    shared_options: ClassVar[frozenset[str]] = frozenset()

    def mixture(self, classes: int) -> Mixture | None:
        """Return the mixture that the costs of the entries are, where the method is nothing else; None otherwise.

        The engine evaluates the heads of all such methods in one kernel.
        """
        return None

    def modified_count(self, labels: Tensor) -> Tensor | None:
        """Return how many unknown entries of a batch are ``modified``, ``(…)``, where those are its largest logits.

        None where another rule selects them.
        """
        return None

    def revisions_of(self, head: tuple[int, ...]) -> Revisions:
        """Return what the last ``end_epoch`` revised for one of many heads, where the method revises labels."""
        return Revisions()
