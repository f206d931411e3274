"""What people labeled in other tools: exports of CVAT and Label Studio, and a live data set of FiftyOne."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Final

import numpy as np

from labelgap.core.findings import Note
from labelgap.data.dataset import Dataset
from labelgap.data.readers.image_paths import ImageFinder
from labelgap.data.readers.table import ImageOptions, build_dataset, read_image_table
from labelgap.data.writers.cvat import read_cvat
from labelgap.data.writers.exchange import ExchangeTable
from labelgap.data.writers.fiftyone import live_name, read_live_fiftyone
from labelgap.data.writers.label_studio import read_label_studio
from labelgap.labels.io.classes import similar_class_names
from labelgap.labels.io.table_file import ProblemList, TableFile, check_choice

_START: Final = 1 << 16


def load_annotations(
    path: str | os.PathLike[str],
    images: str | os.PathLike[str] | None = None,
    *,
    unlisted: str = "unknown",
    on_bad_image: str = "error",
    duplicates: str = "near",
    allow_leaks: bool = False,
) -> Dataset:
    """Read an export of CVAT, "CVAT for images 1.1" (``.xml``), or of a Label Studio project, as JSON.

    Args:
        path: the file. What is chosen, or drawn as a box or another shape, is present; absent is a choice of a list
            called ``absent``, or a tag whose attribute ``state`` is ``absent``.
        images: the folder that the names of the images are relative to; the folder of the file when not given.
        unlisted: the state of a class that nobody chose: "unknown", or "absent" where annotators saw every choice.
            Nothing is known of a task of Label Studio without an annotation.
        on_bad_image: "error" names all images that cannot be read, "skip" leaves them out.
        duplicates: which copies of images are searched for: "near", "exact" or "off".
        allow_leaks: whether copies of an image may be in two splits.
    """
    check_choice("unlisted", unlisted, ("unknown", "absent"))
    unit, read = ("image", read_cvat) if Path(path).suffix.lower() == ".xml" else ("task", read_label_studio)

    def read_file(file: Path, finder: ImageFinder) -> TableFile:
        whole = _table_file(file, read(file, unlisted), unlisted, unit)
        problems = ProblemList(file, unit)
        problems.fixable = False
        for number, name in enumerate(whole.table.images, start=1):
            if (problem := finder(name, number)) is not None:
                problems.add(number, problem)
        problems.refuse()
        return whole

    return read_image_table(path, images, read_file, ImageOptions(on_bad_image, duplicates, allow_leaks))


def load_live_fiftyone(
    samples: Any, *, field: str | None = None, unlisted: str = "unknown", duplicates: str = "near"
) -> Dataset:
    """Read a live ``fiftyone.Dataset`` or a view of one; tags called train, val and test are its splits.

    Args:
        samples: the data set.
        field: the field of labels; ``positive_labels`` and ``negative_labels`` where they exist, else the only one.
        unlisted: the state of a class that a sample with a value in the field does not list: "unknown" or "absent".
        duplicates: which copies of images are searched for: "near", "exact" or "off".
    """
    check_choice("unlisted", unlisted, ("unknown", "absent"))
    root, exchange = read_live_fiftyone(samples, field, unlisted)
    file = _table_file(Path(live_name(samples)), exchange, unlisted, "sample")
    return build_dataset(file, root, {}, {}, ImageOptions(duplicates=duplicates), [])


def is_annotation_file(path: Path) -> bool:
    """Return whether a file is an export of CVAT, or a list of tasks of Label Studio."""
    if not path.is_file() or path.suffix.lower() not in (".xml", ".json"):
        return False
    with path.open("rb") as file:
        start = file.read(_START)
    return b"<annotations>" in start or re.match(rb'\s*\[\s*\{[^\0]*"data"\s*:\s*\{', start) is not None


def _table_file(path: Path, exchange: ExchangeTable, unlisted: str, unit: str) -> TableFile:
    table = exchange.table
    rule = Note(f"listed classes are present, or absent where the tool says so; all others are {unlisted}")
    numbers = np.arange(1, len(table) + 1)
    return TableFile(path, table, exchange.splits, None, numbers, (rule, *similar_class_names(table)), unit)
