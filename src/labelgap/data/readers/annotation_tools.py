"""What people labeled in other tools: exports of CVAT and Label Studio, and a live data set of FiftyOne."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
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


def load_cvat(
    path: str | os.PathLike[str],
    images: str | os.PathLike[str] | None = None,
    *,
    unlisted: str = "unknown",
    on_bad_image: str = "error",
    duplicates: str = "near",
    allow_leaks: bool = False,
) -> Dataset:
    """Read CVAT's export "CVAT for images 1.1": tags, boxes and other shapes say that their class is present.

    Args:
        path: annotations.xml. A tag whose attribute ``state`` is ``absent`` is absent; ``subset`` is the split.
        images: the folder that the names of the images are relative to; the folder of the file when not given.
        unlisted: the state of a class that an image does not have: "unknown" or "absent".
        on_bad_image: "error" names all images that cannot be read, "skip" leaves them out.
        duplicates: which copies of images are searched for: "near", "exact" or "off".
        allow_leaks: whether copies of an image may be in two splits.
    """
    return _load(path, images, read_cvat, unlisted, ImageOptions(on_bad_image, duplicates, allow_leaks))


def load_label_studio(
    path: str | os.PathLike[str],
    images: str | os.PathLike[str] | None = None,
    *,
    unlisted: str = "unknown",
    on_bad_image: str = "error",
    duplicates: str = "near",
    allow_leaks: bool = False,
) -> Dataset:
    """Read the JSON export of a Label Studio project with choices or boxes.

    Args:
        path: the tasks. Choices of a list called ``absent`` are absent, all others present.
        images: the folder of the images; the folder of the file when not given.
        unlisted: the state of a class that nobody chose in a task with an annotation: "unknown", or "absent" where
            annotators saw every choice. Nothing is known of a task without an annotation.
        on_bad_image: "error" names all images that cannot be read, "skip" leaves them out.
        duplicates: which copies of images are searched for: "near", "exact" or "off".
        allow_leaks: whether copies of an image may be in two splits.
    """
    return _load(path, images, read_label_studio, unlisted, ImageOptions(on_bad_image, duplicates, allow_leaks))


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


def is_cvat_file(path: Path) -> bool:
    """Return whether a file is an export of CVAT."""
    return path.is_file() and path.suffix.lower() == ".xml" and b"<annotations>" in _start(path)


def is_label_studio_file(path: Path) -> bool:
    """Return whether a file is a list of tasks of Label Studio."""
    return (
        path.is_file()
        and path.suffix.lower() == ".json"
        and re.match(rb"\s*\[\s*\{", start := _start(path)) is not None
        and re.search(rb'"data"\s*:\s*\{', start) is not None
    )


def _start(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_START)


def _load(
    path: str | os.PathLike[str],
    images: str | os.PathLike[str] | None,
    read: Callable[[Path, str], ExchangeTable],
    unlisted: str,
    options: ImageOptions,
) -> Dataset:
    check_choice("unlisted", unlisted, ("unknown", "absent"))

    def read_file(file: Path, finder: ImageFinder) -> TableFile:
        unit = "image" if read is read_cvat else "task"
        whole = _table_file(file, read(file, unlisted), unlisted, unit)
        problems = ProblemList(file, unit)
        problems.fixable = False
        for number, name in enumerate(whole.table.images, start=1):
            if (problem := finder(name, number)) is not None:
                problems.add(number, problem)
        problems.refuse()
        return whole

    return read_image_table(path, images, read_file, options)


def _table_file(path: Path, exchange: ExchangeTable, unlisted: str, unit: str) -> TableFile:
    table = exchange.table
    rule = Note(f"listed classes are present, or absent where the tool says so; all others are {unlisted}")
    numbers = np.arange(1, len(table) + 1)
    return TableFile(path, table, exchange.splits, None, numbers, (rule, *similar_class_names(table)), unit)
