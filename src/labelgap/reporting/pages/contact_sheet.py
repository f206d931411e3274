"""A page of images with their labels in three states: what ``labelgap inspect --report`` writes.

Some images are random, to show what is typical; some show the rarest classes, where a wrong label matters most. The
page is one file that loads nothing; thumbnails have no metadata.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from labelgap.core.errors import LabelGapError
from labelgap.core.files import write_text
from labelgap.core.seeds import numpy_generator
from labelgap.core.text import join_names
from labelgap.data.dataset import Dataset, Split
from labelgap.data.feature_vectors import FeatureVectors
from labelgap.data.summary import DatasetSummary, summarize
from labelgap.labels import ABSENT, PRESENT
from labelgap.reporting.example_images import thumbnail_data_url
from labelgap.reporting.formatting import NO_VALUE, format_count, format_measure, single_line
from labelgap.reporting.html import render_template

RANDOM_COUNT: Final = 24
RAREST_COUNT: Final = 12
_MAX_ABSENT: Final = 8

ImageLocation = tuple[Split, int]


@dataclass(frozen=True)
class ContactSheetImage:
    """One image with its observed labels.

    Attributes:
        image: its name.
        split: train, val or test.
        thumbnail: as a data URL; empty where images are left out or the image cannot be read.
        error: why the image cannot be read.
        present: classes known to be present.
        absent: classes known to be absent, the first of them.
        more_absent: how many more are known to be absent.
        unknown: how many labels are unknown.
    """

    image: str
    split: str
    thumbnail: str
    error: str
    present: tuple[str, ...]
    absent: tuple[str, ...]
    more_absent: int
    unknown: int


def write_contact_sheet(
    data: Dataset,
    path: str | os.PathLike[str],
    *,
    summary: DatasetSummary | None = None,
    images: bool = True,
    seed: int = 0,
) -> Path:
    """Write the page of a data set.

    Args:
        data: whose images are shown.
        path: the file.
        summary: of the data set, if it exists already.
        images: whether thumbnails may be in it; without them, names and labels are listed.
        seed: of the random choice.

    Returns:
        The path of the page.
    """
    summary = summarize(data) if summary is None else summary
    images = images and not isinstance(data.train.images, FeatureVectors)
    random = _draw_random(data, seed)
    rarest = _find_rarest(data, summary, random)
    page = {
        "summary": summary,
        "name": single_line(summary.name),
        "tiles": _tiles(summary),
        "states": _states(summary),
        "findings": [
            f"{warning}: {join_names([single_line(name) for name in warning.names])}" if warning.names else str(warning)
            for warning in summary.warnings
        ],
        "random": contact_sheet_images(random, images),
        "rarest": [
            (single_line(name), image)
            for name, image in zip(rarest, contact_sheet_images(rarest.values(), images), strict=True)
        ],
        "classes": _classes(summary),
    }
    write_text(path, render_template("contact_sheet.html", page=page, has_images=images))
    return Path(path)


def contact_sheet_images(locations: Iterable[ImageLocation], images: bool = True) -> list[ContactSheetImage]:
    """Return images with their labels; for one that cannot be read the error takes the place of the thumbnail."""
    return [_contact_sheet_image(split, row, images) for split, row in locations]


def _contact_sheet_image(split: Split, row: int, images: bool) -> ContactSheetImage:
    table = split.labels
    entries = slice(int(table.starts[row]), int(table.starts[row + 1]))
    columns, values = table.columns[entries], table.values[entries]
    present, absent = (
        [single_line(table.classes[column]) for column in columns[values == state]] for state in (PRESENT, ABSENT)
    )
    thumbnail, error = "", ""
    if images:
        try:
            thumbnail = thumbnail_data_url(split, row)
        except (LabelGapError, OSError) as failure:
            error = single_line(str(failure))
    return ContactSheetImage(
        image=single_line(table.images[row]),
        split=split.name,
        thumbnail=thumbnail,
        error=error,
        present=tuple(present),
        absent=tuple(absent[:_MAX_ABSENT]),
        more_absent=max(len(absent) - _MAX_ABSENT, 0),
        unknown=len(table.classes) - len(columns),
    )


def _draw_random(data: Dataset, seed: int) -> list[ImageLocation]:
    """Draw random images from all splits together."""
    sizes = [len(split) for split in data.splits]
    starts = np.cumsum([0, *sizes])
    chosen = numpy_generator(seed, "contact sheet").permutation(starts[-1])[:RANDOM_COUNT]
    which = np.searchsorted(starts, chosen, side="right") - 1
    return [(data.splits[number], int(row - starts[number])) for number, row in zip(which, chosen, strict=True)]


def _find_rarest(data: Dataset, summary: DatasetSummary, shown: list[ImageLocation]) -> dict[str, ImageLocation]:
    """Return an image of each of the rarest classes, different ones if possible."""
    used = {(split.name, row) for split, row in shown}
    found: dict[str, ImageLocation] = {}
    for row in summary.rarest(RAREST_COUNT):
        places = _with_class(data, data.classes.index(row.name))
        chosen = next((place for place in places if (place[0].name, place[1]) not in used), places[0])
        used.add((chosen[0].name, chosen[1]))
        found[f"{row.name} ({row.present:,})"] = chosen
    return found


def _with_class(data: Dataset, column: int) -> list[ImageLocation]:
    found = []
    for split in data.splits:
        table = split.labels
        entries = (table.columns == column) & (table.values == PRESENT)
        found += [(split, int(row)) for row in table.rows[entries][: RANDOM_COUNT + RAREST_COUNT + 1]]
    return found


def _tiles(summary: DatasetSummary) -> list[tuple[str, str, str]]:
    whole = summary.whole
    labels = whole.present + whole.absent + whole.unknown
    return [
        (f"{summary.image_word}s", format_count(whole.images), ""),
        (summary.class_words, format_count(len(summary.classes)), ""),
        (f"{summary.class_words} given", f"{summary.present_per_image:.1f}", f"per {summary.image_word}"),
        ("labels unknown", format_measure(whole.unknown / labels) if labels else NO_VALUE, "%"),
    ]


def _states(summary: DatasetSummary) -> list[tuple[str, list[str]]]:
    rows = {**summary.splits, "all": summary.whole} if len(summary.splits) > 1 else dict(summary.splits)
    return [
        (name, list(map(format_count, (row.images, row.present, row.absent, row.unknown))))
        for name, row in rows.items()
    ]


def _classes(summary: DatasetSummary) -> list[tuple[str, list[Any]]]:
    return [
        (
            single_line(row.name),
            [*map(format_count, (row.present, row.absent, row.unknown)), ", ".join(row.measurable) or NO_VALUE],
        )
        for row in sorted(summary.classes, key=lambda row: row.present)
    ]
