"""A page of images with their labels in three states, random ones and of the rarest classes: ``inspect --report``."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np

from labelgap.core.errors import LabelGapError
from labelgap.core.files import write_text
from labelgap.core.seeds import numpy_generator
from labelgap.core.text import join_names
from labelgap.data.dataset import Dataset, Split
from labelgap.data.images import FeatureVectors
from labelgap.data.summary import DatasetSummary, summarize
from labelgap.labels import ABSENT, PRESENT, UNKNOWN
from labelgap.reporting.formatting import NO_VALUE
from labelgap.reporting.page import render_template
from labelgap.reporting.sections.examples import thumbnail_data_url

RANDOM_COUNT: Final = 24
RAREST_COUNT: Final = 12
_MAX_ABSENT: Final = 8

ImageLocation = tuple[Split, int]


def write_contact_sheet(
    data: Dataset, path: str | os.PathLike[str], *, summary: DatasetSummary | None = None, images: bool = True
) -> Path:
    """Write the page of a data set, and return its path; without ``images`` names and labels are listed."""
    summary = summarize(data) if summary is None else summary
    images = images and not isinstance(data.train.images, FeatureVectors)
    starts = np.cumsum([0, *map(len, data.splits)])
    chosen = numpy_generator(0, "contact sheet").permutation(starts[-1])[:RANDOM_COUNT]
    which = np.searchsorted(starts, chosen, side="right") - 1
    random = [(data.splits[number], int(row - starts[number])) for number, row in zip(which, chosen, strict=True)]
    rarest = _find_rarest(data, summary, random)
    splits = {**summary.splits, "all": summary.whole} if len(summary.splits) > 1 else summary.splits
    page = render_template(
        "pages/contact_sheet.html",
        summary=summary,
        title=summary.name,
        states=[(name, (row.images, row.present, row.absent, row.unknown)) for name, row in splits.items()],
        findings=[f"{each}: {join_names(each.names)}" if each.names else str(each) for each in summary.warnings],
        random=contact_sheet_images(random, images),
        rarest=list(zip(rarest, contact_sheet_images(rarest.values(), images), strict=True)),
        classes=[
            (row.name, (row.present, row.absent, row.unknown, ", ".join(row.measurable) or NO_VALUE))
            for row in sorted(summary.classes, key=lambda row: row.present)
        ],
        has_images=images,
    )
    write_text(path, page)
    return Path(path)


def contact_sheet_images(locations: Iterable[ImageLocation], images: bool = True) -> list[dict[str, Any]]:
    """Return images with their labels; for one that cannot be read the error takes the place of the thumbnail."""
    found = []
    for split, row in locations:
        classes, labels = np.array(split.labels.classes), split.labels.batch([row]).numpy()[0]
        present, absent = (classes[labels == state].tolist() for state in (PRESENT, ABSENT))
        item = {
            "image": split.labels.images[row],
            "split": split.name,
            "thumbnail": "",
            "error": "",
            "present": present,
        }
        item |= {"absent": absent[:_MAX_ABSENT], "more_absent": max(len(absent) - _MAX_ABSENT, 0)}
        try:
            item["thumbnail"] = thumbnail_data_url(split, row) if images else ""
        except (LabelGapError, OSError) as failure:
            item["error"] = str(failure)
        found.append({**item, "unknown": int((labels == UNKNOWN).sum())})
    return found


def _find_rarest(data: Dataset, summary: DatasetSummary, shown: list[ImageLocation]) -> dict[str, ImageLocation]:
    """Return an image of each of the rarest classes, different ones if possible."""
    used = {(split.name, row) for split, row in shown}
    found: dict[str, ImageLocation] = {}
    for rare in summary.rarest(RAREST_COUNT):
        places: list[ImageLocation] = []
        for split in data.splits:
            table = split.labels
            entries = (table.columns == data.classes.index(rare.name)) & (table.values == PRESENT)
            places += [(split, int(row)) for row in table.rows[entries][: RANDOM_COUNT + RAREST_COUNT + 1]]
        split, row = next((each for each in places if (each[0].name, each[1]) not in used), places[0])
        used.add((split.name, row))
        found[f"{rare.name} ({rare.present:,})"] = split, row
    return found
