"""The known labels of a table as compressed rows, and what can be read from them.

``LabelTable`` adds how tables are made, and the tables that follow from one.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from labelgap.core.errors import InputError
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.labels.sparse import (
    LabelCounts,
    as_indices,
    as_row_indices,
    entries_of_rows,
    locate_entries,
    unique_names,
)


class KnownLabels(ABC):
    """Known labels of N images and K classes, immutable. Abstract; ``LabelTable`` has the arguments."""

    classes: tuple[str, ...]
    images: tuple[str, ...]
    __slots__ = ("classes", "columns", "images", "starts", "values")

    def __init__(
        self,
        starts: NDArray[np.int64],
        columns: NDArray[np.int32],
        values: NDArray[np.int8],
        classes: Sequence[str],
        images: Sequence[str] | None = None,
    ) -> None:
        self.starts = np.array(starts, dtype=np.int64)  # copies: the caller may write to his arrays
        self.columns = np.array(columns, dtype=np.int32)
        self.values = np.array(values, dtype=np.int8)
        self.classes = unique_names(classes, "class")
        self.images = unique_names(range(len(starts) - 1) if images is None else images, "image")
        if len(self.images) != len(self):
            raise InputError(f"{len(self.images)} image names were given for {len(self)} rows of labels.")
        if not len(self.columns) == len(self.values) == self.starts[-1]:
            raise InputError("the known labels are not as many as the starts of the rows say.")
        for array in (self.starts, self.columns, self.values):
            array.flags.writeable = False

    def to_dense(self) -> NDArray[np.int8]:
        """Return the (N, K) matrix of codes."""
        dense = np.full(self.shape, UNKNOWN, dtype=np.int8)
        dense[self.rows, self.columns] = self.values
        return dense

    def batch(self, rows: ArrayLike) -> torch.Tensor:
        """Return the observed codes of some rows as a (B, K) int8 tensor.

        Example:
            >>> from labelgap.labels import LabelTable
            >>> LabelTable.from_dense([[1, 0], [-1, 1]]).batch([1])
            tensor([[-1,  1]], dtype=torch.int8)
        """
        index = as_row_indices(rows, len(self))
        codes = np.full((len(index), len(self.classes)), UNKNOWN, dtype=np.int8)
        entries, lengths, _ = entries_of_rows(self.starts, index)
        codes[np.repeat(np.arange(len(index)), lengths), self.columns[entries]] = self.values[entries]
        return torch.from_numpy(codes)

    def codes_at(self, rows: ArrayLike, columns: ArrayLike) -> NDArray[np.int8]:
        """Return the codes ``(P,)`` of single labels, without the dense matrix.

        Example:
            >>> from labelgap.labels import LabelTable
            >>> LabelTable.from_dense([[1, 0], [-1, 1]]).codes_at([1, 0, 1], [0, 1, 1])
            array([-1,  0,  1], dtype=int8)
        """
        row, column = as_indices(rows, "row", len(self)), as_indices(columns, "class number", len(self.classes))
        if len(row) != len(column):
            raise InputError(f"{len(row)} rows and {len(column)} class numbers: one of each for a label.")
        entries, known = locate_entries(self.starts, self.columns, row, column, len(self.classes))
        codes = np.full(len(row), UNKNOWN, dtype=np.int8)
        codes[known] = self.values[entries[known]]
        return codes

    def counts(self) -> LabelCounts:
        """Count present, absent and unknown labels per class."""
        present = np.bincount(self.columns[self.values == PRESENT], minlength=len(self.classes))
        absent = np.bincount(self.columns[self.values == ABSENT], minlength=len(self.classes))
        return LabelCounts(present, absent, len(self) - present - absent)

    @property
    def rows(self) -> NDArray[np.int64]:
        """Row number of every known label."""
        return np.repeat(np.arange(len(self), dtype=np.int64), np.diff(self.starts))

    @property
    def shape(self) -> tuple[int, int]:
        """Images, classes."""
        return len(self), len(self.classes)

    @property
    def complete(self) -> bool:
        """Whether no label is unknown."""
        return len(self.values) == len(self) * len(self.classes)

    @property
    def nbytes(self) -> int:
        """Memory of the labels, without the names."""
        return self.starts.nbytes + self.columns.nbytes + self.values.nbytes

    def __len__(self) -> int:
        return len(self.starts) - 1
