"""The data sets that labelgap can read, by name, and how a path is recognised.

To add one: write ``data/NAME.py`` with a function from a path and options to a ``Dataset``, and enter it here.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from labelgap.core.errors import InputError, UnknownNameError
from labelgap.core.registry import Registry
from labelgap.data.dataset import Dataset
from labelgap.data.readers.coco import find_coco, load_coco2014, load_coco2017
from labelgap.data.readers.csv import load_csv
from labelgap.data.readers.digits.dataset import load_digits
from labelgap.data.readers.features import FEATURES, is_feature_file, load_features
from labelgap.data.readers.folder import is_tag_folder, load_folder
from labelgap.data.readers.image_paths import refuse_url
from labelgap.data.readers.parquet import load_parquet
from labelgap.data.readers.voc import find_voc, load_voc2007, load_voc2012

__all__ = ["DatasetDescription", "dataset_names", "describe_datasets", "load", "load_from_recipe", "open_data"]

_NAME = re.compile(r"[A-Za-z][\w-]*")
_PATHS: Final = ("images", "aliases", "parents")
"""Options that lead to files or folders."""
_LESS_SPECIAL = ("parquet", "folder")


@dataclass(frozen=True)
class _Reader:
    """How one kind of data is read.

    Attributes:
        load: from a path (unless ``takes`` is empty) and options to a data set.
        takes: what the path leads to, in words; empty when there is no path.
        recognises: whether a path that exists leads to this kind of data.
    """

    load: Callable[..., Dataset]
    takes: str = ""
    recognises: Callable[[Path], bool] = lambda path: False

    @property
    def options(self) -> tuple[str, ...]:
        """The names of the options, sorted."""
        return tuple(sorted(set(inspect.signature(self.load).parameters) - {"path"}))


@dataclass(frozen=True)
class DatasetDescription:
    """What ``labelgap datasets`` says of one data set.

    Attributes:
        name: how it is asked for.
        takes: what its path leads to; empty when it needs none.
        options: what else can be said.
        summary: a line about it.
    """

    name: str
    takes: str
    options: tuple[str, ...]
    summary: str


_READERS: Registry[_Reader] = Registry("data set", "`labelgap datasets` lists all.")
_READERS.add(
    "digits",
    _Reader(load_digits),
    summary="scenes of handwritten digits that come with labelgap, one label shown of each",
)
_READERS.add(
    "csv",
    _Reader(load_csv, "a .csv file", lambda path: path.is_file() and path.suffix.lower() in (".csv", ".tsv")),
    summary="your own photos: a table of tags and a folder of images",
)
_READERS.add(
    FEATURES,
    _Reader(load_features, "an .npz or .parquet file with features", is_feature_file),
    summary="vectors that a network computed elsewhere, and their labels; no pixels",
)
_READERS.add(
    "parquet",
    _Reader(load_parquet, "a .parquet file", lambda path: path.is_file() and path.suffix.lower() == ".parquet"),
    summary="your own photos: as csv, in Parquet",
)
_READERS.add(
    "voc2012",
    _Reader(load_voc2012, "a VOC devkit", lambda path: find_voc(path, "2012") is not None),
    summary="PASCAL VOC2012 as the single-positive papers use it: 20 classes, boxes",
    reference="Everingham et al., IJCV 2010",
)
_READERS.add(
    "voc2007",
    _Reader(load_voc2007, "a VOC devkit", lambda path: find_voc(path, "2007") is not None),
    summary="PASCAL VOC2007: 20 classes, boxes",
    reference="Everingham et al., IJCV 2010",
)
_READERS.add(
    "coco2014",
    _Reader(load_coco2014, "a folder with COCO's annotations", lambda path: find_coco(path, "2014") is not None),
    summary="COCO 2014 as the single-positive papers use it: 80 classes, boxes",
    reference="Lin et al., ECCV 2014",
)
_READERS.add(
    "coco2017",
    _Reader(load_coco2017, "a folder with COCO's annotations", lambda path: find_coco(path, "2017") is not None),
    summary="COCO 2017: 80 classes, boxes",
    reference="Lin et al., ECCV 2014",
)
_READERS.add(
    "folder",
    _Reader(load_folder, "a folder with a folder of photos per tag", is_tag_folder),
    summary="your own photos: sorted into a folder per tag, below train, val and test or not",
)


def dataset_names() -> list[str]:
    """Return the names of all data sets.

    Example:
        >>> dataset_names()
        ['digits', 'csv', 'features', 'parquet', 'voc2012', 'voc2007', 'coco2014', 'coco2017', 'folder']
    """
    return _READERS.names()


def describe_datasets() -> list[DatasetDescription]:
    """Return a row about every data set."""
    return [DatasetDescription(entry.name, entry.value.takes, entry.value.options, entry.summary) for entry in _READERS]


def load(name: str, path: str | os.PathLike[str] | None = None, **options: Any) -> Dataset:
    """Load a data set by its name.

    Args:
        name: one of ``dataset_names()``.
        path: where it lies; not for data that comes with labelgap.
        **options: of that data set; see ``load_csv`` and ``load_digits``. An unknown one is an error that names the
            nearest.

    Example:
        >>> load("digits", train=20, val=5, test=5).classes
        ('0', '1', '2', '3', '4', '5', '6', '7', '8', '9')
    """
    reader = _READERS.get(name).value
    for option in options:
        if option not in reader.options:
            raise UnknownNameError(f"{name} option", option, reader.options)
    if not reader.takes:
        if path is not None:
            raise InputError(f"{name} comes with labelgap and takes no path; {os.fspath(path)!r} was given.")
        return _with_recipe(reader.load(**options), name, None, options)
    if path is None:
        raise InputError(f"{name} needs a path, to {reader.takes}: {name}=PATH.")
    return _with_recipe(reader.load(path, **options), name, path, options)


def load_from_recipe(recipe: Mapping[str, Any]) -> Dataset:
    """Make a data set again from its ``recipe``, as a run keeps it: load it, then hide or show labels as was done."""
    if not recipe:
        raise InputError("these data were made by hand, not loaded by name: they cannot be opened again from a run.")
    data = load(recipe["name"], recipe["path"], **recipe["options"])
    for step in recipe["steps"]:
        for action, arguments in step.items():
            data = getattr(data, action)(**arguments)
    return data


def _with_recipe(data: Dataset, name: str, path: str | os.PathLike[str] | None, options: dict[str, Any]) -> Dataset:
    """Note how data were loaded, with whole paths: a run is opened from other folders than it was trained in."""
    plain = {key: _plain(_whole(value) if key in _PATHS else value) for key, value in options.items()}
    recipe: dict[str, Any] = {
        "name": name,
        "path": None if path is None else _whole(path),
        "options": plain,
        "steps": [],
    }
    return replace(data, recipe=recipe)


def _whole(path: str | os.PathLike[str]) -> str:
    return os.fspath(Path(os.path.normpath(Path(path).expanduser().absolute())))


def _plain(value: Any) -> Any:
    """Return an option as JSON can hold it, so that it comes back from a run's folder as it was."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, Sequence) and not isinstance(value, str) else value


