"""Open Images V3 (also V2) and V4 to V7: real partial labels.

A label that people verified has a confidence of 1, present, or 0, absent; all others are unknown, unless ``machine``
asks for those that a network gave. Reference: Krasin et al., "OpenImages: A public dataset for large-scale multi-label
and multi-class image classification", 2017; Kuznetsova et al., "The Open Images Dataset V4", IJCV 2020.
"""

from __future__ import annotations

import codecs
import csv
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import csv as arrow_csv

from labelgap.core.errors import InputError, UnknownNameError
from labelgap.core.findings import Finding, Note
from labelgap.core.text import join_names, pluralize, truncate_text
from labelgap.data.dataset import Boxes, Dataset, Split
from labelgap.data.decoding import open_image
from labelgap.data.findings import NoValRows
from labelgap.data.images import FileImages
from labelgap.data.readers.common import DatasetLayout, FileProblems, RequiredFile
from labelgap.data.readers.image_paths import refuse_url
from labelgap.data.readers.table import image_folder
from labelgap.labels import ABSENT, PRESENT, LabelTable
from labelgap.labels.io.dialect import decodes
from labelgap.labels.io.table_file import check_choice
from labelgap.labels.sparse import UniqueNames

OFFICIAL_SPLITS: Final = {"train": "train", "val": "validation", "test": "test"}  # the official name of every split
CLASS_CHOICES: Final = ("trainable", "boxable", "all")  # what ``classes`` can be instead of names
_V3, _LATER = "V3", "V4 to V7"
_TRAINABLE: Final = "classes-trainable.txt"
_DESCRIPTIONS: Final = "class-descriptions.csv"
_BOXABLE: Final = "class-descriptions-boxable.csv"
_PREFIXES: Final = ("oidv7-", "oidv6-", "")
_ARCHIVES: Final = (
    *("2018_04", "2017_11", "2017_07", "images_2017_11", "annotations_human_2017_11", "annotations_machine_2017_11"),
    *("annotations_human_bbox_2017_11", "classes_2017_11", "classes", "annotations", "labels", "metadata", "csv"),
)
"""Folders that the archives unpack to, and that people sort the files into."""
_SPLIT_FILES: Final = {
    "human": ("annotations-human.csv", "annotations-human-imagelabels.csv", "verified labels"),
    "machine": ("annotations-machine.csv", "annotations-machine-imagelabels.csv", "labels of a network, for --machine"),
    "boxes": ("annotations-human-bbox.csv", "annotations-bbox.csv", "where objects are, for --boxes"),
}
"""The files of a split in V3, after the name of the split in later versions, and what they hold."""
_HUMAN_BOXABLE: Final = "annotations-human-imagelabels-boxable.csv"


@dataclass(frozen=True)
class OpenImagesFiles:
    """The files of a folder, of every split by their keys in ``_SPLIT_FILES``; ``chosen`` lists the classes to use."""

    root: Path
    version: str
    choice: str
    splits: dict[str, dict[str, Path | None]]
    descriptions: Path
    described_all: bool
    chosen: Path | None


def _version(root: Path) -> str | None:
    return next((each for each in (_LATER, _V3) if _find(root, _paths("human", each, "train", boxable=True))), None)


