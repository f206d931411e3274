"""How data are read, declared once: the options of readers and commands, and what a run remembers of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

from labelgap.core.settings import Setting, SettingsModel, settings_of

DATA: Final = "Data"
PUBLISHED: Final = "Published data sets"
_OWN: Final = Setting(DATA)
_PUBLISHED: Final = Setting(PUBLISHED)
_DETECTED: Final = Setting(DATA, default="detected")


class DataPaths(SettingsModel):
    """Where further files of the data are."""

    images: Annotated[Path | None, Setting(DATA, default="that of the table")] = None
    """Folder that image names are relative to."""
    val: Annotated[Path | None, _OWN] = None
    """Table of val images, in the same layout."""
    test: Annotated[Path | None, _OWN] = None
    """Table of test images, in the same layout."""
    aliases: Annotated[Path | None, _OWN] = None
    """CSV with two columns: synonym, class."""
    parents: Annotated[Path | None, _OWN] = None
    """CSV with two columns: child, parent it implies."""
    prior: Annotated[Path | None, _OWN] = None
    """Labels that models or other people gave, a file or a folder; for inspect, train, audit."""
    annotations: Annotated[Path | None, _PUBLISHED] = None
    """VOC devkit with the boxes of the images of a feature file."""
    xml: Annotated[Path | None, _PUBLISHED] = None
    """Mulan's file of the names of the labels of an ARFF file."""


class DataOptions(DataPaths):
    """How to read data; None for an option that is not given."""

    zeros: Annotated[Literal["absent", "unknown"] | None, Setting(DATA, default="absent")] = None
    """Meaning of a 0 in a wide table: absent or unknown."""
    unlisted: Annotated[Literal["unknown", "absent"] | None, Setting(DATA, default="unknown")] = None
    """State of a class not in the lists: unknown or absent."""
    uncertain: Annotated[Literal["unknown", "present", "absent"] | None, _PUBLISHED] = None
    """What uncertain labels (-1) become: unknown, present or absent."""
    delimiter: Annotated[str | None, _DETECTED] = None
    """Cell separator of a CSV."""
    separator: Annotated[str | None, _DETECTED] = None
    """Separator within a list."""
    encoding: Annotated[str | None, _DETECTED] = None
    """Encoding of a CSV."""
    classes: Annotated[list[str] | None, _OWN] = None
    """Classes to use, e.g. cat,dog; repeatable."""
    ignore_columns: Annotated[list[str] | None, _OWN] = None
    """Columns that are not classes, e.g. width,height; repeatable."""
    rename: Annotated[dict[str, str] | list[str] | None, _OWN] = None
    """Rename a class or column: dog=Dog, file=image; repeatable."""
    on_bad_image: Annotated[Literal["error", "skip"] | None, Setting(DATA, default="error; predict: skip")] = None
    """Unreadable images: error (lists all) or skip."""
    duplicates: Annotated[Literal["near", "exact", "off"] | None, Setting(DATA, default="near")] = None
    """Duplicate images to detect: near, exact or off."""
    certainty: Annotated[Literal["guessing", "probably", "definitely"] | None, _PUBLISHED] = None
    """CUB labels below it are unknown: guessing, probably or definitely."""
    unlabeled: Annotated[Literal["keep", "drop"] | None, _PUBLISHED] = None
    """Images without a label: keep (nuswide) or drop (openimages)."""
    machine: Annotated[float | None, _PUBLISHED] = None
    """Confidence from which labels of a network are used (openimages)."""
    boxes: Annotated[bool, Setting(PUBLISHED, flag="boxes")] = False
    """Read boxes, too (openimages)."""
    allow_leaks: Annotated[bool, Setting(DATA, flag="allow_leaks")] = False
    """Allow an image in several splits."""


PATH_OPTIONS: Final = tuple(settings_of(DataPaths))
"""The options that are paths."""
DATA_OPTIONS: Final = tuple(settings_of(DataOptions))
