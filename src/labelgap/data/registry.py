"""The data sets that labelgap can read, by name, and how a path is recognized.

To add one to labelgap: write ``data/readers/NAME.py`` with a function from a path and options to a ``Dataset`` and a
``DatasetLayout``, and add both to ``data/readers/builtin.py``. From outside: ``register_dataset``, or an entry
point of the group "labelgap.datasets".
"""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from labelgap.core.errors import InputError, UnknownNameError, describe_missing_path, nearest_path
from labelgap.core.registry import Registry, load_plugins
from labelgap.core.trust import require_trust
from labelgap.data.dataset import Dataset
from labelgap.data.findings import FormatRecognized
from labelgap.data.readers.builtin import BUILTIN_READERS, DatasetReader
from labelgap.data.readers.image_paths import is_image_name, refuse_url
from labelgap.data.readers.layout import DatasetLayout
from labelgap.data.readers.recipe import PATH_OPTIONS, SHARDS, ObserveStep, Recipe
from labelgap.data.readers.shards.location import is_shard_url

__all__ = [
    "dataset_names",
    "describe_dataset",
    "describe_datasets",
    "load",
    "load_from_recipe",
    "load_moved",
    "load_stored",
    "open_data",
    "recognize_format",
    "register_dataset",
]

ENTRY_POINTS: Final = "labelgap.datasets"
_NAME: Final = re.compile(r"[A-Za-z][\w-]*")
_GENERIC: Final = ("csv", "parquet", "folder")
"""Formats that more special ones are often recognized as, too: the special ones count."""
_SPREADSHEETS: Final = (".xlsx", ".xls", ".xlsm", ".xlsb", ".ods", ".numbers")


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
    if not _NAME.fullmatch(name):
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
    # absolute paths: a run is opened from other folders than it was trained in
    paths = {key for key, value in options.items() if key in PATH_OPTIONS and isinstance(value, str | os.PathLike)}
    plain = {key: _to_json(_absolute(value) if key in paths else value) for key, value in options.items()}
    place = None if path is None else _absolute(path)
    loader = {} if reader.builtin else {"loader": _qualified_name(reader.load)}
    return replace(data, recipe={"name": name, "path": place, "options": plain, "steps": [], **loader})


def load_from_recipe(recipe: Mapping[str, Any]) -> Dataset:
    """Load a data set again from its ``recipe``, as a run stores it, and hide or show labels as was done before.

    The recipe may have been written by anybody: ``Recipe`` says what it can contain. A data set of ``register_dataset``
    has to be registered in this process: labelgap does not import code because a run folder names it.
    """
    if not recipe:
        raise InputError("these data were made by hand, not loaded by name: they cannot be opened again from a run.")
    checked = Recipe.checked(recipe)
    if checked.name not in _readers() and checked.loader:
        raise InputError(
            f"the data set '{checked.name}' is not registered here; {checked.loader} loaded it. Install the package "
            f"that has it, or call labelgap.register_dataset({checked.name!r}, …) first."
        )
    _readers().get(checked.name).value.check_stored_options(checked.options)
    data = load(checked.name, checked.path, **checked.options)
    for step in checked.steps:
        if isinstance(step, ObserveStep):
            data = data.observe(**step.observe.model_dump())
        else:
            data = data.reveal(step.reveal.splits)
    return data


def load_stored(document: Path, recipe: Mapping[str, Any]) -> Dataset:
    """Load the data that a document of a folder names, where this user made the document or trusts it.

    Args:
        document: ``config.json`` of a run, or ``review.json``.
        recipe: the recipe in it.

    Raises:
        RunError: somebody else made the document, and its recipe names paths.
    """
    if recipe:
        checked = Recipe.checked(recipe)
        named = [f"the data {path}" for path in checked.paths]
        if checked.name in _readers() and not _readers().get(checked.name).value.builtin:
            named.append(f"the data set {checked.name} of another package, with options")
        require_trust(document, named, "say where the data are (--data)")
    return load_from_recipe(recipe)


def load_moved(recipe: Mapping[str, Any], text: str | os.PathLike[str], **options: Any) -> Dataset:
    """Load the data of a recipe from where the user says that they are; no path of the recipe is opened.

    Further tables of the recipe (val, test, aliases …) have to be named as well: without them the data are others.

    Args:
        recipe: as a run stores it; its options other than paths, and its steps, are used.
        text: a path to data of the same kind; or ``name=path``.
        **options: of that data set, instead of those of the recipe; None means not given.
    """
    given = {name: _to_json(value) for name, value in options.items() if value is not None}
    if not recipe:
        return open_data(text, **given)
    checked = Recipe.checked(recipe)
    name, equals, place = os.fspath(text).partition("=")
    if not equals or name not in _readers():
        name, place = checked.name, os.fspath(text)
    path = Path(place).expanduser()
    if not (name == SHARDS and is_shard_url(place)) and not path.exists():
        raise InputError(describe_missing_path(path))
    paths = {
        option: path for option, path in checked.options.items() if option in PATH_OPTIONS and isinstance(path, str)
    }
    if lost := [option for option in paths if option != "images" and option not in given]:
        named = " and ".join(f"{option}={paths[option]}" for option in lost)
        flags = " ".join(f"--{option} PATH" for option in lost)
        raise InputError(f"the data had {named} beside {checked.path}. Where are these now? Add {flags}.")
    kept = {option: value for option, value in checked.options.items() if option not in paths}
    return load_from_recipe({**recipe, "name": name, "path": _absolute(place), "options": {**kept, **given}})