def find_layout(root: Path, choice: str | None, asked: Sequence[str], problems: FileProblems) -> OpenImagesFiles:
    """Find all files that are needed and ``asked`` for; what is missing is one error. Without a choice they choose."""
    version = _version(root) or _V3
    full, boxable = (_find(root, _prefixed(name)) for name in (_DESCRIPTIONS, _BOXABLE))
    if choice is None:
        only_boxable = full is None and boxable is not None
        choice = "trainable" if _find(root, _prefixed(_TRAINABLE)) else "boxable" if only_boxable else "all"
    splits = {}
    for name, official in OFFICIAL_SPLITS.items():
        paths = {key: _paths(key, version, official, boxable=choice == "boxable") for key in ("human", *asked)}
        splits[name] = {key: _require(root, each, problems) for key, each in paths.items()}
        other = _find(root, _paths("human", _LATER if version == _V3 else _V3, official))
        if splits[name]["human"] is None and other is not None:
            problems.add(other, "is of another version than the labels of train")
    descriptions = full or (boxable if choice == "boxable" else None)
    descriptions = descriptions or _require(root, _prefixed(_DESCRIPTIONS), problems)
    lists = {"trainable": _prefixed(_TRAINABLE), "boxable": ["classes-bbox.txt"]}
    chosen = boxable if choice == "boxable" else None
    if choice in lists and chosen is None:
        chosen = _require(root, lists[choice], problems, "; --classes all takes every class")
    if problems and version == _V3 and any(root.glob("*2016_08*")):
        problems.add(root, "this looks like Open Images V1 (2016_08): labelgap reads V2 to V7")
    problems.refuse()
    return OpenImagesFiles(root, version, choice, splits, descriptions or root, full is not None, chosen)


def _prefixed(name: str) -> list[str]:
    return [f"{prefix}{name}" for prefix in _PREFIXES]


def _paths(key: str, version: str, official: str, *, boxable: bool = False) -> list[str]:
    """Return the paths that a file of a split can have, the newest version first."""
    v3, later, _ = _SPLIT_FILES[key]
    if version == _V3:
        return [f"{official}/{v3}"]
    spellings = (official, "val") if official == "validation" else (official,)
    return [
        f"{folder}{prefix}{spelled}-{name}"
        for name in (later, *([_HUMAN_BOXABLE] if boxable and key == "human" else []))
        for folder in ("", f"{official}/")
        for prefix in _PREFIXES
        for spelled in spellings
    ]


def _find(root: Path, names: Iterable[str]) -> Path | None:
    places = [root, *(root / name for name in _ARCHIVES if (root / name).is_dir())]
    return next((place / name for name in names for place in places if (place / name).is_file()), None)


def _require(root: Path, names: Sequence[str], problems: FileProblems, remedy: str = "") -> Path | None:
    found = _find(root, names)
    if found is None:
        shortest = min(names, key=len)
        rest = ", ".join(name for name in names if name != shortest and (len(names) < 4 or "/" not in name))
        problems.add(root / shortest, f"is missing{f' (or {rest})' if rest else ''}{remedy}")
    return found


def _required(official: str, key: str) -> RequiredFile:
    v3, later, content = _SPLIT_FILES[key]
    spelled = "val*" if official == "validation" else official
    names = [later, *([_HUMAN_BOXABLE] if key == "human" else [])]
    others = (f"*/{official}/{v3}", *(f"*{spelled}-{name}" for name in names))
    return RequiredFile(f"{official}/{v3}", content, others, optional=key != "human")


def _class_file(name: str, content: str, *others: str, optional: bool = False) -> RequiredFile:
    return RequiredFile(name, content, (f"*/{name}", f"oidv*-{name}", *others), optional)


OPENIMAGES_LAYOUT: Final = DatasetLayout(
    "storage.googleapis.com/openimages/web (V4 to V7), github.com/openimages/dataset (V3); images: CVDF",
    "annotations CC BY 4.0 (Google); images listed as CC BY 2.0, to be verified for each",
    "openimages/",
    (
        _class_file(_DESCRIPTIONS, "id and name of every class", f"*{_BOXABLE}", f"*/{_BOXABLE}"),
        _class_file(_TRAINABLE, "the classes in use, unless --classes says otherwise; without it all", optional=True),
        *(_required(official, key) for official in OFFICIAL_SPLITS.values() for key in _SPLIT_FILES),
        RequiredFile("train/*.jpg", "ID.jpg", ("train_0/*.jpg", "images/train/*.jpg", "images/*.jpg"), optional=True),
    ),
    lambda path: path if path.is_dir() and _version(path) else None,
    (
        "a label is known where people verified it: Confidence 1 is present, 0 is absent; all others are unknown",
        "images may lie in train, validation and test, in train_0 to train_f, or in one folder; --images names another",
    ),
    tried=False,
)


