"""The numbers behind a figure: named columns of equal length, and their CSV text."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from labelgap.reporting.formatting import single_line
from labelgap.studies.study import csv_text

MAX_LINK: Final = 60_000
Columns = Mapping[str, Sequence[Any] | NDArray[Any]]
"""The columns of a table by name, all of the same length."""


class FigureData:
    r"""A checked table of numbers and names; a value that is not known (None, NaN) is an empty cell.

    Args:
        columns: name → ``(R,)`` values: numbers, texts, booleans or None.

    Example:
        >>> data = FigureData({"epoch": [1, 2], "loss": [0.5, float("nan")]})
        >>> len(data), data.csv
        (2, 'epoch,loss\n1,0.5\n2,\n')
    """

    def __init__(self, columns: Columns) -> None:
        lengths = {name: len(values) for name, values in columns.items()}
        if not lengths or len(set(lengths.values())) > 1 or not all(lengths):
            raise ValueError(f"the columns of a figure need names and one length, but are {lengths}")
        self.names = [single_line(name) for name in columns]
        self._columns = [values.tolist() if isinstance(values, np.ndarray) else values for values in columns.values()]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._columns[0])

    @property
    def rows(self) -> list[list[Any]]:
        """The cells of every row, as a CSV file has them."""
        return [[_cell(value) for value in row] for row in zip(*self._columns, strict=True)]

    @property
    def csv(self) -> str:
        """The table as CSV text with a header."""
        return csv_text(self.names, self.rows)

    @property
    def link(self) -> str:
        """The CSV text as the address of a download; "" where it is longer than ``MAX_LINK`` bytes."""
        text = self.csv.encode()
        return f"data:text/csv;charset=utf-8;base64,{b64encode(text).decode()}" if len(text) <= MAX_LINK else ""


def stack_columns(key: str, parts: Mapping[str, Columns]) -> dict[str, list[Any]]:
    """Put the columns of several series below each other, with the name of the series in a first column.

    A column that a series lacks is empty there.

    Example:
        >>> stack_columns("method", {"an": {"epoch": [1, 2]}, "role": {"epoch": [1]}})
        {'method': ['an', 'an', 'role'], 'epoch': [1, 2, 1]}
    """
    names = dict.fromkeys(name for columns in parts.values() for name in columns)
    stacked: dict[str, list[Any]] = {key: [], **{name: [] for name in names}}
    for label, columns in parts.items():
        length = len(next(iter(columns.values()), ()))
        stacked[key] += [label] * length
        for name in names:
            stacked[name] += list(columns.get(name, [None] * length))
    return stacked


def _cell(value: Any) -> Any:
    """Return a number with eight significant digits, a text on one line, or "" for what is not known."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or (isinstance(value, float) and not np.isfinite(value)):
        return ""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float):
        return float(f"{value:.8g}")
    return value if isinstance(value, int) else single_line(str(value))
