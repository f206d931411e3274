"""The labels of all heads, where the features are: every different table once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from labelgap.core.errors import InputError
from labelgap.labels import LabelTable
from labelgap.losses.base.per_image_state import free_memory

__all__ = ["LabelTables"]

MEMORY_SHARE = 4
"""Tables are laid out, a byte for each image and class, where they fit into this part of the free memory."""


class LabelTables:
    """Different label tables of the same images and classes.

    Args:
        tables: one for every head; equal ones are kept once.
        device: where the labels are wanted.

    Attributes:
        number: for every head which table is its own.
        dense: ``(T, N, K)`` int8; None where that is too large and labels are looked up in the tables themselves.
    """

    def __init__(self, tables: Sequence[LabelTable], device: torch.device) -> None:
        self.different: list[LabelTable] = []
        self.number = [self._number(table) for table in tables]
        self.device = device
        images, classes = self.different[0].shape
        free = free_memory(device)
        fits = free is None or len(self.different) * images * classes <= free // MEMORY_SHARE
        stacked = [torch.from_numpy(table.to_dense()) for table in self.different] if fits else None
        self.dense = None if stacked is None else torch.stack(stacked).to(device)

    def rows(self, index: Tensor) -> Tensor:
        """Return the codes of some rows, ``(T, B, K)`` int8."""
        if self.dense is not None:
            return self.dense.index_select(1, index)
        return torch.stack([table.batch(index) for table in self.different]).to(self.device)

    def _number(self, table: LabelTable) -> int:
        for number, other in enumerate(self.different):
            if table is other or table == other:
                return number
        if self.different:
            first = self.different[0]
            if table.classes != first.classes or table.images != first.images:
                raise InputError(
                    "heads that are trained together see labels of the same images and classes, in the same order; "
                    f"one has {table!r}, another {first!r}."
                )
        self.different.append(table)
        return len(self.different) - 1
