"""Images by their addresses, a path or a URL: what an audit of images in a bucket writes for the review."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from labelgap.core.findings import Note
from labelgap.data.addresses import EncodedImages
from labelgap.data.dataset import Dataset, Split
from labelgap.data.findings import count_labels
from labelgap.labels import LabelTable

ADDRESSES: Final = "addresses"


def load_addresses(path: str | os.PathLike[str]) -> Dataset:
    """Read a table whose images are named by their addresses; they are fetched when they are needed.

    Args:
        path: what ``LabelTable.to_parquet`` has written.
    """
    labels = LabelTable.from_parquet(path)
    findings = (Note("images by their addresses, fetched when they are needed", "images"), count_labels([labels]))
    return Dataset(Path(path).name, Split("train", EncodedImages(labels.images), labels), None, None, findings=findings)
