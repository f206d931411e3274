"""The data sets that labelgap can read, by name; ``opening`` finds out which one a text or a recipe means.

To add one to labelgap: write ``data/readers/NAME.py`` with a function from a path and options to a ``Dataset`` and a
``DatasetLayout``, and add both to ``data/readers/builtin.py``. From outside: ``register_dataset``, or an entry
point of the group "labelgap.datasets".
"""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from labelgap.core.data_options import PATH_OPTIONS
from labelgap.core.errors import InputError, UnknownNameError
from labelgap.core.registry import Registry, load_plugins
from labelgap.data.dataset import Dataset
from labelgap.data.readers.builtin import BUILTIN_READERS, DatasetReader
from labelgap.data.readers.layout import DatasetLayout
from labelgap.data.readers.recipe import to_stored_option, to_stored_path

ENTRY_POINTS: Final = "labelgap.datasets"
DATASET_NAME: Final = re.compile(r"[A-Za-z][\w-]*")

_REGISTRY: Registry[DatasetReader] = Registry("data set", "`labelgap datasets` lists all.")
for _reader in BUILTIN_READERS:
    _REGISTRY.add(_reader.name, _reader, summary=_reader.summary, reference=_reader.reference)


def register_dataset(
    name: str,
    load: Callable[..., Dataset],
    *,
    path_to: str = "",
    recognizes: Callable[[Path], bool] | None = None,
    summary: str = "",
    reference: str = "",
    layout: DatasetLayout | None = None,
) -> Callable[..., Dataset]:
    """Add a data set: ``load(name)`` and the commands know it then.

    An installed package does the same with an entry point of the group "labelgap.datasets" that leads to the function.

    Args:
        name: a name that is not taken.
        load: returns the ``Dataset``. Its parameter ``path``, if it has one, is the path of ``name=path``; all others
            are options.
        path_to: what the path leads to, in words.
        recognizes: whether an existing path leads to such data, so that the path alone is enough.
        summary: a line about it; the first line of the docstring of ``load`` when left out.
        reference: the paper.
        layout: where the files come from, and how they must lie: ``labelgap datasets NAME`` prints it.

    Returns:
        ``load``, so that it can be called as before.

    Example:
        >>> def small_digits(seed: int = 0) -> Dataset:
        ...     return load("digits", train=20, val=5, test=5, seed=seed)
        >>> register_dataset("small-digits", small_digits)  # doctest: +SKIP
        >>> load("small-digits", seed=3)  # doctest: +SKIP
        Dataset(digits: 20 train, 5 val, 5 test; 10 classes)
    """
    if not DATASET_NAME.fullmatch(name):
        raise InputError(f"{name!r} is not a name of a data set: letters, digits, '_' and '-', a letter first.")
    if "path" in inspect.signature(load).parameters:
        path_to = path_to or "its data"
    elif path_to or recognizes:
        raise InputError(f"{_qualified_name(load)} has no parameter 'path', so nothing can lead to it.")
    summary = summary or (inspect.getdoc(load) or "").partition("\n")[0].rstrip(".")
    recognizes = recognizes or (lambda path: False)
    reader = DatasetReader(name, load, summary, path_to, recognizes, reference, False, layout or DatasetLayout())
    _REGISTRY.add(name, reader, summary=summary, reference=reference)
    return load


@functools.cache
def _load_plugins() -> None:
    """Register the data sets of installed packages, once per process."""
    for name, load in load_plugins(ENTRY_POINTS):
        if name not in _REGISTRY:
            register_dataset(name, load)


def _readers() -> Registry[DatasetReader]:
    """Return all readers, with those of installed packages."""
    _load_plugins()
    return _REGISTRY


def dataset_names() -> list[str]:
    """Return the names of all data sets.

    Example:
        >>> dataset_names()[:8]
        ['digits', 'csv', 'features', 'parquet', 'voc2012', 'voc2007', 'coco2014', 'coco2017']
    """
    return _readers().names()


def describe_dataset(name: str) -> DatasetReader:
    """Return the reader of a data set; an unknown name is an error that names the nearest."""
    return _readers().get(name).value


def describe_datasets() -> list[DatasetReader]:
    """Return the reader of every data set: its name, options, summary, and what its path leads to."""
    return [entry.value for entry in _readers()]


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
    reader = _readers().get(name).value
    for option in options:
        if option not in reader.options and not reader.takes_any_option:
            raise UnknownNameError(f"{name} option", option, reader.options)
    if path is not None and not reader.path_to:
        raise InputError(f"{name} takes no path; {os.fspath(path)!r} was given.")
    if path is None and reader.path_to:
        raise InputError(f"{name} needs a path, to {reader.path_to}: {name}=PATH.")
    data = reader.load(**options) if path is None else reader.load(path, **options)
    paths = {key for key, value in options.items() if key in PATH_OPTIONS and isinstance(value, str | os.PathLike)}
    plain = {key: to_stored_option(to_stored_path(value) if key in paths else value) for key, value in options.items()}
    place = None if path is None else to_stored_path(path)
    loader = {} if reader.builtin else {"loader": _qualified_name(reader.load)}
    return replace(data, recipe={"name": name, "path": place, "options": plain, "steps": [], **loader})


def _qualified_name(load: Callable[..., Dataset]) -> str:
    return f"{load.__module__}:{getattr(load, '__qualname__', type(load).__name__)}"
