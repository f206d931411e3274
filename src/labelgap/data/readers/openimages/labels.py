"""The labels of a split of Open Images: what people verified, and on request what a network gave.

A label takes 12 bytes while the file is read, and 8 while labels are sorted; rows of other classes take none.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from labelgap.data.readers.openimages.blocks import Block, BlockReader, format_ids, parse_ids, parse_numbers
from labelgap.data.readers.openimages.classes import ClassList
from labelgap.labels import ABSENT, PRESENT
from labelgap.labels.io.problems import ProblemList

_COLUMNS: Final = ("ImageID", "LabelName", "Confidence")
_CONFIDENCES: Final = {b"0": ABSENT, b"1": PRESENT, b"0.0": ABSENT, b"1.0": PRESENT}


@dataclass(frozen=True, eq=False)
class SplitLabels:
    """The known labels of a split.

    Attributes:
        ids: ``(N,)`` the images that have a known label, ascending.
        places: ``(L,)`` row · K + class number of every known label, ascending.
        values: ``(L,)`` PRESENT or ABSENT.
        left_out: rows about classes that are not used.
        repeated: rows that say again what another says.
        contradicted: labels that were verified as present and as absent: they are unknown.
        machine: labels that a network gave.
    """

    ids: NDArray[np.uint64]
    places: NDArray[np.int64]
    values: NDArray[np.int8]
    left_out: int = 0
    repeated: int = 0
    contradicted: int = 0
    machine: int = 0

    def with_images(self, ids: NDArray[np.uint64], classes: int) -> SplitLabels:
        """Return the labels with more images, ``ids`` ascending, that have none."""
        images = np.union1d(self.ids, ids)
        rows, columns = np.divmod(self.places, classes)
        return replace(self, ids=images, places=np.searchsorted(images, self.ids)[rows] * classes + columns)


class _Rows:
    """The rows of a file that are about classes in use: image ids, and 2 · class number + value."""

    def __init__(self) -> None:
        self.ids: list[NDArray[np.uint64]] = []
        self.entries: list[NDArray[np.int32]] = []
        self.left_out = 0

    def keys(self, images: NDArray[np.uint64], classes: int) -> NDArray[np.int64]:
        """Return 2 · (row · K + class number) + value of every row, ascending; the rows are given up."""
        keys = np.empty(sum(map(len, self.ids)), dtype=np.int64)
        end = len(keys)
        while self.ids:
            ids, entries = self.ids.pop(), self.entries.pop()
            part = keys[end - len(ids) : end]
            first = np.flatnonzero(np.diff(ids, prepend=~ids[:1]))
            part[:] = np.repeat(np.searchsorted(images, ids[first]) * (2 * classes), np.diff(first, append=len(ids)))
            part += entries
            end -= len(ids)
        keys.sort()
        return keys


def read_labels(
    human: Path,
    machine: tuple[Path, float] | None,
    root: Path,
    classes: ClassList,
    listed: NDArray[np.uint64] | None,
    problems: ProblemList,
) -> SplitLabels:
    """Read the labels of a split.

    Args:
        human: the file of verified labels.
        machine: the file of a network's labels, and from which confidence on they are present where nobody verified.
        root: messages name files relative to it.
        classes: those to use.
        listed: ids of all images, ascending; an image outside is a problem.
        problems: gets those of the files.
    """
    rows = _read_rows(human, root, classes, listed, None, problems)
    given = None if machine is None else _read_rows(machine[0], root, classes, listed, machine[1], problems)
    images, count = _unique([*rows.ids, *([] if given is None else given.ids)]), len(classes.ids)
    keys = rows.keys(images, count)
    total = len(keys)
    keys = keys[np.append(True, keys[1:] != keys[:-1])] if total else keys
    repeated, values, places = total - len(keys), (keys & 1).astype(np.int8), keys >> 1
    del keys
    twice, verified, added = np.flatnonzero(places[1:] == places[:-1]), places, 0
    if len(twice):
        kept = np.ones(len(places), dtype=bool)
        kept[twice] = kept[twice + 1] = False
        places, values = places[kept], values[kept]
    if given is not None:
        more = np.unique(given.keys(images, count) >> 1)
        more = more[~np.isin(more, verified)]
        added = len(more)
        places, values = np.append(places, more), np.append(values, np.full(added, PRESENT, dtype=np.int8))
        order = np.argsort(places, kind="stable")
        places, values = places[order], values[order]
    if len(twice):  # an image may have no other label
        labeled, row = np.unique(places // count, return_inverse=True)
        images, places = images[labeled], row * count + places % count
    return SplitLabels(images, places, values, rows.left_out, repeated, len(twice), added)


def _unique(parts: list[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    """Return the unique ids of all parts, ascending; a file lists an image's labels together, so parts shrink first."""
    small = [part[np.diff(part, prepend=~part[:1]) != 0] for part in parts if len(part)]
    ids = np.sort(np.concatenate([np.zeros(0, dtype=np.uint64), *small]))
    return ids[np.append(True, ids[1:] != ids[:-1])] if len(ids) else ids


