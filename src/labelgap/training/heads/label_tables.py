"""The labels of all heads on the device, each distinct table once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from labelgap.core.errors import InputError
from labelgap.labels import LabelTable
from labelgap.losses.base.state import free_memory

MEMORY_SHARE = 4
"""Tables are dense, a byte per image and class, where they fit into this fraction of the free memory."""


class LabelTables:
    """Distinct label tables of the same images and classes.

    Args:
        tables: one for every head; equal ones are stored once.
        device: of the labels.
        parts: for every head which images it sees; those of one part must be the same. One part when empty.

    Attributes:
        number: for every head the number of its table.
        dense: ``(T, N, K)`` int8; None where that is too large and labels are read from the sparse tables.
    """

    def __init__(self, tables: Sequence[LabelTable], device: torch.device, parts: Sequence[int] = ()) -> None:
        self.distinct: list[LabelTable] = []
        self.parts: list[int] = []
        self.number = [
            self._number(table, part) for table, part in zip(tables, parts or [0] * len(tables), strict=True)
        ]
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

    def _number(self, table: LabelTable, part: int) -> int:
        for number, other in enumerate(self.distinct):
            if part == self.parts[number] and (table is other or table == other):
                return number
        if self.distinct:
            first = self.distinct[self.parts.index(part) if part in self.parts else 0]
            same = table.images == first.images if part in self.parts else len(table) == len(first)
            if table.classes != first.classes or not same:
                raise InputError(
                    "heads that are trained together need labels of the same images and classes, in the same order; "
                    f"one has {table!r}, another {first!r}."
                )
        self.distinct.append(table)
        self.parts.append(part)
        return len(self.distinct) - 1
