"""Multi-label tables in ARFF: numbers and nominal values as features, and labels of three states; no pixels.

Mulan names the labels in ``NAME.xml``. MEKA's relation counts them: ``NAME: -C 6``, or ``-C -6`` for the last six.
References: Tsoumakas et al., "Mulan", JMLR 2011; Read et al., "MEKA", JMLR 2016.
"""

from __future__ import annotations

import math
import os
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final, TextIO

import numpy as np
from numpy.typing import NDArray

from labelgap.core.errors import InputError, RunError, UnknownNameError, describe_missing_path
from labelgap.core.findings import Caution, Finding, Note
from labelgap.core.stored import check_ordinary, parse_xml, read_bytes
from labelgap.core.text import format_option, pluralize, truncate_text
from labelgap.data.dataset import Dataset, Split
from labelgap.data.findings import count_labels, describe_splits
from labelgap.data.images import FeatureVectors
from labelgap.data.readers.common import DatasetLayout, FileProblems, RequiredFile
from labelgap.data.readers.features import feature_dataset
from labelgap.data.readers.image_paths import refuse_url
from labelgap.labels import ABSENT, PRESENT, UNKNOWN, LabelTable

_QUOTED: Final = r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\""""
_ESCAPED: Final = r"""\\['"]?+"""
"""A backslash outside of quotes, with the quote that it escapes; possessive: there is one way to read a line."""
_NAME: Final = rf"(?:{_ESCAPED}|[^\s{{'\"\\])+"
_ATTRIBUTE: Final = re.compile(rf"@attribute\s+({_QUOTED}|{_NAME})\s*(.*)", re.IGNORECASE | re.DOTALL)
_PIECE: Final = re.compile(rf"(?:{_QUOTED}|{_ESCAPED}|[^,'\"\\])*")
_COMMENT: Final = re.compile(rf"((?:{_QUOTED}|{_ESCAPED}|[^%'\"\\])*)%")
_SPARSE_CELL: Final = re.compile(r"(\d+)\s+(.*)", re.DOTALL)
_NUMERIC: Final = ("numeric", "real", "integer")
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_MISSING: Final = math.nan
_MAX_NUMBER: Final = 3.4028234663852886e38  # the largest number of single precision, which features have


@dataclass(frozen=True)
class Attribute:
    """A column: "numeric", "nominal" (one of ``values``) or "text" (strings and dates)."""

    name: str
    kind: str
    values: tuple[str, ...] = field(default=())
    line: int = field(default=0, compare=False)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {value: number for number, value in enumerate(self.values)}

    def parse(self, cell: str) -> float:
        """Return a cell as a number, that of its value where it is nominal; NaN where it is missing."""
        if cell == "?":
            return _MISSING
        if self.kind == "text":
            return 0.0
        if self.kind == "nominal":
            number = self._numbers.get(cell)
            number = self._numbers.get(unquote(cell)) if number is None else number
            if number is None:
                allowed = truncate_text(", ".join(self.values), 80)
                raise ValueError(
                    f"'{truncate_text(cell)}' under {truncate_text(self.name)}: it must be one of {allowed}"
                )
            return number
        try:
            value = float(unquote(cell))
        except ValueError:
            value = math.inf
        if not abs(value) <= _MAX_NUMBER or "_" in cell:
            raise ValueError(f"'{truncate_text(cell)}' under {truncate_text(self.name)}: it is no number, or too large")
        return value


@dataclass(eq=False)
class ArffFile:
    """What an ARFF file holds: the cells of all rows in one sequence (``ends`` of every row), but those that are 0."""

    path: Path
    relation: str = ""
    relation_line: int = 1
    attributes: list[Attribute] = field(default_factory=list)
    lines: array[int] = field(default_factory=lambda: array("q"))
    ends: array[int] = field(default_factory=lambda: array("q"))
    columns: array[int] = field(default_factory=lambda: array("i"))
    cells: array[float] = field(default_factory=lambda: array("f"))

    def dense(self, columns: Sequence[int]) -> NDArray[np.float32]:
        """Return the cells of some columns, ``(rows, columns)``."""
        from scipy.sparse import csr_array

        content = np.asarray(self.cells), np.asarray(self.columns), np.append(0, np.asarray(self.ends, dtype=np.int64))
        table = csr_array(content, shape=(len(self.lines), len(self.attributes)))
        return np.asarray(table[:, list(columns)].toarray(), dtype=np.float32)


def parse_arff(path: Path, file: TextIO, problems: FileProblems) -> ArffFile:
    """Parse a file, dense or sparse; rows with a problem are reported and left out.

    A column that a sparse row leaves out is 0, or the *first* of its nominal values; ``?`` is missing.
    """
    found = ArffFile(path)
    lines = _code_lines(file)
    if not _parse_header(found, lines, problems):
        return found
    any_row = False
    for number, line in lines:
        any_row = True
        try:
            cells = _sparse_cells(line, found) if line.startswith("{") else _dense_cells(line, found)
        except ValueError as error:
            problems.add(path, str(error), number)
            continue
        for column, cell in cells:
            found.columns.append(column)
            found.cells.append(cell)
        found.lines.append(number)
        found.ends.append(len(found.cells))
    if not any_row:
        problems.add(path, "there is no row after @data: is the file complete?")
    return found


def unquote(text: str) -> str:
    """Return a name or a value without the quotes around it and the backslashes within."""
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1]
    return _ESCAPE.sub(r"\1", text) if "\\" in text else text