def open_data(text: str | os.PathLike[str], **options: Any) -> Dataset:
    """Load what a person wrote for DATA: a path, ``name=path``, or the name of data that needs no path.

    Args:
        text: a path that exists is recognised by what it leads to. A name beats a path: ``./digits`` is the path.
        **options: of that data set; None means not given.
    """
    text = os.fspath(text)
    refuse_url(text.partition("=")[2] if _NAME.fullmatch(text.partition("=")[0]) else text)
    given = {name: value for name, value in options.items() if value is not None}
    if text in _READERS and not (_READERS.get(text).value.takes and Path(text).exists()):
        return load(text, **given)
    path = Path(text).expanduser()
    if path.exists():
        name, also = _recognised(path)
        data = load(name, path, **given)
        return replace(data, rules=(_said(name, also, text), *data.rules))
    name, equals, place = text.partition("=")
    if equals and _NAME.fullmatch(name):
        path = Path(place).expanduser()
        if name in _READERS and place and not path.exists():
            raise InputError(f"{path} does not exist.")
        return load(name, path if place else None, **given)
    if _NAME.fullmatch(text):
        hint = "No file or folder of that name is here either; `labelgap datasets` lists what can be read."
        raise UnknownNameError("data set", text, dataset_names(), hint)
    raise InputError(f"{path} does not exist.")


def _recognised(path: Path) -> tuple[str, tuple[str, ...]]:
    """Return the name of the data that a path leads to, and what else it could be read as."""
    names = [entry.name for entry in _READERS if entry.value.recognises(path)]
    if names:
        return names[0], tuple(name for name in names[1:] if name not in _LESS_SPECIAL)
    known = "; ".join(f"{entry.value.takes} ({entry.name})" for entry in _READERS if entry.value.takes)
    if path.is_dir():
        what = "is a folder"
        inside = next((child for child in sorted(path.iterdir()) if child.suffix.lower() == ".csv"), None)
        hint = f" Did you mean {inside}?" if inside else ""
    else:
        what = f"is a '{path.suffix}' file" if path.suffix else "has no suffix"
        hint = f" If it is one all the same, say so: csv={path}"
    raise InputError(f"{path} {what}, which labelgap does not recognise. It recognises: {known}.{hint}")


def _said(name: str, also: tuple[str, ...], text: str) -> str:
    """Say as what a path was recognised, and what else it could have been."""
    other = "".join(f"; {each} is there too: {each}={text}" for each in also)
    return f"recognised as {name}: {_READERS.get(name).value.takes}{other}"
