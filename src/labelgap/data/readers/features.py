"""Feature vectors that a network computed elsewhere, with their labels: a data set without pixels.

npz: ``{split}_features`` (N, D), ``{split}_ids`` (N,), ``classes`` (K,), and of labels (N, K) with 1 present, 0 absent,
−1 or NaN unknown: ``{split}_labels``, or ``{split}_truth`` (all that is known) and ``{split}_observed`` (what training
may see). Splits are train, val and test.

Parquet: a row per image with ``features`` (a list of numbers), ``id`` or ``image``, ``split``, and ``labels``, or
``truth`` and ``observed`` (lists of K codes); the names of the classes as JSON in the file's metadata, ``classes``.

A folder of what ``labelgap features DATA --shards`` has written: its features are copied once into a file of the cache,
a block at a time, and read from there: never are all of them in memory.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from labelgap.core.cache import cache_folder
from labelgap.core.errors import InputError, RunError, describe_missing_path
from labelgap.core.files import atomic_path, make_folder
from labelgap.core.findings import Finding, Note
from labelgap.core.stored import READ_ERRORS, parse_json, read_arrays
from labelgap.core.text import truncate_text
from labelgap.data.dataset import Dataset, Split
from labelgap.data.images import FEATURES, FeatureVectors
from labelgap.data.parts import DESCRIPTION, PartFolder, StoredParts
from labelgap.data.readers.image_paths import refuse_url
from labelgap.data.readers.voc import read_boxes
from labelgap.labels import LabelTable, paper_split
from labelgap.labels.io.formats import labels_of_lists, list_entries, open_parquet
from labelgap.labels.io.table_file import SPLITS

_KINDS: Final = ("labels", "truth", "observed")
_DIMENSIONS: Final = {"classes": 1, **{f"{split}_ids": 1 for split in SPLITS}} | {
    f"{split}_{kind}": 2 for split in SPLITS for kind in (FEATURES, *_KINDS)
}
_VECTOR: Final = "feature"
_UNPACKED_BYTES: Final = 1 << 30
_UNPACKED_PER_BYTE: Final = 100  # bytes that an npz may unpack to: so many, and so many for each of its own


def load_features(path: str | os.PathLike[str], *, annotations: str | os.PathLike[str] | None = None) -> Dataset:
    """Read features and their labels; the docstring of this module describes the layout.

    Where train and val are the papers' split of one set (their sorted ids show it), labels are drawn over that whole
    set, as in the papers.

    Args:
        path: an ``.npz`` or ``.parquet`` file.
        annotations: a VOC devkit, or its folder ``Annotations``, with the boxes of the images: ``ID.xml``.
    """
    refuse_url(path, "features")
    path = Path(path)
    if (path / DESCRIPTION).is_file():
        return _load_parts(path)
    arrays = _from_parquet(path) if path.suffix.lower() == ".parquet" else _from_npz(path)
    if "train_features" not in arrays:
        raise InputError(f"{path} has no train_features; it has {_join(arrays) or 'nothing'}.")
    for name, dimensions in _DIMENSIONS.items():
        if name in arrays and arrays[name].ndim != dimensions:
            raise InputError(f"{path}: {name} has the shape {arrays[name].shape}; it needs {dimensions} dimensions.")
    try:
        parts = {name: _split(name, arrays) for name in SPLITS if f"{name}_features" in arrays}
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    widths = {split.images.width for split in parts.values() if isinstance(split.images, FeatureVectors)}
    if len(widths) > 1:
        raise InputError(
            f"{path}: the splits have features of different widths ({', '.join(map(str, sorted(widths)))})."
        )
    labels = "their labels: 1 = present, 0 = absent, -1 = unknown; no pixels"
    findings = [Note(f"features of {widths.pop():,} numbers and {labels}")]
    if annotations is not None:
        parts = {name: replace(split, boxes=read_boxes(annotations, split.labels)) for name, split in parts.items()}
        found = sum(len(split.boxes.rows) for split in parts.values() if split.boxes is not None)
        findings.append(Note(f"{found:,} boxes of {Path(annotations).name}"))
    origins = _origins(parts)
    if origins:
        parts = {name: replace(split, origin=origins.get(name)) for name, split in parts.items()}
        origin = "train and val are the papers' split of one set (recognized): labels are drawn over all of it"
        findings.append(Note(origin, "split"))
    return feature_dataset(path.name, parts, findings)


def _load_parts(folder: Path) -> Dataset:
    """Read finished parts of features, one at a time."""
    parts = StoredParts(PartFolder(os.fspath(folder)))
    missing = {_VECTOR, "present"}.difference(parts.columns)
    if missing:
        raise InputError(
            f"{folder} has no column '{max(missing)}': its source had no lists of present and absent names."
        )
    columns = [name for name in ("image", "split", "present", "absent") if name in parts.columns]
    kept = pa.concat_tables([parts.read(part, *columns) for part in parts.sizes])
    splits = np.array(kept["split"].fill_null("train").to_pylist() if "split" in columns else ["train"] * len(kept))
    if wrong := {*splits.tolist()} - {*SPLITS}:
        raise InputError(f"{folder}: '{truncate_text(min(wrong))}' under split: it must be train, val or test.")
    entries, images = list_entries(kept), kept["image"].to_pylist()
    classes = sorted({name for listed in entries.values() for name in listed.names})
    labels, arrays = labels_of_lists(entries, classes, images), _stored_features(parts, splits)
    members = {name: np.flatnonzero(splits == name) for name in arrays}
    if "train" not in arrays:
        raise InputError(f"{folder} has no image of train.")
    found = {
        name: Split(name, FeatureVectors(arrays[name], [images[row] for row in rows]), labels.select(rows))
        for name, rows in members.items()
    }
    about = f"features of {arrays['train'].shape[1]:,} numbers in {len(parts.sizes):,} parts; no pixels"
    return feature_dataset(folder.name, found, [Note(about)])


def _stored_features(parts: StoredParts, splits: NDArray[Any]) -> dict[str, NDArray[np.float32]]:
    """Return the features of every split; they follow each other in a file of the cache."""
    folder, width = cache_folder() / "parts", parts.schema.field(_VECTOR).type.list_size
    digest = hashlib.blake2b("".join(part.digest for part in parts.manifest.parts).encode(), digest_size=16).hexdigest()
    order = np.argsort(splits, kind="stable")
    make_folder(folder)
    if not (path := folder / f"{digest}.npy").exists():
        place, start = np.argsort(order), 0
        with atomic_path(path) as temporary:
            array = np.lib.format.open_memmap(temporary, mode="w+", dtype=np.float32, shape=(len(splits), width))
            for values in (block for part in parts.sizes for block in parts.blocks(part, _VECTOR)):
                array[place[start : start + len(values)]] = values
                start += len(values)
            array.flush()
    stored = np.load(path, mmap_mode="c")  # as if it could be written, for torch
    ends = {name: [np.searchsorted(splits[order], name, side) for side in ("left", "right")] for name in SPLITS}
    return {name: stored[first:last] for name, (first, last) in ends.items() if first < last}


def feature_dataset(name: str, parts: Mapping[str, Split], findings: Sequence[Finding]) -> Dataset:
    """Return splits of features as a data set, on which linear heads are trained."""
    splits = (parts["train"], parts.get("val"), parts.get("test"))
    return Dataset(name, *splits, findings=tuple(findings), backbone=FEATURES, protocol="linear", flip=False)


def is_feature_file(path: Path) -> bool:
    """Return whether a file holds features; so does an npz that cannot be opened, of which the loading tells more."""
    if path.is_dir():
        return (path / DESCRIPTION).is_file()
    if not path.is_file():
        return False
    suffix = path.suffix.lower()
    try:
        if suffix == ".npz":
            with zipfile.ZipFile(path) as file:
                return "train_features.npy" in file.namelist()
        return suffix == ".parquet" and FEATURES in pq.read_schema(path).names
    except READ_ERRORS:
        return suffix == ".npz"


def _join(names: Iterable[str]) -> str:
    return ", ".join(map(truncate_text, sorted(names)[:10]))


def _split(name: str, arrays: Mapping[str, NDArray[Any]]) -> Split:
    vectors = arrays[f"{name}_features"]
    if not len(vectors):
        raise InputError(f"{name}_features has no rows.")
    ids = [str(each) for each in arrays.get(f"{name}_ids", np.arange(len(vectors)))]
    given = {kind: arrays[f"{name}_{kind}"] for kind in _KINDS if f"{name}_{kind}" in arrays}
    if not given:
        raise InputError(f"{name} has features but no labels: {name}_labels, or {name}_truth and {name}_observed.")
    if "labels" in given and len(given) > 1:
        raise InputError(f"{name} has labels beside truth or observed: give the one or the others.")
    tables = {kind: _table(codes, arrays.get("classes"), ids, f"{name}_{kind}") for kind, codes in given.items()}
    truth = tables.get("truth")
    labels = next(tables[kind] for kind in ("labels", "observed", "truth") if kind in tables)
    if truth is not None and (truth.codes_at(labels.rows, labels.columns) != labels.values).any():
        raise InputError(f"{name}_observed says something else than {name}_truth.")
    return Split(name, FeatureVectors(vectors, ids), labels, truth)


def _table(codes: NDArray[Any], classes: NDArray[Any] | None, ids: Sequence[str], what: str) -> LabelTable:
    names = None if classes is None else [str(each) for each in classes]
    try:
        return LabelTable.from_dense(codes, names, ids)
    except InputError as error:
        raise InputError(f"{what}: {error}") from None


def _origins(parts: Mapping[str, Split]) -> dict[str, NDArray[np.int64]]:
    """Return the rows of train and val in one sorted set, if they are the papers' split of it."""
    if "val" not in parts:
        return {}
    train, val = (np.array(parts[name].labels.images) for name in ("train", "val"))
    together = np.sort(np.concatenate([train, val]))
    rows = paper_split(len(together))
    if len(rows[0]) != len(train) or len(together) < 20:
        return {}
    same = np.array_equal(together[rows[0]], train) and np.array_equal(together[rows[1]], val)
    return dict(zip(("train", "val"), rows, strict=True)) if same else {}


