"""The forms of Y that an estimator accepts, as a label table."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from labelgap.core.errors import InputError
from labelgap.labels import LabelTable


def as_label_table(labels: Any, rows: int | None = None, what: str = "Y") -> LabelTable:
    """Return labels as a table.

    Args:
        labels: a matrix of 1, 0 and −1 or NaN; a ``DataFrame`` of these; a scipy sparse matrix, in which what is not
            stored is unknown; or a ``LabelTable``.
        rows: the required number of rows.
        what: the name in messages.

    Example:
        >>> as_label_table(sparse.csr_array(([1, 0], ([0, 1], [0, 2])), shape=(2, 3))).to_dense()
        array([[ 1, -1, -1],
               [-1, -1,  0]], dtype=int8)
    """
    if labels is None:
        raise InputError(f"learning from labels requires y to be passed, but the target y is None: give {what}.")
    if isinstance(labels, LabelTable):
        table = labels
    elif sparse.issparse(labels):
        table = _from_sparse(labels, what)
    else:
        table = _from_dense(labels, what)
    if rows is not None and len(table) != rows:
        raise InputError(f"{what} has {len(table):,} rows of labels for {rows:,} rows of features.")
    return table


def class_names(labels: Any, classes: int) -> NDArray[Any]:
    """Return the class names of a table or the columns of a ``DataFrame``; else numbers."""
    if isinstance(labels, LabelTable):
        return np.array(labels.classes, dtype=object)
    if hasattr(labels, "columns"):
        return np.array(list(labels.columns), dtype=object)
    return np.arange(classes)


def _from_dense(labels: Any, what: str) -> LabelTable:
    names = [str(name) for name in labels.columns] if hasattr(labels, "columns") else None
    values = labels.to_numpy() if hasattr(labels, "to_numpy") else labels
    values = np.asarray(values)
    if values.dtype == object:
        try:
            values = np.asarray([[np.nan if _missing(cell) else float(cell) for cell in row] for row in values])
        except (TypeError, ValueError):
            raise InputError(
                f"{what} holds something that is no label: it is 1 (present), 0 (absent), −1 or NaN (unknown)."
            ) from None
    if values.ndim != 2:
        raise InputError(
            f"{what} has shape {values.shape}: a matrix is needed, a row for each row of X and a column per class; "
            "for a single class use Y.reshape(-1, 1)."
        )
    try:
        return LabelTable.from_dense(values, names)
    except InputError as error:
        more = "; continuous values are no labels." if values.dtype.kind == "f" else "."
        raise InputError(f"{what}: {str(error).removesuffix('.')}{more}") from None


def _missing(cell: Any) -> bool:
    """Whether a cell is None, NaN or pandas' NA, which is equal to nothing."""
    return cell is None or type(cell).__name__ == "NAType" or bool(cell != cell)


def _from_sparse(labels: Any, what: str) -> LabelTable:
    entries = labels.tocoo()
    if entries.ndim != 2:
        raise InputError(f"{what} has shape {entries.shape}: a matrix is needed.")
    names = [str(number) for number in range(entries.shape[1])]
    try:
        return LabelTable.from_entries(entries.row, entries.col, entries.data, names, entries.shape[0])
    except InputError as error:
        raise InputError(f"{what}: {error}") from None