_SURROGATE: Final = re.compile("[\udc80-\udcff]")  # a byte that is not UTF-8


@dataclass(frozen=True)
class ClassList:
    """The classes to use, the others (id → name), and whether a class that is in neither is an error."""

    ids: tuple[str, ...]
    names: tuple[str, ...]
    others: Mapping[str, str]
    complete: bool


def read_classes(layout: OpenImagesFiles, words: Sequence[str], problems: FileProblems) -> ClassList:
    """Read the names of all classes, and choose those to use; of two with one name the ids are added."""
    described = _read_names(layout.descriptions, None, problems)
    ids = list(described)
    if layout.chosen is not None and layout.chosen != layout.descriptions:
        ids = list(_read_names(layout.chosen, described, problems))
    if not ids:
        problems.add(layout.chosen or layout.descriptions, "has no classes")
    problems.refuse()
    repeated = Counter(described.values())
    names = {each: name if repeated[name] == 1 else f"{name} ({each})" for each, name in described.items()}
    if not (len(words) == 1 and words[0] in CLASS_CHOICES):
        known = {**{name: each for each, name in names.items()}, **{each: each for each in described}}
        if not words or (alone := next((word for word in words if word in CLASS_CHOICES), None)):
            what = f"'{alone}' stands for a whole list, and cannot be joined with others" if words else "there are none"
            raise InputError(f"classes={','.join(words)}: {what}.")
        if unknown := next((word for word in words if word not in known), None):
            raise UnknownNameError("class of Open Images called", unknown, [*known, *CLASS_CHOICES])
        ids = list(dict.fromkeys(known[word] for word in words))
    used = set(ids)
    others = {each: name for each, name in names.items() if each not in used}
    return ClassList(tuple(ids), tuple(names[each] for each in ids), others, layout.described_all)


def _read_names(path: Path, described: Mapping[str, str] | None, problems: FileProblems) -> dict[str, str]:
    """Read ``id,name`` lines, after a header in V6 and V7; a list of ids that are ``described`` needs no names."""
    found, lines = dict[str, str](), dict[str, int]()
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        reader = csv.reader(file)
        try:
            for cells in reader:
                each, text = cells[0].strip() if cells else "", ""
                if not any(cells) or (reader.line_num == 1 and each == "LabelName"):
                    continue
                if not each or (described is None and len(cells) < 2):
                    text = "a line is the id of a class and its name"
                elif _SURROGATE.search("".join(cells)):
                    text = "bytes that are no UTF-8 text: is the file damaged?"
                elif each in found:
                    text = f"the class {truncate_text(each)} is listed again (first in line {lines[each]})"
                elif described is not None and each not in described:
                    text = f"the class {truncate_text(each)} has no name in the class descriptions"
                else:
                    found[each], lines[each] = "".join(cells[1:2]).strip() or each, reader.line_num
                if text:
                    problems.add(path, text, reader.line_num)
        except csv.Error as error:
            problems.add(path, f"no CSV ({error}); is a quote opened and never closed?", reader.line_num)
    return found


_LENGTH: Final = 16
_WORD: Final = pa.dictionary(pa.int32(), pa.binary())
_INVALID: Final = 255
_NIBBLES: Final = np.full(256, _INVALID, dtype=np.uint8)
_NIBBLES[np.frombuffer(b"0123456789abcdef", dtype=np.uint8)] = np.arange(16)
_CONFIDENCES: Final = {b"0": ABSENT, b"1": PRESENT, b"0.0": ABSENT, b"1.0": PRESENT}
_BLOCK_BYTES: Final = 8 << 20

