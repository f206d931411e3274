"""The arrays of the single-positive papers: names of images, their labels, and the labels that training may see.

In ``labels_obs`` 1 is present, 0 *unknown*, and −1, which only some files have, absent. The official test set is called
"val" there. Reference: Cole et al., "Multi-Label Learning from Single Positive Labels", CVPR 2021.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from labelgap.core.errors import InputError, RunError
from labelgap.core.findings import Finding, Note
from labelgap.core.stored import read_arrays
from labelgap.core.text import pluralize, truncate_text
from labelgap.data.dataset import Dataset, Split
from labelgap.data.images import FileImages
from labelgap.data.readers.common import DatasetLayout, FileProblems, RequiredFile, find_root, from_official_splits
from labelgap.data.readers.image_paths import ImageFinder
from labelgap.data.readers.table import image_folder
from labelgap.labels import ABSENT, PRESENT, UNKNOWN, LabelTable
from labelgap.labels.io.parse import image_name_problem

_NEEDED: Final = ("train_images", "train_labels", "train_labels_obs", "val_images", "val_labels")
_ROWS_SHOWN: Final = 20
_OBJECTS: Final = (
    "Python objects are not read, since reading them can run any program. If you trust it, write it as KIND once: "
    "python -c \"import numpy as np; f = 'FILE'; np.save(f, np.load(f, allow_pickle=True).astype(KIND))\""
)


def load_spml(
    path: str | os.PathLike[str],
    images: str | os.PathLike[str] | None = None,
    *,
    classes: Sequence[str] | None = None,
) -> Dataset:
    """Read the papers' arrays: train shows ``labels_obs`` and has ``labels`` as its truth; val and test are complete.

    Args:
        path: the folder with ``formatted_train_images.npy`` and the others, or one of the files.
        images: the folder that the names of images are relative to; the folder of the arrays when not given.
        classes: the names of the columns in their order, since the arrays have none; their numbers when not given.
    """
    folder = find_root(Path(path), SPML_LAYOUT)
    problems = FileProblems(folder)
    arrays = _read_arrays(folder, problems)
    finder = ImageFinder(image_folder(folder / "_", images))
    names = {name: _names(arrays[f"{name}_images"], f"{name}_images", finder, problems) for name in ("train", "val")}
    for name in ("train", "val"):
        _check_labels(arrays, name, len(names[name]), problems)
    width, other = (arrays[f"{name}_labels"].shape[1] for name in ("train", "val"))
    if width != other:
        problems.add(_file(folder, "train_labels"), f"{width} columns, and formatted_val_labels.npy has {other}")
    if finder.checked and finder.missing == finder.checked:
        raise InputError(
            f"{folder}: none of its {finder.checked:,} images is in {finder.folder}, e.g. {next(iter(finder.lines))}. "
            "Where are they? (--images DIR)"
        )
    problems.refuse()
    if classes is not None and len(classes) != width:
        raise InputError(f"{folder}: {len(classes)} classes were named, and the labels have {width} columns.")
    return _dataset(folder, arrays, names, finder, classes)


def find_spml(path: Path) -> Path | None:
    """Return the folder of the papers' arrays that a path leads to, or None."""
    folder = path.parent if path.name.startswith("formatted_") and path.suffix == ".npy" else path
    return folder if _file(folder, "train_images").is_file() else None


def _file(folder: Path, name: str) -> Path:
    return folder / f"formatted_{name}.npy"


def _read_arrays(folder: Path, problems: FileProblems) -> dict[str, NDArray[Any]]:
    """Read all arrays; what is missing, damaged or not of one length is one error."""
    arrays: dict[str, NDArray[Any]] = {}
    for name in (*_NEEDED, "val_labels_obs"):
        file = _file(folder, name)
        if name not in _NEEDED and not file.exists():
            continue
        try:
            arrays[name] = read_arrays(file)["array"]
        except KeyError:
            problems.add(file, "is an archive of arrays (npz); it is one array, as numpy.save writes it")
        except RunError as error:
            kind = "str" if name.endswith("images") else "float"
            remedy = f" {_OBJECTS.replace('FILE', file.name).replace('KIND', kind)}" if "objects" in str(error) else ""
            problems.add(file, f"{str(error).rstrip('.')}.{remedy}")
    problems.refuse()
    for name, array in arrays.items():
        kinds, dimensions = ("US", 1) if name.endswith("images") else ("iufb", 2)
        if array.ndim != dimensions or array.dtype.kind not in kinds or not array.size:
            what = "a list of names" if dimensions == 1 else "a matrix of numbers, a row per image"
            problems.add(_file(folder, name), f"has the shape {array.shape} of {array.dtype}: it is {what}")
    problems.refuse()
    return arrays