def _from_npz(path: Path) -> dict[str, NDArray[Any]]:
    if not path.is_file():
        raise InputError(f"{path} is not a file." if path.exists() else describe_missing_path(path))
    try:
        return read_arrays(path, limit=_UNPACKED_BYTES + _UNPACKED_PER_BYTE * path.stat().st_size)
    except RunError as error:
        raise InputError(f"{error} An npz of features has arrays of numbers and texts, and no objects.") from None


def _from_parquet(path: Path) -> dict[str, NDArray[Any]]:
    """Read a table of one row per image into the arrays that an npz would have."""
    with open_parquet(path) as file:
        table = file.read()
        table.validate(full=True)
    names = next((name for name in ("id", "image") if name in table.column_names), None)
    for needed in (FEATURES, "split"):
        if needed not in table.column_names:
            raise InputError(f"{path} has no column '{needed}': it has {_join(table.column_names)}.")
    arrays: dict[str, NDArray[Any]] = {}
    splits = np.array([str(each) for each in table["split"].to_pylist()])
    unknown = sorted({*splits.tolist()} - {*SPLITS})
    if unknown:
        raise InputError(f"{path}: '{truncate_text(unknown[0])}' under split: it must be train, val or test.")
    for split in sorted({*splits.tolist()}):
        rows = table.filter(pa.array(splits == split))
        for kind in (FEATURES, *_KINDS):
            if kind in table.column_names:
                arrays[f"{split}_{kind}"] = _matrix(rows[kind], f"{path}, column '{kind}'")
        if names is not None:
            arrays[f"{split}_ids"] = np.array([str(each) for each in rows[names].to_pylist()])
    stored = (table.schema.metadata or {}).get(b"classes")
    if stored is not None:
        arrays["classes"] = _names(stored, path)
    return arrays


def _names(stored: bytes, path: Path) -> NDArray[Any]:
    try:
        names = parse_json(stored)
    except ValueError:
        names = None
    if not isinstance(names, list):
        raise InputError(f"{path}: 'classes' in its metadata is not a JSON list of names.")
    return np.array([str(name) for name in names])


def _matrix(column: pa.ChunkedArray, where: str) -> NDArray[Any]:
    kind = column.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        raise InputError(f"{where}: it must hold lists of numbers, not {kind}.")
    flat = pa.concat_arrays([chunk.flatten() for chunk in column.chunks]) if column.num_chunks else pa.array([])
    if flat.null_count or column.null_count or len(pc.unique(pc.list_value_length(column))) > 1:
        raise InputError(f"{where}: it must hold lists of numbers, all of one length, without gaps.")
    values: NDArray[Any] = flat.to_numpy(zero_copy_only=False)
    return values.reshape(len(column), -1)