def _code_lines(file: TextIO) -> Iterator[tuple[int, str]]:
    """Yield the lines that are neither blank nor a comment, without comments at their end."""
    for number, line in enumerate(file, 1):
        line = line.strip()
        if "%" in line and (match := _COMMENT.match(line)) is not None:
            line = match[1].strip()
        if line:
            yield number, line


def _parse_header(found: ArffFile, lines: Iterator[tuple[int, str]], problems: FileProblems) -> bool:
    good, last = True, 0
    seen: dict[str, int] = {}
    for number, line in lines:
        last = number
        keyword = line.split(None, 1)[0].lower()
        if keyword == "@data":
            if not found.attributes:
                problems.add(found.path, "there is no @attribute before @data", number)
            return good and bool(found.attributes)
        if keyword == "@relation":
            found.relation, found.relation_line = unquote(line[len("@relation") :].strip()), number
            continue
        try:
            attribute = _parse_attribute(line, number)
            if (first := seen.setdefault(attribute.name, number)) != number:
                raise ValueError(f"'{truncate_text(attribute.name)}' is declared again (first in line {first})")
            found.attributes.append(attribute)
        except ValueError as error:
            problems.add(found.path, str(error), number)
            good = False
    problems.add(found.path, "the file ends before @data: is it complete?", last or None)
    return False


def _parse_attribute(line: str, number: int) -> Attribute:
    match = _ATTRIBUTE.fullmatch(line)
    if match is None:
        raise ValueError(f"'{truncate_text(line)}': a line before @data is @relation NAME or @attribute NAME TYPE")
    name, kind = unquote(match[1]), match[2].strip()
    if kind.startswith("{"):
        if not kind.endswith("}"):
            raise ValueError(f"the values of '{truncate_text(name)}' have no closing brace")
        values = tuple(map(unquote, _split(kind[1:-1])))
        if len({*values}) < len(values) or not all(values):
            raise ValueError(f"a value of '{truncate_text(name)}' is there twice, or is blank")
        return Attribute(name, "nominal", values, number)
    word = kind.lower().split(None, 1)[0] if kind else ""
    if word in _NUMERIC:
        return Attribute(name, "numeric", line=number)
    if word in ("string", "date"):
        return Attribute(name, "text", line=number)
    raise ValueError(
        f"'{truncate_text(name)}' is of type '{truncate_text(kind)}': numeric, string, date or {{values}} are read"
    )


def _split(text: str) -> list[str]:
    if "'" not in text and '"' not in text:
        return [part.strip() for part in text.split(",")]
    parts, place = list[str](), 0
    while True:
        match = _PIECE.match(text, place)
        assert match is not None  # it matches nothing, too
        parts.append(match[0].strip())
        place = match.end() + 1
        if place > len(text):
            return parts
        if text[place - 1] != ",":
            raise ValueError("a quote is opened and never closed")


def _dense_cells(line: str, found: ArffFile) -> list[tuple[int, float]]:
    cells, attributes = _split(line), found.attributes
    if len(cells) != len(attributes):
        raise ValueError(f"{len(cells)} cells where there are {len(attributes)} attributes")
    numbers = [attribute.parse(cell) for attribute, cell in zip(attributes, cells, strict=True)]
    return [(column, number) for column, number in enumerate(numbers) if number]


def _sparse_cells(line: str, found: ArffFile) -> list[tuple[int, float]]:
    if not line.endswith("}"):
        raise ValueError("a sparse row has no closing brace: is the file complete?")
    cells: dict[int, float] = {}
    for part in _split(line[1:-1]) if line[1:-1].strip() else ():
        match = _SPARSE_CELL.fullmatch(part)
        if match is None:
            raise ValueError(f"'{truncate_text(part)}': a cell of a sparse row is a number of a column and its value")
        column = int(match[1][:12])
        if column >= len(found.attributes):
            raise ValueError(f"there is no column {column}: they are counted from 0 to {len(found.attributes) - 1}")
        if column in cells:
            raise ValueError(f"column {column} is there twice")
        cells[column] = found.attributes[column].parse(match[2].strip())
    return list(cells.items())


