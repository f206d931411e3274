"""A Hugging Face data set on a disk: images in its rows, labels as lists of classes or as a column per class.

The package ``datasets`` is not needed: pyarrow reads the files that ``save_to_disk`` writes, and Parquet as on the Hub.

Reference: Lhoest et al., "Datasets: A Community Library for Natural Language Processing", EMNLP 2021.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from labelgap.core.errors import InputError, describe_missing_path
from labelgap.core.findings import Finding, Note
from labelgap.core.text import truncate_text
from labelgap.data.dataset import Dataset, Split
from labelgap.data.findings import LabelsCounted, describe_splits
from labelgap.data.readers.huggingface.columns import LabelColumns, choose_columns
from labelgap.data.readers.huggingface.files import SplitFiles, find_files, find_huggingface, read_columns
from labelgap.data.readers.huggingface.images import ImageRows, RowImages
from labelgap.data.readers.huggingface.rows import RowReader, SplitRows
from labelgap.data.readers.image_paths import refuse_url
from labelgap.data.readers.image_table import image_folder
from labelgap.data.readers.layout import DatasetLayout, RequiredFile
from labelgap.labels import LabelTable
from labelgap.labels.io.findings import ColumnsIgnored, ListsOfClasses
from labelgap.labels.io.problems import ProblemList
from labelgap.labels.io.rows import image_name_problem
from labelgap.labels.io.table_file import SPLIT_NAMES, SPLITS, check_choice


def load_huggingface(
    path: str | os.PathLike[str],
    images: str | os.PathLike[str] | None = None,
    *,
    unlisted: str = "unknown",
    classes: Sequence[str] | None = None,
    ignore_columns: Sequence[str] = (),
) -> Dataset:
    """Read what ``save_to_disk`` wrote, or Parquet files as on the Hub.

    Labels are a column of lists of ``ClassLabel`` or of names, a column of one ``ClassLabel``, or a column of bool or
    int for each class, where null is unknown.

    Args:
        path: the folder.
        images: the folder of images whose rows have a path and no bytes; the data set's own when not given.
        unlisted: the state of a class that a list does not have: "unknown" or "absent"; null in place of a list is
            always unknown.
        classes: the classes to use, in this order; all of them when not given.
        ignore_columns: columns that are neither images nor labels.
    """
    refuse_url(path, "data sets")
    check_choice("unlisted", unlisted, ("unknown", "absent"))
    root = find_huggingface(Path(path))
    if root is None:
        what = "there is no dataset_dict.json, state.json or data/train-00000-of-00001.parquet in it"
        raise InputError(
            f"{path} holds no Hugging Face data set: {what}." if Path(path).exists() else describe_missing_path(path)
        )
    problems = ProblemList(root, unit="")
    found = find_files(root, problems)
    problems.refuse()
    splits, left_out = _name_splits(root, found)
    columns = _choose(splits, ignore_columns, problems)
    problems.refuse()
    if unlisted != "unknown" and not columns.lists:
        raise InputError(f"{root}: --unlisted is for lists; this data set has a column per class.")
    reader = RowReader(root, image_folder(root / "_", images), columns, problems)
    for name, files in splits.items():
        reader.read(name, files)
    problems.refuse()
    return _dataset(
        root,
        reader,
        unlisted,
        classes,
        [*left_out, *_column_findings(columns, unlisted)],
        "" not in {split.name for split in found},
    )


def _name_splits(root: Path, found: Sequence[SplitFiles]) -> tuple[dict[str, SplitFiles], list[Finding]]:
    """Return the files by our names of splits; a data set without splits is train."""
    splits: dict[str, SplitFiles] = {}
    others: list[str] = []
    for split in found:
        name = SPLIT_NAMES.get(split.name.lower()) if split.name else "train"
        if name is None:
            others.append(split.name)
        elif name in splits:
            raise InputError(f"{root} has {splits[name].name} and {split.name}: which one is {name}? Remove the other.")
        else:
            splits[name] = split
    if "train" not in splits:
        names = ", ".join(split.name for split in found)
        raise InputError(f"{root} has no split train; it has {names or 'none'}.")
    note = Note(
        f"the splits {', '.join(map(truncate_text, others[:5]))} are left out: train, val and test are read", "split"
    )
    return {name: splits[name] for name in SPLITS if name in splits}, [note] if others else []


def _choose(splits: Mapping[str, SplitFiles], ignored: Sequence[str], problems: ProblemList) -> LabelColumns:
    """Return the columns of train; those of the other splits have to be the same."""
    chosen: dict[str, LabelColumns] = {}
    for name, split in splits.items():
        try:
            chosen[name] = choose_columns(*read_columns(split), ignored)
        except InputError as error:
            place = f"{split.files[0].path.name}: " if str(error).startswith("it has") else ""
            problems.append(f"{place}{str(error).rstrip('.')}")
        else:
            if chosen[name] != chosen.get("train", chosen[name]):
                what = f"{split.files[0].path.name} ({split.name}) has other columns or classes than train"
                problems.append(what)
    problems.refuse()
    return chosen["train"]


def _column_findings(columns: LabelColumns, unlisted: str) -> list[Finding]:
    rule: Finding = Note("a column per class; true or 1 = present, false or 0 = absent, null = unknown")
    if columns.lists:
        rule = ListsOfClasses(unlisted)
    return [rule, *([ColumnsIgnored(columns.ignored)] if columns.ignored else [])]


def _image_names(splits: Sequence[SplitRows]) -> list[list[str]]:
    """Return the names of images: their paths where all have one of their own, else the split and the row."""
    paths = [path for rows in splits for path in rows.paths]
    if all(path and image_name_problem(path) is None for path in paths) and len({*paths}) == len(paths):
        return [[str(path) for path in rows.paths] for rows in splits]
    return [[f"{rows.name}-{row:06d}" for row in range(len(rows.paths))] for rows in splits]


def _table(
    rows: SplitRows, names: Sequence[str], columns: LabelColumns, all_names: Sequence[str], unlisted: str
) -> LabelTable:
    if not columns.lists:
        return LabelTable.from_dense(np.concatenate(rows.states), columns.labels, names)
    table = LabelTable.from_lists(rows.listed, classes=all_names, images=names, unlisted=unlisted)
    unknown = np.concatenate(rows.unknown)
    return table.keep(~unknown[table.rows]) if unlisted == "absent" and unknown.any() else table


def _dataset(
    root: Path,
    reader: RowReader,
    unlisted: str,
    classes: Sequence[str] | None,
    findings: Sequence[Finding],
    has_splits: bool,
) -> Dataset:
    columns, parts = reader.columns, reader.splits
    all_names = columns.names or sorted({name for rows in parts.values() for each in rows.listed for name in each})
    missing = sorted({*(classes or ())} - {*(all_names if columns.lists else columns.labels)})
    if missing:
        raise InputError(f"{root} has no class '{truncate_text(missing[0])}' (classes).")
    made: dict[str, Split] = {}
    for (split, rows), names in zip(parts.items(), _image_names(list(parts.values())), strict=True):
        table = _table(rows, names, columns, all_names, unlisted)
        places = np.array(rows.places, dtype=np.int64)
        digests = np.frombuffer(b"".join(rows.digests), dtype=np.uint8).reshape(-1, 16)
        where = ImageRows(names, places, rows.external, np.array(rows.sizes, dtype=np.int64), digests)
        images = RowImages(root.absolute(), columns.image, reader.files, where)
        made[split] = Split(split, images, table if classes is None else table.with_classes(classes))
    if not len(made["train"].labels.values):
        raise InputError(f"{root}: no label of a train image is known, so there is nothing to learn from.")
    sizes = {split: len(part) for split, part in made.items()}
    counts = LabelsCounted.of([part.labels for part in made.values()])
    return Dataset(
        root.resolve().name,
        made["train"],
        made.get("val"),
        made.get("test"),
        findings=(*findings, counts, *describe_splits(sizes, has_splits)),
    )


def _check_files(file: Path) -> str | None:
    """Return which files of the splits are missing; ``file`` is one that the data set is recognized by."""
    problems = ProblemList(file.parent, unit="")
    find_files(file.parent, problems)
    return "; ".join(problem.message for problem in problems.found) or None


HUGGINGFACE_LAYOUT: Final = DatasetLayout(
    "any data set of images of the Hugging Face Hub (huggingface.co/datasets), or your own, saved by `datasets`",
    "that of the data set: its page, or README.md, names it",
    "NAME/",
    (
        RequiredFile(
            "dataset_dict.json",
            "what save_to_disk wrote, with a folder per split",
            ("state.json", "data/train-*-of-*.parquet", "train-*-of-*.parquet"),
            check=_check_files,
        ),
        RequiredFile("train/state.json", "the names of the files", optional=True),
        RequiredFile("train/dataset_info.json", "the types of the columns", optional=True),
        RequiredFile("train/data-*-of-*.arrow", "the rows", optional=True),
    ),
    find_huggingface,
    (
        "Tried on folders that datasets 2.14 and 5.2 wrote.",
        "Labels: a list of ClassLabel or names (see --unlisted), one ClassLabel, or a bool or int per class.",
    ),
)
