"""The images of a table that is being cleaned: which can be used, and which names lead to one file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from labelgap.core.errors import Problem, ProblemsError
from labelgap.core.findings import Finding
from labelgap.data.cleaning.table_row import TableRow
from labelgap.data.images import FileImages
from labelgap.data.readers.image_paths import ImageFinder
from labelgap.data.scanning.image_scan import ImageScan, scan_images
from labelgap.labels.io.raw_table import RawTable


@dataclass(frozen=True, eq=False)
class CheckedImages:
    """The result of checking all images of a table.

    Attributes:
        images: those that have a file, each once.
        scan: the result of decoding them.
        problems: name → why the image cannot be used.
        repeated: name → an earlier name that leads to the same file.
        findings: how names were completed.
    """

    images: FileImages
    scan: ImageScan
    problems: dict[str, str]
    repeated: dict[str, str]
    findings: tuple[Finding, ...]

    @property
    def files(self) -> dict[str, str]:
        """Name → path below the folder."""
        return dict(zip(self.images.names, self.images.files, strict=True))

    def known_scan(self, images: FileImages) -> ImageScan:
        """Return the scan of some of the images, without decoding them again."""
        place = {name: row for row, name in enumerate(self.images.names)}
        return self.scan.select(np.array([place[name] for name in images.names], dtype=np.int64))


def check_images(raw: RawTable, folder: Path, rows: Sequence[TableRow]) -> CheckedImages:
    """Find and decode the image of every row; raise an error where the folder has none of them."""
    finder = ImageFinder(folder)
    problems: dict[str, str] = {}
    for row in rows:
        if row.image in finder.lines:
            continue
        problem = finder(row.image, row.line)
        if problem is not None and row.image not in finder.repeated and row.image not in finder.files:
            problems[row.image] = problem
    problems |= finder.skipped
    if rows and finder.missing == finder.checked:
        outcome = f"nothing was written. None of its images is in {folder}: where are they? (--images DIR)"
        missing = [Problem(finder.lines[name], problem) for name, problem in problems.items()]
        raise ProblemsError(raw.path, missing, outcome, unit=raw.unit)
    images = FileImages(folder, [*finder.files], [*finder.files.values()])
    scan = scan_images(images)
    problems |= {images.names[row]: reason for row, reason in scan.unreadable.items()}
    problems |= {name: problems[first] for name, first in finder.repeated.items() if first in problems}
    return CheckedImages(images, scan, problems, finder.repeated, tuple(finder.findings()))