_COUNT: Final = re.compile(r"(?:^|[\s:])-C\s+(-?\d{1,9})(?!\S)")
_STATES: Final = {
    **dict.fromkeys(("1", "1.0", "true", "yes", "y", "t"), PRESENT),
    **dict.fromkeys(("0", "0.0", "false", "no", "n", "f"), ABSENT),
}
_TRAIN: Final = re.compile(r"-train(?=(?:-sparse)?$)")
_STEM: Final = re.compile(r"(?:[-_.](?:train|test|val))?(?:-sparse)?$", re.IGNORECASE)


def labels_file(path: Path) -> Path | None:
    """Return Mulan's XML of an ARFF file: NAME.xml beside NAME.arff or NAME-train.arff, or the only one there."""
    stems = (path.stem, _STEM.sub("", path.stem))
    named = next((place for stem in stems if (place := path.with_name(f"{stem}.xml")).is_file()), None)
    others = sorted(path.parent.glob("*.xml"))
    return named or (others[0] if len(others) == 1 else None)


def find_labels(file: ArffFile, xml: Path | None, problems: FileProblems) -> tuple[list[int], list[Finding]]:
    """Return the numbers of the attributes that are labels; empty, with problems, where that cannot be told.

    An XML of the file's name wins over MEKA's count, which may be older; where both exist, any other XML is of another
    table.
    """
    stem, line, width = _STEM.sub("", file.path.stem), file.relation_line, len(file.attributes)
    match = _COUNT.search(file.relation)
    count = int(match[1]) if match is not None else 0
    counted = list(range(width))[:count] if count > 0 else list(range(width))[count:]
    counted = counted if 0 < abs(count) <= width else []
    used = xml or labels_file(file.path)
    named, wrong = ([], []) if used is None else _read_names(used, file)
    own = xml is not None or (used is not None and used.stem in (stem, file.path.stem))
    if used is not None and (own or match is None or not wrong):
        for text in wrong:
            problems.add(used, text)
        text = f"-C {count} counts other labels than {used.name} names: those of the XML are used"
        stale = match is not None and named != counted
        return named, [Caution(f"{file.path.name}, line {line}: {text}", "source")] if stale else []
    if match is None:
        remedy = f"name Mulan's file (--xml {stem}.xml), or write MEKA's count into it: @relation '{stem}: -C 6'"
        problems.add(file.path, f"nothing says which attributes are labels: {remedy}", line)
    elif not counted:
        problems.add(file.path, f"-C {count} labels, and there are {width} attributes", line)
    return counted, []


def _read_names(xml: Path, file: ArffFile) -> tuple[list[int], list[str]]:
    """Return the attributes that an XML file names, in the order of the ARFF file, and what is wrong with it."""
    number_of = {attribute.name: number for number, attribute in enumerate(file.attributes)}
    try:
        root = parse_xml(read_bytes(xml, limit=16 << 20))
    except (RunError, ValueError) as error:
        return [], [f"cannot be read ({truncate_text(str(error), 200)})"]
    found, wrong = set[int](), list[str]()
    for each in (each for each in root.iter() if each.tag.rpartition("}")[2] == "label"):
        name = each.get("name", "")
        name = name if name in number_of else unquote(name)
        if name not in number_of:
            wrong.append(f"'{truncate_text(name)}' is no attribute of {file.path.name}")
        elif number_of[name] in found:
            wrong.append(f"the label '{truncate_text(name)}' is there twice")
        else:
            found.add(number_of[name])
    if not found and not wrong:
        wrong = ["names no label: it is <labels> of <label name=…/>"]
    return sorted(found), wrong


def label_states(attribute: Attribute) -> list[int] | None:
    """Return the state of every value of a label, which may be numeric (0 and 1); None where they are no states."""
    if attribute.kind == "numeric":
        return [ABSENT, PRESENT]
    states = [_STATES.get(value.lower()) for value in attribute.values]
    known = [state for state in states if state is not None]
    return known if known and len(known) == len(states) == len({*known}) else None


_SUFFIX: Final = ".arff"
_MIN_ROWS: Final = 10  # in a table with fewer, an attribute with as many values as there are rows says nothing
_MAX_BYTES: Final = 16 << 30  # bytes of the features of a file: they are dense in memory, whatever the file is


