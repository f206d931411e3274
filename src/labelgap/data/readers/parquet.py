"""Your own photos and tags in a Parquet file, read by the same rules as a CSV."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from labelgap.data.dataset import Dataset
from labelgap.data.readers.image_table import ImageOptions, read_image_table
from labelgap.labels.io.parquet import read_parquet
from labelgap.labels.io.table_file import TableOptions


def load_parquet(
    path: str | os.PathLike[str],
    images: str | os.PathLike[str] | None = None,
    *,
    val: str | os.PathLike[str] | None = None,
    test: str | os.PathLike[str] | None = None,
    zeros: str = "absent",
    unlisted: str = "unknown",
    separator: str | None = None,
    classes: Sequence[str] | None = None,
    ignore_columns: Sequence[str] = (),
    rename: Mapping[str, str] | None = None,
    aliases: str | os.PathLike[str] | None = None,
    parents: str | os.PathLike[str] | None = None,
    on_bad_image: str = "error",
    duplicates: str = "near",
    allow_leaks: bool = False,
    seed: int = 0,
) -> Dataset:
    """Read a Parquet file of labels and find its images, or raise one error with everything that is wrong.

    Wide columns hold booleans, numbers or texts; lists are Parquet's own (``present``, ``absent``), or texts with a
    separator. What ``LabelTable.to_parquet`` wrote keeps the order of its classes. All options are those of
    ``load_csv``; rows are counted from 1.
    """
    options = TableOptions(zeros, unlisted, separator, classes, ignore_columns, rename or {}, aliases, parents)
    return read_image_table(
        path,
        images,
        lambda file, finder: read_parquet(file, options, check_image=finder),
        ImageOptions(on_bad_image, duplicates, allow_leaks),
        {"val": val, "test": test},
    )