Words = Sequence[bytes]
Check = tuple[Callable[[Words], NDArray[np.bool_]], str]
"""Which words of a column are valid, and what is wrong with another one, which is ``{}`` there."""


class CsvColumn(NamedTuple):
    """A column of a CSV: its different words, and the number of the word of every row."""

    words: Words
    numbers: NDArray[np.int32]


_EMPTY: Final = CsvColumn((), np.zeros(0, dtype=np.int32))


def read_columns(
    path: Path,
    checks: Mapping[str, Check | None],
    problems: FileProblems,
    optional: str = "",
    check_rows: tuple[Callable[[Mapping[str, CsvColumn]], NDArray[np.bool_]], str] | None = None,
) -> dict[str, CsvColumn]:
    """Read columns of a CSV with a header at once; where a word or a row is wrong, they are empty.

    The lines of what is wrong are found by a second, slow pass over the file. ``check_rows`` says which rows are valid,
    and what is wrong with the others.
    """
    empty: dict[str, CsvColumn] = dict.fromkeys(checks, _EMPTY)
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        header = next(csv.reader([file.readline(1 << 16)]), [])
    if wrong := [name for name in checks if header.count(name) != 1]:
        what = "is twice the" if wrong[0] in header else "is no"
        found = truncate_text(", ".join(header), 120)
        problems.add(path, f"there {what} column {', '.join(wrong)}; the columns are {found or 'none'}", 1)
        return empty
    names = [*checks, *([optional] if optional in header else [])]
    try:
        table, sound = _parse(path, names, None), True
    except pa.ArrowInvalid:  # of a row with other cells; its handler would see no text that is not UTF-8
        try:
            table, sound = _parse(path, names, lambda row: "skip"), False
        except pa.ArrowException as error:
            problems.add(path, f"cannot be read ({truncate_text(str(error), 200)})")
            return empty
    table = table.combine_chunks()  # one dictionary for each column
    parts = {name: table[name].chunk(0) for name in names} if table.num_rows else {}
    columns = {name: CsvColumn(part.dictionary.to_pylist(), part.indices.to_numpy()) for name, part in parts.items()}
    bad: dict[int, tuple[set[bytes], str]] = {}
    for name, check in checks.items():
        if check is not None and name in columns and not (valid := check[0](words := columns[name].words)).all():
            bad[header.index(name)] = {words[number] for number in np.flatnonzero(~valid).tolist()}, check[1]
    wrong_rows = {*np.flatnonzero(~check_rows[0](columns)).tolist()} if check_rows and columns else set[int]()
    if sound and not bad and not wrong_rows:
        return columns or empty
    before, written = len(problems), "latin-1" if sound else "utf-8"
    row = -1
    for line, cells in _records(path):
        if len(cells) != len(header):
            hint = ": is the file truncated?" if len(cells) < len(header) else ""
            if not decodes("".join(cells).encode("latin-1"), "utf-8"):
                hint = ", and bytes that are no UTF-8 text: is the file damaged?"
            problems.add(path, f"{len(cells)} of {len(header)} cells{hint}", line)
            continue
        row += 1
        if check_rows and row in wrong_rows:
            problems.add(path, check_rows[1], line)
        for place, (invalid, message) in bad.items():
            if cells[place].encode(written) in invalid:
                word = cells[place].encode("latin-1").decode("utf-8", "replace")
                problems.add(path, message.format(truncate_text(word)), line)
    if len(problems) == before:
        problems.add(path, "cannot be read as CSV: is a quote opened and never closed?")
    return empty


