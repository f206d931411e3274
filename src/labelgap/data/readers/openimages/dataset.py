"""Open Images V3 (also V2) and V4 to V7: real partial labels.

A label that people verified has a confidence of 1, present, or 0, absent. All other labels are unknown: fewer than one
in a hundred is known. The labels that a network gave are used only where ``machine`` asks for them. The official
splits are train, val and test; images are sorted by their ids.

Reference: Krasin et al., "OpenImages: A public dataset for large-scale multi-label and multi-class image
classification", 2017; Kuznetsova et al., "The Open Images Dataset V4", IJCV 2020.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from labelgap.core.errors import InputError
from labelgap.core.findings import Finding, Note
from labelgap.core.text import join_names, pluralize
from labelgap.data.dataset import Dataset, Split
from labelgap.data.findings import NoValRows
from labelgap.data.readers.image_paths import refuse_url
from labelgap.data.readers.image_table import image_folder
from labelgap.data.readers.openimages.blocks import format_ids
from labelgap.data.readers.openimages.boxes import read_boxes
from labelgap.data.readers.openimages.classes import ClassList, class_choice, read_classes
from labelgap.data.readers.openimages.files import OFFICIAL_SPLITS, OpenImagesFiles, find_layout
from labelgap.data.readers.openimages.images import ImageFiles
from labelgap.data.readers.openimages.labels import SplitLabels, read_image_list, read_labels
from labelgap.labels import LabelTable
from labelgap.labels.io.problems import ProblemList
from labelgap.labels.sparse import UniqueNames

_CLASSES_SHOWN: Final = 8
"""Of a list of classes."""


def load_openimages(
    path: str | os.PathLike[str],
    images: str | os.PathLike[str] | None = None,
    *,
    classes: str | Sequence[str] | None = None,
    machine: float | None = None,
    boxes: bool = False,
    unlabeled: str = "drop",
    on_bad_image: str = "error",
) -> Dataset:
    """Read Open Images: verified labels, names of classes, images, and boxes on request.

    Args:
        path: the folder with the CSV files, in the layout of V3 (a folder per split) or of V4 to V7.
        images: the folder with the images, ``ID.jpg`` in ``train``, ``validation`` and ``test`` or all in one; that of
            the CSV files, or ``images`` in it, when not given.
        classes: "trainable", "boxable", "all", or names or ids of classes. Without it the trainable ones where their
            list (``classes-trainable.txt``) is there, else all that are described.
        machine: from which confidence on a label that a network gave, and nobody verified, is present; None for none.
        boxes: whether to read where objects are. The header of every image with a box is read for its size.
        unlabeled: "drop" or "keep" images without any known label; to keep them the list of images is needed.
        on_bad_image: "error" for images that have no file, "skip" to leave them out.
    """
    refuse_url(path, "images")
    root = Path(path)
    _check_options(root, machine, on_bad_image, unlabeled)
    problems = ProblemList(root, unit="")
    layout = find_layout(root, class_choice(classes), machine=machine is not None, boxes=boxes, problems=problems)
    chosen = read_classes(layout, classes, problems)
    read = {name: _read(layout, name, chosen, machine, unlabeled == "keep", problems) for name in OFFICIAL_SPLITS}
    _check_splits({name: labels.ids for name, labels in read.items()}, problems)
    files, findings = ImageFiles(image_folder(root / "_", images)), _describe(layout, read, machine)
    findings += _describe_classes(layout, chosen) if classes is None else []
    splits, left_out = dict[str, Split](), Counter[str]()
    for name, labels in read.items():
        found = files.find(OFFICIAL_SPLITS[name], labels.ids)
        exists = found < len(list(files.places(OFFICIAL_SPLITS[name])))
        if not exists.all() and on_bad_image == "error":
            _report_missing(files, name, labels.ids[~exists], len(exists), problems)
        elif not exists.all():
            findings.append(
                Note(f"{name}: {pluralize(int((~exists).sum()), 'image')} without a file left out", "images")
            )
        if problems:
            continue
        table = _table(labels, chosen, exists)
        source = files.open(OFFICIAL_SPLITS[name], labels.ids[exists], found[exists])
        place = layout.splits[name].boxes
        given = (root, chosen, labels.ids[exists], source, problems, left_out)
        drawn = None if place is None else read_boxes(place, *given)
        splits[name] = Split(name, source, table, boxes=drawn)
    problems.refuse()
    if left_out:
        findings.append(Note(_describe_boxes(left_out)))
    if not len(splits["train"]):
        raise InputError(f"{root}: no image of train has a known label of the {len(chosen.ids):,} classes and a file.")
    if not len(splits["val"]):
        findings.append(NoValRows(len(splits["train"])))
    val, test = (splits[name] if len(splits[name]) else None for name in ("val", "test"))
    return Dataset("openimages", splits["train"], val, test, findings=tuple(findings))


def _check_options(root: Path, machine: float | None, on_bad_image: str, unlabeled: str) -> None:
    if not root.is_dir():
        raise InputError(f"{root} is not a folder: give the one with the files of Open Images.")
    if machine is not None and not 0 < machine <= 1:
        raise InputError(f"machine={machine}: a confidence is a number above 0, at most 1.")
    for name, value, allowed in (
        ("on_bad_image", on_bad_image, ("error", "skip")),
        ("unlabeled", unlabeled, ("drop", "keep")),
    ):
        if value not in allowed:
            raise InputError(f"{name}={value!r}: it is {' or '.join(allowed)}.")


def _read(
    layout: OpenImagesFiles,
    name: str,
    classes: ClassList,
    machine: float | None,
    unlabeled: bool,
    problems: ProblemList,
) -> SplitLabels:
    files, official = layout.splits[name], OFFICIAL_SPLITS[name]
    before = len(problems)
    listed = None if files.images is None else read_image_list(files.images, layout.root, official, problems)
    if len(problems) > before:
        listed = None  # an image that a bad list lacks is no further problem
    given = None if files.machine is None or machine is None else (files.machine, machine)
    labels = read_labels(files.human, given, layout.root, classes, listed, problems)
    if not unlabeled:
        return labels
    if listed is None:
        if files.images is None:
            problems.append(f"unlabeled: no list of {official} images, e.g. {official}/images.csv")
        return labels
    return labels.with_images(listed, len(classes.ids))


def _table(labels: SplitLabels, classes: ClassList, kept: NDArray[np.bool_]) -> LabelTable:
    """Return the labels of the images that are kept."""
    places, values, width = labels.places, labels.values, len(classes.ids)
    if not kept.all():
        rows, columns = np.divmod(places, width)
        known = kept[rows]
        places, values = (np.cumsum(kept) - 1)[rows[known]] * width + columns[known], values[known]
    starts = np.searchsorted(places, np.arange(int(kept.sum()) + 1) * width)
    images = UniqueNames(format_ids(labels.ids[kept]))
    return LabelTable(starts, (places % width).astype(np.int32), values, classes.names, images)


def _check_splits(ids: Mapping[str, NDArray[np.uint64]], problems: ProblemList) -> None:
    for (first, one), (second, other) in combinations(ids.items(), 2):
        if len(both := np.intersect1d(one, other, assume_unique=True)):
            count, example = pluralize(len(both), "image"), format_ids(both[:1])[0]
            problems.append(f"{count} in {first} and in {second}, e.g. {example}")


def _report_missing(files: ImageFiles, name: str, ids: NDArray[np.uint64], count: int, problems: ProblemList) -> None:
    official = OFFICIAL_SPLITS[name]
    places = ", ".join(str(place) for place in files.places(official)) or "no folder"
    problems.append(
        f"{len(ids):,} of {count:,} {official} images have no file, e.g. {format_ids(ids[:1])[0]}.jpg (searched: "
        f"{places}); --images names their folder, --on-bad-image skip leaves them out",
    )


def _describe(layout: OpenImagesFiles, read: Mapping[str, SplitLabels], machine: float | None) -> list[Finding]:
    """Return how labels were read."""
    total = {field: sum(getattr(labels, field) for labels in read.values()) for field in _COUNTED}
    notes = [
        f"Open Images {layout.version}: verified labels, Confidence 1 = present, 0 = absent, all others unknown; "
        f"{total['left_out']:,} rows about classes not in use are left out"
    ]
    if total["contradicted"]:
        notes.append(f"{pluralize(total['contradicted'], 'label')} verified as present and as absent: taken as unknown")
    if total["repeated"]:
        notes.append(f"{pluralize(total['repeated'], 'row')} repeated, counted once")
    if machine is not None:
        notes.append(
            f"{total['machine']:,} labels of a network with a confidence from {machine:g} are taken as present"
        )
    splits = ", ".join(f"{name} is the official {official}" for name, official in OFFICIAL_SPLITS.items())
    return [*map(Note, notes), Note(splits, "split")]


def _describe_classes(layout: OpenImagesFiles, chosen: ClassList) -> list[Finding]:
    """Return which classes are used instead of the trainable ones, where there is no list of these."""
    if layout.choice == "trainable":
        return []
    count = pluralize(len(chosen.ids), "class")
    return [Note(f"there is no classes-trainable.txt: {count} of {layout.descriptions.name} are used")]


def _describe_boxes(left_out: Counter[str]) -> str:
    """Return how many boxes of other classes there are, and of which classes."""
    shown = join_names([f"{name} {count:,}" for name, count in left_out.most_common()], _CLASSES_SHOWN)
    return f"{pluralize(left_out.total(), 'box')} of classes not in use left out: {shown}"


_COUNTED = ("left_out", "contradicted", "repeated", "machine")
