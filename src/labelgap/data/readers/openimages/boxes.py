"""The boxes of a split of Open Images: edges as shares of the image's width and height, here in pixels."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from labelgap.core.text import truncate_text
from labelgap.data.dataset import Boxes
from labelgap.data.decoding import open_image
from labelgap.data.images import FileImages
from labelgap.data.readers.openimages.blocks import BlockReader, parse_ids, parse_numbers
from labelgap.data.readers.openimages.classes import ClassList
from labelgap.labels.io.problems import ProblemList

_EDGES: Final = ("XMin", "YMin", "XMax", "YMax")
_GROUP: Final = "IsGroupOf"


def read_boxes(
    path: Path,
    root: Path,
    classes: ClassList,
    ids: NDArray[np.uint64],
    images: FileImages,
    problems: ProblemList,
    left_out: Counter[str],
) -> Boxes:
    """Read the boxes of images and classes in use, sorted by image and class; groups are marked as difficult.

    Args:
        path: the file of boxes.
        root: messages name the file relative to it.
        classes: those to use.
        ids: of the images, ascending.
        images: whose headers say the width and height, read where an image has boxes.
        problems: gets those of the file.
        left_out: gets the numbers of boxes of other classes, by the names of the classes.
    """
    known = pa.array([each.encode() for each in classes.ids], pa.binary())
    reader = BlockReader(path, root, problems)
    grouped = _GROUP in reader.header
    rows, numbers, shares, groups = ([np.zeros((0, *shape), dtype=kind)] for shape, kind in _EMPTY)
    for block in reader.blocks(("ImageID", "LabelName", *_EDGES, *([_GROUP] if grouped else []))):
        found, good = parse_ids(block)
        edges = np.empty((len(found), 4))
        for side, name in enumerate(_EDGES):
            edges[:, side], valid = parse_numbers(block, name, 0.0, 1.0)
            good &= valid
        for row in np.flatnonzero(good & ((edges[:, 2:] < edges[:, :2]).any(axis=1))).tolist():
            block.report(row, "a box that ends before it begins: XMin ≤ XMax and YMin ≤ YMax")
        number = pc.index_in(block.columns["LabelName"], value_set=known).fill_null(len(known)).to_numpy()
        place = np.searchsorted(ids, found).clip(max=max(len(ids) - 1, 0))
        there = good & (ids[place] == found if len(ids) else False)
        used = there & (number < len(known))
        for each in block.columns["LabelName"].filter(pa.array(there & ~used)).value_counts().to_pylist():
            name = each["values"].decode("utf-8", "replace")
            left_out[truncate_text(classes.others.get(name, name))] += each["counts"]
        group = pc.equal(block.columns[_GROUP], b"1").to_numpy(zero_copy_only=False) if grouped else ~used
        for part, values in ((rows, place), (numbers, number), (shares, edges), (groups, group & grouped)):
            part.append(values[used])
    image, kind, share, difficult = map(np.concatenate, (rows, numbers, shares, groups))
    order = np.lexsort((kind, image))
    image, kind = image[order].astype(np.int64), kind[order].astype(np.int64)
    return Boxes(image, kind, _pixels(share[order], image, images), difficult[order].astype(bool))


_EMPTY: Final = (((), np.int64), ((), np.int32), ((4,), np.float64), ((), np.bool_))


def _pixels(shares: NDArray[np.float64], rows: NDArray[np.int64], images: FileImages) -> NDArray[np.float64]:
    """Return corners in pixels, edges inclusive; a box has at least one pixel, inside the image."""
    touched, which = np.unique(rows, return_inverse=True)
    sizes = np.ones((len(touched), 2))
    for number, row in enumerate(touched.tolist()):
        with open_image(images.path(row)) as image:
            sizes[number] = image.size
    size = sizes[which]
    first = np.minimum(shares[:, :2] * size, size - 1)
    return np.concatenate([first, np.maximum(shares[:, 2:] * size - 1, first)], axis=1)