def _read_rows(
    path: Path,
    root: Path,
    classes: ClassList,
    listed: NDArray[np.uint64] | None,
    threshold: float | None,
    problems: ProblemList,
) -> _Rows:
    """Read a file of labels; with a threshold those of a network, of which the confident ones are present."""
    rows = _Rows()
    known = pa.array([each.encode() for each in (*classes.ids, *classes.others)], pa.binary())
    for block in BlockReader(path, root, problems).blocks(_COLUMNS):
        ids, good = parse_ids(block)
        number = pc.index_in(block.columns["LabelName"], value_set=known).fill_null(len(known)).to_numpy()
        if classes.complete:
            _report_classes(block, np.flatnonzero(number == len(known)))
        if listed is not None:
            _report_images(block, np.flatnonzero(good & ~_is_in(ids, listed)), ids)
        values, valid = _human_values(block) if threshold is None else _machine_values(block, threshold)
        used = good & valid & (number < len(classes.ids))
        rows.left_out += int((number >= len(classes.ids)).sum())
        rows.ids.append(ids[used])
        rows.entries.append(2 * number[used] + values[used])
    return rows


def _human_values(block: Block) -> tuple[NDArray[np.int8], NDArray[np.bool_]]:
    """Return PRESENT for a confidence of 1 and ABSENT for 0; any other is a problem."""
    cells = block.columns["Confidence"]
    spelled = pa.array(list(_CONFIDENCES), pa.binary())
    place = pc.index_in(cells, value_set=spelled).fill_null(len(spelled)).to_numpy()
    values = np.array([*_CONFIDENCES.values(), ABSENT], dtype=np.int8)[place]
    valid = place < len(spelled)
    for row in np.flatnonzero(~valid).tolist():
        block.report(row, f"a verified label has a Confidence of 1 or 0, not '{block.text('Confidence', row)}'")
    return values, valid


def _machine_values(block: Block, threshold: float) -> tuple[NDArray[np.int8], NDArray[np.bool_]]:
    """Return PRESENT, and which labels reach the threshold."""
    values, valid = parse_numbers(block, "Confidence", 0.0, 1.0)
    return np.full(len(values), PRESENT, dtype=np.int8), valid & (values >= threshold)


def _report_classes(block: Block, rows: NDArray[np.int64]) -> None:
    for row in rows.tolist():
        block.report(row, f"the class {block.text('LabelName', row)} is not in the class descriptions")


def _report_images(block: Block, rows: NDArray[np.int64], ids: NDArray[np.uint64]) -> None:
    for row, name in zip(rows.tolist(), format_ids(ids[rows]), strict=True):
        block.report(row, f"the image {name} is not in the list of images")


def _is_in(ids: NDArray[np.uint64], listed: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return which ids are in an ascending list; quicker than sorting them."""
    if not len(listed):
        return np.zeros(len(ids), dtype=bool)
    found: NDArray[np.bool_] = listed[np.searchsorted(listed, ids).clip(max=len(listed) - 1)] == ids
    return found


def read_image_list(path: Path, root: Path, official: str, problems: ProblemList) -> NDArray[np.uint64]:
    """Return the ids of a split in a list of images, ascending; an image that is listed again is a problem."""
    reader, parts, rows = BlockReader(path, root, problems), list[NDArray[np.uint64]](), list[NDArray[np.uint32]]()
    subset = "Subset" in reader.header
    for block in reader.blocks(("ImageID", *(["Subset"] if subset else [])), multiline=True):
        ids, good = parse_ids(block)
        if subset:
            good &= pc.equal(block.columns["Subset"], official.encode()).to_numpy(zero_copy_only=False)
        parts.append(ids[good])
        rows.append(block.rows[good])
    found = np.concatenate([np.zeros(0, dtype=np.uint64), *parts])
    ids = np.sort(found)
    if (ids[1:] == ids[:-1]).any():
        _report_repeated(reader, found, np.concatenate(rows))
    return ids


def _report_repeated(reader: BlockReader, ids: NDArray[np.uint64], rows: NDArray[np.uint32]) -> None:
    order = np.argsort(ids, kind="stable")
    again = np.append(False, ids[order[1:]] == ids[order[:-1]])
    first = order[np.maximum.accumulate(np.where(again, 0, np.arange(len(ids))))]
    for number in np.flatnonzero(again).tolist():
        name, at = format_ids(ids[order[number : number + 1]])[0], reader.line(int(rows[first[number]]))
        reader.report(reader.line(int(rows[order[number]])), f"the image {name} is listed again (first in line {at})")
