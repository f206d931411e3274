"""What findings say."""

from __future__ import annotations

from labelgap.data import Dataset
from labelgap.labels.io.table_file import TableFile


def sentences(data: Dataset | TableFile) -> tuple[str, ...]:
    """Return the findings of a data set, or of a file of labels, as they are shown."""
    return tuple(map(str, data.findings))