def load_arff(
    path: str | os.PathLike[str],
    *,
    val: str | os.PathLike[str] | None = None,
    test: str | os.PathLike[str] | None = None,
    xml: str | os.PathLike[str] | None = None,
    ignore_columns: Sequence[str] = (),
) -> Dataset:
    """Read ARFF of Mulan or MEKA: ``?`` in a label is unknown.

    A numeric attribute is one feature; a nominal one of two values is one (0 for the first, 1 for the second), of more
    values one for each of them. A missing feature is the mean over train; a missing nominal one has none of its values.

    Args:
        path: an ``.arff`` file, or the folder of ``NAME-train.arff``.
        val: a file of val rows, with the same attributes.
        test: a file of test rows; ``NAME-test.arff`` beside ``NAME-train.arff`` when not given.
        xml: Mulan's file of the names of the labels; when not given, ``NAME.xml`` or the only one of the folder.
        ignore_columns: attributes that are neither features nor labels.
    """
    refuse_url(path, "tables")
    train = find_arff(Path(path))
    if train is None:
        raise InputError(_describe_missing(Path(path)))
    paths = {"train": train, "val": None if val is None else Path(val), "test": None if test is None else Path(test)}
    beside = train.with_name(_TRAIN.sub("-test", train.stem) + train.suffix)
    if test is None and beside != train and beside.is_file():
        paths["test"] = beside
    problems = FileProblems(train.parent)
    files = {split: _parse_file(place, problems) for split, place in paths.items() if place is not None}
    problems.refuse()
    labels, findings = find_labels(files["train"], None if xml is None else Path(xml), problems)
    problems.refuse()
    kept = {each.name: number for number, each in enumerate(files["train"].attributes)}
    for name in dict.fromkeys(ignore_columns):
        if kept.pop(name, None) is None:
            raise UnknownNameError("attribute", truncate_text(name), map(truncate_text, kept), "(--ignore-columns)")
    labels = sorted({*labels}.intersection(kept.values()))
    used = [n for n in sorted({*kept.values()} - {*labels}) if files["train"].attributes[n].kind != "text"]
    _check(files, labels, used, problems)
    problems.refuse()
    return _dataset(train, files, labels, used, findings)


def find_arff(path: Path) -> Path | None:
    """Return the training file that a path leads to: itself, or the only one of a folder, NAME-train.arff first."""
    if not path.is_dir():
        return path if path.is_file() and path.suffix.lower() == _SUFFIX else None
    with os.scandir(path) as entries:  # of which there may be a million, of another kind
        found = sorted(path / entry.name for entry in entries if entry.name.lower().endswith(_SUFFIX))
    train = [child for child in found if _TRAIN.search(child.stem)] or found
    return train[0] if len(train) == 1 else None


def _describe_missing(path: Path) -> str:
    if not path.exists():
        return describe_missing_path(path)
    if path.is_file():
        return f"{path} is no .arff file."
    names = ", ".join(child.name for child in sorted(path.glob(f"*{_SUFFIX}"))[:5])
    return f"{path} holds several tables ({names}): name one of them." if names else f"{path} holds no .arff file."


def _parse_file(path: Path, problems: FileProblems) -> ArffFile:
    try:
        check_ordinary(path)  # opening a pipe would wait for ever
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            return parse_arff(path, file, problems)
    except RunError as error:
        problems.add(path, str(error))
    return ArffFile(path)


def _check(files: Mapping[str, ArffFile], labels: Sequence[int], used: Sequence[int], problems: FileProblems) -> None:
    """Report attributes that differ between files, labels that are no states, and a table without features."""
    train = files["train"]
    for number in labels:
        attribute = train.attributes[number]
        if label_states(attribute) is None:
            values = truncate_text(", ".join(attribute.values) or attribute.kind, 80)
            rule = "a label has the values 0 and 1 (or false and true, no and yes)"
            text = f"the label '{truncate_text(attribute.name)}' is {values}: {rule}"
            problems.add(train.path, text, attribute.line)
    for file in files.values():
        if file.attributes != train.attributes:
            _report_difference(file, train, problems)
            continue
        numeric = [number for number in labels if train.attributes[number].kind == "numeric"]
        cells = file.dense(numeric)
        for row, column in np.argwhere(~np.isnan(cells) & (cells != 0) & (cells != 1)).tolist():
            name = truncate_text(train.attributes[numeric[column]].name)
            problems.add(file.path, f"{cells[row, column]:g} under {name}: a label is 0 or 1", file.lines[row])
    features = [train.attributes[number] for number in used]
    if not features or not labels:
        lacking = "label" if features else "feature"
        problems.add(train.path, f"text and what is left out aside, it has no {lacking}")
    width = sum(len(each.values) if len(each.values) > 2 else 1 for each in features)
    size = 4 * width * max(len(file.lines) for file in files.values())
    if size > _MAX_BYTES:
        problems.add(train.path, f"its features would take {size / 2**30:.0f} GiB of memory")


