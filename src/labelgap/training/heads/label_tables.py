"""The labels of all heads on the device, each distinct table once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from labelgap.core.errors import InputError
from labelgap.labels import LabelTable
from labelgap.losses.base.per_image_state import free_memory

__all__ = ["LabelTables"]

MEMORY_SHARE = 4
"""Tables are dense, a byte per image and class, where they fit into this fraction of the free memory."""


class LabelTables:
    """Distinct label tables of the same images and classes.

    Args:
        tables: one for every head; equal ones are stored once.
        device: of the labels.

    Attributes:
        number: for every head the number of its table.
        dense: ``(T, N, K)`` int8; None where that is too large and labels are read from the sparse tables.
    """

    def __init__(self, tables: Sequence[LabelTable], device: torch.device) -> None:
        self.distinct: list[LabelTable] = []
        self.number = [self._number(table) for table in tables]
        self.device = device
        images, classes = self.distinct[0].shape
        free = free_memory(device)
        fits = free is None or len(self.distinct) * images * classes <= free // MEMORY_SHARE
        stacked = [torch.from_numpy(table.to_dense()) for table in self.distinct] if fits else None
        self.dense = None if stacked is None else torch.stack(stacked).to(device)

    def rows(self, index: Tensor) -> Tensor:
        """Return the codes of some rows, ``(T, B, K)`` int8."""
        if self.dense is not None:
            return self.dense.index_select(1, index)
        return torch.stack([table.batch(index) for table in self.distinct]).to(self.device)

    def _number(self, table: LabelTable) -> int:
        for number, other in enumerate(self.distinct):
            if table is other or table == other:
                return number
        if self.distinct:
            first = self.distinct[0]
            if table.classes != first.classes or table.images != first.images:
                raise InputError(
                    "heads that are trained together need labels of the same images and classes, in the same order; "
                    f"one has {table!r}, another {first!r}."
                )
        self.distinct.append(table)
        return len(self.distinct) - 1