def _parse(path: Path, columns: Sequence[str], on_invalid: Callable[[Any], str] | None) -> pa.Table:
    file = pa.OSFile(os.fspath(path))
    if file.read(len(codecs.BOM_UTF8)) != codecs.BOM_UTF8:
        file.seek(0)
    encoding = "utf8" if on_invalid is None else "latin-1"  # pyarrow prints a traceback where it cannot decode a row
    return arrow_csv.read_csv(
        file,
        read_options=arrow_csv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES, encoding=encoding),
        parse_options=arrow_csv.ParseOptions(invalid_row_handler=on_invalid, newlines_in_values=True),
        convert_options=arrow_csv.ConvertOptions(
            include_columns=list(columns), column_types=dict.fromkeys(columns, _WORD)
        ),
    )


def _records(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the first line and the cells of every row after the header, slowly: for the lines of problems."""
    with path.open(encoding="latin-1", newline="") as file, suppress(csv.Error):
        reader = csv.reader(file)
        next(reader)
        first = reader.line_num + 1
        for cells in reader:
            if cells:
                yield first, cells
            first = reader.line_num + 1


def image_ids(words: Words) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """Return image ids, 16 hexadecimal digits, as numbers; and which words are one."""
    digits = np.array([word if len(word) == _LENGTH else b"" for word in words], dtype=f"S{_LENGTH}")
    nibbles = _NIBBLES[digits.view(np.uint8).reshape(-1, _LENGTH)]
    ids = ((nibbles[:, 0::2] << 4) | (nibbles[:, 1::2] & 15)).view(">u8")[:, 0].astype(np.uint64)
    return ids, (nibbles != _INVALID).all(axis=1)


def format_ids(ids: NDArray[np.uint64]) -> list[str]:
    """Return numbers as image ids."""
    text = ids.astype(">u8").tobytes().hex()
    return [text[start : start + _LENGTH] for start in range(0, len(text), _LENGTH)]


_IS_ID: Final[Check] = (
    lambda words: image_ids(words)[1],
    "'{}' is not an image id: 16 hexadecimal digits in lower case",
)
_IS_VERIFIED: Final[Check] = (
    lambda words: np.array([word in _CONFIDENCES for word in words], dtype=bool),
    "a verified label has a Confidence of 1 or 0, not '{}'",
)


def _is_share(column: str) -> Check:
    """Return the check of a column of numbers from 0 to 1."""

    def valid(words: Words) -> NDArray[np.bool_]:
        values = _numbers(words)
        return (values >= 0) & (values <= 1)

    return valid, f"{column} '{{}}' is not a number from 0 to 1"


def _numbers(words: Words) -> NDArray[np.float64]:
    found = np.full(len(words), np.nan)
    for number, word in enumerate(words):
        with suppress(ValueError):
            found[number] = float(word)
    return found


@dataclass(frozen=True, eq=False)
class SplitLabels:
    """The known labels of a split."""

    ids: NDArray[np.uint64]  # ``(N,)`` the images that have a known label, ascending
    places: NDArray[np.int64]  # ``(L,)`` row · K + class number of every known label, ascending
    values: NDArray[np.int8]  # ``(L,)`` PRESENT or ABSENT
    left_out: int = 0  # rows about classes that are not used
    repeated: int = 0  # rows that say again what another says
    contradicted: int = 0  # labels that were verified as present and as absent: they are unknown
    machine: int = 0  # labels that a network gave


def sorted_unique(numbers: NDArray[Any]) -> NDArray[Any]:
    """Sort numbers in place, and return those that differ; ``np.unique`` hashes, and takes five times as long."""
    numbers.sort()
    return numbers[np.append(True, numbers[1:] != numbers[:-1])] if len(numbers) else numbers


class _Rows(NamedTuple):
    """The rows of a file about classes in use: image ids, and of a row the number of the id and 2 · class + value."""

    ids: NDArray[np.uint64]
    images: NDArray[np.int32]
    labels: NDArray[np.int32]
    left_out: int

    def used_ids(self) -> NDArray[np.uint64]:
        return self.ids[np.bincount(self.images, minlength=len(self.ids)) > 0]

    def keys(self, images: NDArray[np.uint64], classes: int) -> NDArray[np.int64]:
        """Return the different values of 2 · (row · K + class number) + value, ascending."""
        keys = (np.searchsorted(images, self.ids) * (2 * classes))[self.images]
        keys += self.labels
        return sorted_unique(keys)


def read_labels(
    human: Path, machine: tuple[Path, float] | None, classes: ClassList, problems: FileProblems
) -> SplitLabels:
    """Read what people verified, and from a confidence on what a network gave."""
    rows = _read_rows(human, classes, None, problems)
    given = None if machine is None else _read_rows(machine[0], classes, machine[1], problems)
    images = sorted_unique(np.concatenate([each.used_ids() for each in (rows, given) if each is not None]))
    places, count, added = rows.keys(images, len(classes.ids)), len(classes.ids), 0
    repeated, values = len(rows.labels) - len(places), (places & 1).astype(np.int8)
    places >>= 1
    twice, verified = np.flatnonzero(places[1:] == places[:-1]), places
    if len(twice):
        lost = np.concatenate([twice, twice + 1])
        places, values = np.delete(places, lost), np.delete(values, lost)
    if given is not None:
        more = np.setdiff1d(given.keys(images, count) >> 1, verified, assume_unique=True)
        added = len(more)
        places, values = np.append(places, more), np.append(values, np.full(added, PRESENT, dtype=np.int8))
        order = np.argsort(places)
        places, values = places[order], values[order]
    if len(twice):  # an image may have no other label
        row = places // count
        labeled = np.bincount(row, minlength=len(images)) > 0
        images, places = images[labeled], places - (np.cumsum(~labeled) * count)[row]
    return SplitLabels(images, places, values, rows.left_out, repeated, len(twice), added)


def _read_rows(path: Path, classes: ClassList, threshold: float | None, problems: FileProblems) -> _Rows:
    """Read a file of labels; with a threshold those of a network, of which the confident ones are present."""
    confidence = _IS_VERIFIED if threshold is None else _is_share("Confidence")
    checks = {"ImageID": _IS_ID, "LabelName": _is_described(classes), "Confidence": confidence}
    images, labels, confidences = read_columns(path, checks, problems).values()
    number = _class_numbers(labels, classes)
    used = chosen = number < len(classes.ids)
    if threshold is None:
        states = np.array([_CONFIDENCES[word] for word in confidences.words], dtype=np.int8)
        values = states[confidences.numbers]
    else:
        values = np.full(len(number), PRESENT, dtype=np.int8)
        used = chosen & (_numbers(confidences.words) >= threshold)[confidences.numbers]
    labeled = 2 * number[used] + values[used]
    return _Rows(image_ids(images.words)[0], images.numbers[used], labeled, int((~chosen).sum()))


def _is_described(classes: ClassList) -> Check | None:
    """Return the check of the ids of classes; None where the descriptions are not those of all."""
    if not classes.complete:
        return None
    known = {each.encode() for each in (*classes.ids, *classes.others)}
    message = "the class {} is not in the class descriptions"
    return lambda words: np.array([word in known for word in words], dtype=bool), message


def _class_numbers(column: CsvColumn, classes: ClassList) -> NDArray[np.int32]:
    numbers = {each.encode(): number for number, each in enumerate(classes.ids)}
    known = np.array([numbers.get(word, len(numbers)) for word in column.words], dtype=np.int32)
    return known[column.numbers]


_EDGES: Final = ("XMin", "YMin", "XMax", "YMax")


def read_boxes(
    path: Path,
    classes: ClassList,
    ids: NDArray[np.uint64],
    images: FileImages,
    problems: FileProblems,
    left_out: Counter[str],
) -> Boxes:
    """Read the boxes of images (ascending ids) and classes in use, sorted; ``left_out`` counts those of others."""
    checks = {"ImageID": _IS_ID, "LabelName": None, **{name: _is_share(name) for name in _EDGES}}
    backward = "a box that ends before it begins: XMin ≤ XMax and YMin ≤ YMax"
    file = read_columns(path, checks, problems, "IsGroupOf", (_end_after_begin, backward))
    found, edges = image_ids(file["ImageID"].words)[0], _edges(file)
    number, row_of = _class_numbers(file["LabelName"], classes), np.searchsorted(ids, found)
    there = np.isin(found, ids)[file["ImageID"].numbers]
    used = np.flatnonzero(there & (number < len(classes.ids)))
    others = file["LabelName"].numbers[there & (number == len(classes.ids))]
    for word, count in zip(*np.unique(others, return_counts=True), strict=True):
        name = file["LabelName"].words[word].decode("utf-8", "replace")
        left_out[truncate_text(classes.others.get(name, name))] += int(count)
    image, kind = row_of[file["ImageID"].numbers[used]], number[used].astype(np.int64)
    order = np.lexsort((kind, image))
    used, image, kind = used[order], image[order], kind[order]
    group = np.zeros(len(used), dtype=bool)
    if (column := file.get("IsGroupOf")) is not None:
        group = np.array([word == b"1" for word in column.words], dtype=bool)[column.numbers[used]]
    return Boxes(image, kind, _pixels(edges[used], image, images), group)


def _edges(columns: Mapping[str, CsvColumn]) -> NDArray[np.float64]:
    return np.stack([_numbers(columns[name].words)[columns[name].numbers] for name in _EDGES], axis=-1)


def _end_after_begin(columns: Mapping[str, CsvColumn]) -> NDArray[np.bool_]:
    edges = _edges(columns)
    return np.asarray(~(edges[:, 2:] < edges[:, :2]).any(axis=1))  # what is no number is told for itself


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


def _find_images(places: Sequence[Path], folder: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for place in places:
        head = "" if place == folder else f"{os.path.relpath(place, folder)}/"
        with os.scandir(place) as entries:
            for entry in entries:
                if entry.name.endswith(".jpg"):
                    found.setdefault(entry.name.removesuffix(".jpg"), head + entry.name)
    return found


def _image_places(folder: Path, official: str) -> list[Path]:
    """Return the folders that images of a split can be in."""
    parts = [official, *(f"{official}_{digit:x}" for digit in range(16)), *(["val"] if "val" in official else [])]
    bases = [base for base in (folder, folder / "images") if base.is_dir()]
    return [place for base in bases for place in (*(base / part for part in parts), base) if place.is_dir()]


_CLASSES_SHOWN: Final = 8


def load_openimages(
    path: str | os.PathLike[str],
    images: str | os.PathLike[str] | None = None,
    *,
    classes: str | Sequence[str] | None = None,
    machine: float | None = None,
    boxes: bool = False,
    on_bad_image: str = "error",
) -> Dataset:
    """Read Open Images: verified labels, names of classes, images, and boxes on request.

    Args:
        path: the folder with the CSV files, in the layout of V3 (a folder per split) or of V4 to V7.
        images: the folder with the images, ``ID.jpg`` in ``train``, ``validation`` and ``test`` or all in one; that of
            the CSV files, or ``images`` in it, when not given.
        classes: "trainable", "boxable", "all", or names or ids of classes. Without it the trainable ones where their
            list (``classes-trainable.txt``) is there, else all that are described.
        machine: the confidence from which a label that a network gave, and nobody verified, is present; None for none.
        boxes: whether to read where objects are. The header of every image with a box is read for its size.
        on_bad_image: "error" for images that have no file, "skip" to leave them out.
    """
    refuse_url(path, "images")
    root = Path(path)
    if not root.is_dir():
        raise InputError(f"{root} is not a folder: give the one with the files of Open Images.")
    if machine is not None and not 0 < machine <= 1:
        raise InputError(f"machine={machine}: a confidence is a number above 0, at most 1.")
    check_choice("on_bad_image", on_bad_image, ("error", "skip"))
    problems = FileProblems(root)
    words = [classes] if isinstance(classes, str) else list(classes or ())
    choice = words[0] if len(words) == 1 and words[0] in CLASS_CHOICES else None if classes is None else "all"
    asked = [*(["machine"] if machine is not None else []), *(["boxes"] if boxes else [])]
    layout = find_layout(root, choice, asked, problems)
    chosen = read_classes(layout, words if classes is not None else [layout.choice], problems)
    read = dict[str, SplitLabels]()
    for name, found in layout.splits.items():
        network = None if machine is None else (found["machine"] or root, machine)
        read[name] = read_labels(found["human"] or root, network, chosen, problems)
    for (first, one), (second, other) in combinations(read.items(), 2):
        if len(both := np.intersect1d(one.ids, other.ids, assume_unique=True)):
            count = pluralize(len(both), "image")
            problems.add(root, f"{count} in {first} and in {second}, e.g. {format_ids(both[:1])[0]}")
    folder, findings = image_folder(root / "_", images), _describe(layout, read, machine)
    if classes is None and layout.choice != "trainable":
        count = pluralize(len(chosen.ids), "class")
        findings.append(Note(f"there is no classes-trainable.txt: {count} of {layout.descriptions.name} are used"))
    splits, left_out = dict[str, Split](), Counter[str]()
    for name, labels in read.items():
        places = _image_places(folder, OFFICIAL_SPLITS[name])
        files = _find_images(places, folder)
        exists = np.array([image in files for image in format_ids(labels.ids)], dtype=bool)
        missing = format_ids(labels.ids[~exists])
        if len(missing) and on_bad_image == "error":
            problems.add(
                folder,
                f"{len(missing):,} of {len(exists):,} {OFFICIAL_SPLITS[name]} images have no file, e.g. "
                f"{missing[0]}.jpg (searched: {', '.join(map(str, places)) or 'no folder'}); --images "
                "names their folder, --on-bad-image skip leaves them out",
            )
        elif len(missing):
            findings.append(Note(f"{name}: {pluralize(len(missing), 'image')} without a file left out", "images"))
        if problems:
            continue
        table = _table(labels, chosen).select(np.flatnonzero(exists))
        source = FileImages(folder, table.images, [files[image] for image in table.images])
        drawn = None
        if (place := layout.splits[name].get("boxes")) is not None:
            drawn = read_boxes(place, chosen, labels.ids[exists], source, problems, left_out)
        splits[name] = Split(name, source, table, boxes=drawn)
    problems.refuse()
    if left_out:
        shown = join_names([f"{name} {count:,}" for name, count in left_out.most_common()], _CLASSES_SHOWN)
        findings.append(Note(f"{pluralize(left_out.total(), 'box')} of classes not in use left out: {shown}"))
    if not len(splits["train"]):
        raise InputError(f"{root}: no image of train has a known label of the {len(chosen.ids):,} classes and a file.")
    if not len(splits["val"]):
        findings.append(NoValRows(len(splits["train"])))
    val, test = (splits[name] if len(splits[name]) else None for name in ("val", "test"))
    return Dataset("openimages", splits["train"], val, test, findings=tuple(findings))


def _table(labels: SplitLabels, classes: ClassList) -> LabelTable:
    width = len(classes.ids)
    starts = np.searchsorted(labels.places, np.arange(len(labels.ids) + 1) * width)
    columns = (labels.places % width).astype(np.int32)
    return LabelTable(starts, columns, labels.values, classes.names, UniqueNames(format_ids(labels.ids)))


def _describe(layout: OpenImagesFiles, read: Mapping[str, SplitLabels], machine: float | None) -> list[Finding]:
    counted = ("left_out", "contradicted", "repeated", "machine")
    total = {field: sum(getattr(labels, field) for labels in read.values()) for field in counted}
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