def _names(array: NDArray[Any], what: str, finder: ImageFinder, problems: FileProblems) -> list[str]:
    names = [each.decode("utf-8", "replace") if isinstance(each, bytes) else str(each) for each in array.tolist()]
    for row, name in enumerate(names):
        if name in finder.lines:
            first = f"row {finder.lines[name]}" if finder.sources[name] == Path(what) else "train_images"
            problem: str | None = f"{truncate_text(name)} is listed again (first in {first})"
        else:
            finder.source = Path(what)
            problem = image_name_problem(name) or finder(name, row)
        if problem is not None:
            problems.add(_file(problems.root, what), problem, f"row {row}")
    return names


def _check_labels(arrays: Mapping[str, NDArray[Any]], name: str, count: int, problems: FileProblems) -> None:
    """Report labels of another shape than the images, cells that are no state, and observations that are not true."""
    truth, observed = arrays[f"{name}_labels"], arrays.get(f"{name}_labels_obs")
    file = _file(problems.root, f"{name}_labels")
    if len(truth) != count:
        problems.add(file, f"{pluralize(len(truth), 'row')}, and formatted_{name}_images.npy has {count:,}")
        return
    _report(file, (truth != PRESENT) & (truth != ABSENT), truth, "a label is 1 or 0", problems)
    if observed is None:
        return
    file = _file(problems.root, f"{name}_labels_obs")
    if observed.shape != truth.shape:
        problems.add(file, f"has the shape {observed.shape}, and the labels {truth.shape}")
        return
    codes = _observed_codes(observed)
    known = codes != UNKNOWN
    stated = "an observed label is 1 (present), 0 (unknown) or -1 (absent)"
    _report(file, ~np.isin(observed, (PRESENT, 0, -1)), observed, stated, problems)
    _report(file, known & (codes != truth), observed, "the full labels say something else", problems)


def _report(file: Path, wrong: NDArray[np.bool_], cells: NDArray[Any], rule: str, problems: FileProblems) -> None:
    places = np.argwhere(wrong)
    for row, column in places[:_ROWS_SHOWN].tolist():
        problems.add(file, f"{cells[row, column]}: {rule}", f"row {row}, column {column}")
    if len(places) > _ROWS_SHOWN:
        problems.add(file, f"{len(places):,} such cells in all")


def _observed_codes(observed: NDArray[Any]) -> NDArray[np.int8]:
    """Return the papers' codes (1 present, 0 unknown, −1 absent) as ours."""
    codes = np.full(observed.shape, UNKNOWN, dtype=np.int8)
    codes[observed > 0] = PRESENT
    codes[observed < 0] = ABSENT
    return codes


def _dataset(
    folder: Path,
    arrays: Mapping[str, NDArray[Any]],
    names: Mapping[str, Sequence[str]],
    finder: ImageFinder,
    classes: Sequence[str] | None,
) -> Dataset:
    """Return train and val as the papers cut them, and test; train shows what was observed."""
    splits = {}
    for name, ours in (("train", "train"), ("val", "test")):
        table = LabelTable.from_dense(arrays[f"{name}_labels"].astype(np.int8), classes, names[name])
        files = [finder.files[image] for image in names[name]]
        splits[ours] = Split(ours, FileImages(finder.folder, table.images, files), table)
    codes = _observed_codes(arrays["train_labels_obs"])
    observed = LabelTable.from_dense(codes, classes, names["train"])
    present, absent, _ = observed.counts().total
    findings: list[Finding] = [
        Note(
            "train shows labels_obs: 1 = present, 0 = unknown "
            f"({present / len(observed):.3g} present and {absent / len(observed):.3g} absent an image); "
            "labels are its truth; val and test are complete"
        ),
        Note("train is the papers' formatted_train, test their formatted_val", "split"),
        *finder.findings(),
    ]
    data = from_official_splits(folder.resolve().name, splits["train"], splits["test"], findings)
    assert data.train.origin is not None
    train = replace(data.train, labels=observed.select(data.train.origin), truth=data.train.labels)
    return replace(data, train=train)


SPML_LAYOUT: Final = DatasetLayout(
    "the data sets of the papers, formatted by the authors' scripts (Cole et al., CVPR 2021: "
    "github.com/elijahcole/single-positive-multi-label)",
    "that of the data set that was formatted (VOC, COCO, NUS-WIDE, CUB)",
    "data/",
    (
        RequiredFile("formatted_train_images.npy", "names of the official training images, relative to --images"),
        RequiredFile("formatted_train_labels.npy", "1 present, 0 absent"),
        RequiredFile("formatted_train_labels_obs.npy", "what training may see: 1 present, 0 unknown"),
        RequiredFile("formatted_val_images.npy", "the official test images"),
        RequiredFile("formatted_val_labels.npy", "1 present, 0 absent"),
        RequiredFile("formatted_val_labels_obs.npy", "compared with the labels, not used otherwise", optional=True),
    ),
    find_spml,
    (
        "The arrays have no names of classes: --classes gives them.",
        "The photos lie where --images says, e.g. VOCdevkit/VOC2012/JPEGImages.",
    ),
    tried=False,
)