def _report_difference(file: ArffFile, train: ArffFile, problems: FileProblems) -> None:
    for one, other in zip(file.attributes, train.attributes, strict=False):
        if one != other:
            here, there = (f"'{truncate_text(each.name)}' ({each.kind})" for each in (one, other))
            text = f"{here}, where line {other.line} of {train.path.name} has {there}, or other values of it"
            return problems.add(file.path, text, one.line)
    counts = f"{len(file.attributes)} attributes, and {train.path.name} {len(train.attributes)}"
    return problems.add(file.path, f"it has {counts}")


def _dataset(
    path: Path, files: Mapping[str, ArffFile], labels: Sequence[int], used: Sequence[int], found: Sequence[Finding]
) -> Dataset:
    attributes, rows = files["train"].attributes, len(files["train"].lines)
    text = sum(each.kind == "text" for each in attributes)
    parts, missing, means = {}, 0, np.empty(0)
    for split, file in files.items():
        vectors = _features(file, used)
        if split == "train":
            known = np.maximum((~np.isnan(vectors)).sum(axis=0), 1)
            means = np.nansum(vectors, axis=0, dtype=np.float64) / known
        gaps = np.nonzero(np.isnan(vectors))
        vectors[gaps] = means[gaps[1]]
        missing += len(gaps[0])
        names = [f"{file.path.name}:{line}" for line in file.lines]
        table = LabelTable.from_dense(_codes(file, labels), [attributes[n].name for n in labels], names)
        parts[split] = Split(split, FeatureVectors(vectors, names), table)
    findings: list[Finding] = [
        Note(
            f"{pluralize(len(used), 'attribute')} as {pluralize(len(means), 'feature')}; "
            "labels: 1 = present, 0 = absent, ? = unknown"
        )
    ]
    if text:
        findings.append(Note(f"{pluralize(text, 'attribute')} of text or dates left out", "source"))
    if missing:
        findings.append(Note(f"{missing:,} missing features are the means of train", "source"))
    findings += found
    for each in (attributes[number] for number in used):
        if len(each.values) >= rows >= _MIN_ROWS:
            name, values = truncate_text(each.name), f"{len(each.values):,} values for {rows:,} rows of train"
            remedy = f"if it names the rows, {format_option('ignore-columns', each.name)}"
            findings.append(Caution(f"{name} has {values}, a feature of each: {remedy}", "source"))
    sizes = {split: len(part) for split, part in parts.items()}
    findings.append(count_labels([part.labels for part in parts.values()], "row"))
    findings += describe_splits(sizes, len(sizes) > 1, "row")
    return feature_dataset(path.name, parts, findings)


def _features(file: ArffFile, used: Sequence[int]) -> NDArray[np.float32]:
    """Return the features of all rows; NaN where one is missing, none of its values where it is of several."""
    parts, cells = [], file.dense(used)
    for column, number in enumerate(used):
        values, feature = len(file.attributes[number].values), cells[:, column, None]
        parts.append(feature == np.arange(values) if values > 2 else feature)
    return np.concatenate(parts, axis=1, dtype=np.float32)


def _codes(file: ArffFile, labels: Sequence[int]) -> NDArray[np.int8]:
    states = np.array([((label_states(file.attributes[n]) or []) * 2)[:2] for n in labels], dtype=np.int8)
    cells = file.dense(labels)
    values = np.nan_to_num(cells, nan=0.0).astype(np.int64)
    return np.where(np.isnan(cells), UNKNOWN, states[np.arange(len(labels)), values]).astype(np.int8)


ARFF_LAYOUT: Final = DatasetLayout(
    "Mulan (mulan.sourceforge.net/datasets-mlc.html), MEKA (waikato.github.io/meka/datasets), OpenML",
    "of each data set its own; the pages name it",
    "NAME/",
    (
        RequiredFile("*-train.arff", "rows of train", ("*.arff",)),
        RequiredFile("*-test.arff", "rows of test", optional=True),
        RequiredFile(
            "*.xml", "the names of the labels (Mulan); without it the relation counts them (MEKA: -C 6)", optional=True
        ),
    ),
    lambda path: None if (file := find_arff(path)) is None else file.parent,
    ("No images: features for a linear head, in train, compare and linear-eval.",),
    tried=False,
)