def open_data(text: str | os.PathLike[str], **options: Any) -> Dataset:
    """Load what a person wrote for DATA: a path, ``name=path``, or the name of data that needs no path.

    Args:
        text: an existing path is recognized by what it leads to. A name beats a path: ``./digits`` is the path.
        **options: of that data set; None means not given.
    """
    text = os.fspath(text)
    name, _, place = text.partition("=")
    place = place if _NAME.fullmatch(name) else text
    if is_shard_url(place) and (place == text or name == SHARDS):
        return load(SHARDS, place, **{option: value for option, value in options.items() if value is not None})
    refuse_url(place)
    given = {name: value for name, value in options.items() if value is not None}
    if text in _readers() and not (_readers().get(text).value.path_to and Path(text).exists()):
        return load(text, **given)
    path = Path(text).expanduser()
    if path.exists():
        name, others = _recognize(path)
        data = load(name, path, **given)
        recognized = FormatRecognized(name, _readers().get(name).value.path_to, text, others)
        return replace(data, findings=(recognized, *data.findings))
    name, equals, place = text.partition("=")
    if equals and _NAME.fullmatch(name):
        path = Path(place).expanduser()
        if name in _readers() and place and not path.exists():
            raise InputError(describe_missing_path(path))
        return load(name, path if place else None, **given)
    if _NAME.fullmatch(text):
        hint = "No file or folder of that name is here either; `labelgap datasets` lists what can be read."
        near = nearest_path(path)
        raise UnknownNameError("data set", text, [*dataset_names(), *([] if near is None else [str(near)])], hint)
    raise InputError(describe_missing_path(path))


def recognize_format(path: Path) -> str:
    """Return the name of the data that an existing path leads to."""
    return _recognize(path)[0]


def _recognize(path: Path) -> tuple[str, tuple[str, ...]]:
    """Return the name of the data that a path leads to, and what else it could be read as."""
    names = [entry.name for entry in _readers() if entry.value.recognizes(path)]
    names.sort(key=lambda name: name in _GENERIC)
    if names:
        return names[0], tuple(name for name in names[1:] if name not in _GENERIC)
    known = "; ".join(f"{entry.value.path_to} ({entry.name})" for entry in _readers() if entry.value.path_to)
    if path.is_dir():
        what, hint = "is a folder", _hint_about_folder(path)
    else:
        what = f"is a '{path.suffix}' file" if path.suffix else "has no suffix"
        hint = _hint_about_file(path)
    raise InputError(f"{path} {what}, which labelgap does not recognize.{hint} What it recognizes: {known}.")


def _hint_about_folder(folder: Path) -> str:
    """Return what is probably meant by a folder that is not recognized: the table in it, or one beside its images."""
    children = sorted(folder.iterdir())
    if not children:
        return " The folder is empty."
    table = next((child for child in children if child.suffix.lower() == ".csv"), None)
    if table is not None:
        return f" Did you mean {table}?"
    if not any(is_image_name(child.name) for child in children):
        return ""
    beside = next((child for child in sorted(folder.parent.iterdir()) if child.suffix.lower() == ".csv"), None)
    return (
        f" {folder} holds images without labels. DATA is the table of their tags, a CSV with the columns image and "
        f"present: {beside or 'tags.csv'} --images {folder}."
    )


def _hint_about_file(file: Path) -> str:
    """Return what to do with a file that is not recognized."""
    if file.suffix.lower() in _SPREADSHEETS:
        return " Save the sheet as 'CSV UTF-8', and give that file."
    if is_image_name(file.name):
        return " It is an image: DATA is the table of the tags, a CSV with the columns image and present."
    return f" If it is a CSV all the same, say so: csv={file}."


def _qualified_name(load: Callable[..., Dataset]) -> str:
    return f"{load.__module__}:{getattr(load, '__qualname__', type(load).__name__)}"


def _absolute(path: str | os.PathLike[str]) -> str:
    if is_shard_url(text := os.fspath(path)):
        return text
    return os.fspath(Path(os.path.normpath(Path(path).expanduser().absolute())))


def _to_json(value: Any) -> Any:
    """Return an option as JSON can hold it, so that it comes back from a run's folder as it was."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {str(key): _to_json(each) for key, each in value.items()}
    return [_to_json(each) for each in value] if isinstance(value, Sequence) and not isinstance(value, str) else value
