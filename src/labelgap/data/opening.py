"""The data that a text means, what a person wrote for DATA, or a recipe, what a run stores of its data."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from labelgap.core.data_options import PATH_OPTIONS
from labelgap.core.errors import InputError, UnknownNameError, describe_missing_path, nearest_path
from labelgap.core.findings import Note
from labelgap.core.trust import require_trust
from labelgap.data.dataset import Dataset
from labelgap.data.readers.annotation_tools import load_live_fiftyone
from labelgap.data.readers.huggingface import save_live
from labelgap.data.readers.image_paths import is_image_name, refuse_url
from labelgap.data.readers.recipe import SHARDS, Recipe, to_stored_option, to_stored_path
from labelgap.data.readers.shards import is_shard_url
from labelgap.data.registry import DATASET_NAME, dataset_names, describe_dataset, describe_datasets, load_by_name

_GENERIC: Final = ("csv", "parquet", "folder")
"""Formats that more special ones are often recognized as, too: the special ones count."""
_MAX_FOLDERS: Final = 20  # folders of a folder that is not recognized that are looked into
_SPREADSHEETS: Final = (".xlsx", ".xls", ".xlsm", ".xlsb", ".ods", ".numbers")


def load_from_recipe(recipe: Mapping[str, Any]) -> Dataset:
    """Load a data set again from its ``recipe``, which anybody may have written, and hide or show labels as before.

    A data set of ``register_dataset`` has to be registered: no code is imported because a run folder names it.
    """
    if not recipe:
        raise InputError("these data were made by hand, not loaded by name: they cannot be opened again from a run.")
    checked = Recipe.checked(recipe)
    if checked.name not in dataset_names() and checked.loader:
        raise InputError(
            f"the data set '{checked.name}' is not registered here; {checked.loader} loaded it. Install the package "
            f"that has it, or call labelgap.register_dataset({checked.name!r}, …) first."
        )
    describe_dataset(checked.name).check_stored_options(checked.options)
    data = load_by_name(checked.name, checked.path, **checked.options)
    for step in checked.steps:
        if step.observe is not None:
            data = data.observe(**step.observe.model_dump())
        if step.reveal is not None:
            data = data.reveal(step.reveal.splits)
        if step.sample is not None:
            data = data.sample(**step.sample.model_dump())
    return data


def load_stored(document: Path, recipe: Mapping[str, Any]) -> Dataset:
    """Load the data of a recipe in a document that this user made or trusts, or without paths; else ``RunError``."""
    if recipe:
        checked = Recipe.checked(recipe)
        named = [f"the data {path}" for path in checked.paths]
        if checked.name in dataset_names() and not describe_dataset(checked.name).builtin:
            named.append(f"the data set {checked.name} of another package, with options")
        require_trust(document, named, "say where the data are (--data)")
        if lost := [path for path in checked.paths if not is_shard_url(path) and not Path(path).exists()]:
            verb, images = "does" if len(lost) == 1 else "do", " --images FOLDER" * ("images" in checked.options)
            raise InputError(
                f"{' and '.join(lost)}, which {document.parent} was made with, {verb} not exist any more. Where are "
                f"the data now? Add --data PATH{images}."
            )
    return load_from_recipe(recipe)


def load_moved(recipe: Mapping[str, Any], text: str | os.PathLike[str], **options: Any) -> Dataset:
    """Load the data of a recipe from ``text``, where the user says that they are; no path of the recipe is opened.

    Further tables of the recipe (val, test, aliases …) have to be named as well: without them the data are others. Only
    test images can be left out, by ``test="none"``. ``options`` replace those of the recipe; None means not given.
    """
    without = {"test"} if str(options.get("test")) == "none" and not Path("none").exists() else set()
    options = {name: value for name, value in options.items() if value is not None and name not in without}
    given = {name: to_stored_option(value) for name, value in options.items()}
    if not recipe:
        return load(text, **given)
    checked = Recipe.checked(recipe)
    name, equals, place = os.fspath(text).partition("=")
    if not equals or name not in dataset_names():
        name, place = checked.name, os.fspath(text)
    path = Path(place).expanduser()
    if not (name == SHARDS and is_shard_url(place)) and not path.exists():
        raise InputError(describe_missing_path(path))
    paths = {
        option: path for option, path in checked.options.items() if option in PATH_OPTIONS and isinstance(path, str)
    }
    if lost := [option for option in paths if option not in {"images", *given, *without}]:
        named = " and ".join(f"{option}={paths[option]}" for option in lost)
        flags = " ".join(f"--{option} PATH" for option in lost)
        gone = " (--test none: without it)" if "test" in lost else ""
        raise InputError(f"the data had {named} beside {checked.path}. Where are these now? Add {flags}{gone}.")
    kept = {option: value for option, value in checked.options.items() if option not in paths}
    return load_from_recipe({**recipe, "name": name, "path": to_stored_path(place), "options": {**kept, **given}})


def load(data: Any, path: str | os.PathLike[str] | None = None, **options: Any) -> Dataset:
    """Load data as the commands do: ``load("tags.csv", images="photos/")``, or by a name, ``load("voc2012", PATH)``.

    Args:
        data: a path, which is recognized by what it leads to; ``name=path``; one of ``dataset_names()``; or a live data
            set of FiftyOne or Hugging Face, with the options of ``load_live_fiftyone`` or ``load_huggingface``. A name
            beats a path: ``./digits`` is the path.
        path: where the data set of that name lies; not for data that comes with labelgap.
        **options: of that data set; None means not given. An unknown one is an error that names the nearest.

    Example:
        >>> load("digits", train=20, val=5, test=5).classes
        ('0', '1', '2', '3', '4', '5', '6', '7', '8', '9')
    """
    if not isinstance(data, str | os.PathLike):
        return _load_live(data, **options)
    text = os.fspath(data)
    name, equals, place = text.partition("=")
    named = bool(equals) and DATASET_NAME.fullmatch(name) is not None
    place = place if named else text
    given = {option: value for option, value in options.items() if value is not None}
    if path is not None:
        return load_by_name(text, path, **given)
    if is_shard_url(place) and (not named or name == SHARDS):
        return load_by_name(SHARDS, place, **given)
    refuse_url(place)
    if text in dataset_names() and not (describe_dataset(text).path_to and Path(text).exists()):
        return load_by_name(text, **given)
    file = Path(text).expanduser()
    if file.exists():
        name, others = recognize_format(file)
        loaded = load_by_name(name, file, **given)
        also = "".join(f"; {other} is there too: {other}={text}" for other in others)
        recognized = Note(f"recognized as {name}: {describe_dataset(name).path_to}{also}", "source")
        return replace(loaded, findings=(recognized, *loaded.findings))
    if named:
        file = Path(place).expanduser()
        if name in dataset_names() and place and not file.exists():
            raise InputError(describe_missing_path(file))
        return load_by_name(name, file if place else None, **given)
    if DATASET_NAME.fullmatch(text):
        hint = "No file or folder of that name is here either; `labelgap datasets` lists what can be read."
        near = nearest_path(file)
        raise UnknownNameError("data set", text, [*dataset_names(), *([] if near is None else [str(near)])], hint)
    raise InputError(describe_missing_path(file))


def _load_live(data: Any, **options: Any) -> Dataset:
    library = type(data).__module__.partition(".")[0]
    if library == "fiftyone":
        return load_live_fiftyone(data, **options)
    if library == "datasets":
        return load_by_name("huggingface", save_live(data), **options)
    raise InputError(
        f"data of the type {type(data).__name__}: give a path, a name, or a data set of FiftyOne or Hugging Face."
    )


def recognize_format(path: Path) -> tuple[str, tuple[str, ...]]:
    """Return the name of the data that an existing path leads to, and what else it could be read as."""
    names = [reader.name for reader in describe_datasets() if reader.recognizes(path)]
    names.sort(key=lambda name: name in _GENERIC)
    if names:
        return names[0], tuple(name for name in names[1:] if name not in _GENERIC)
    known = "a CSV file, a folder with a folder of photos per tag, and what `labelgap datasets` lists"
    if path.is_dir():
        what, hint = "is a folder", _hint_about_folder(path)
    else:
        what = f"is a '{path.suffix}' file" if path.suffix else "has no suffix"
        hint = _hint_about_file(path)
    raise InputError(f"{path} {what}, which labelgap does not recognize.{hint} What it recognizes: {known}.")


def _hint_about_folder(folder: Path) -> str:
    """Return what is probably meant: the table or the album in a folder, or a table beside its images."""
    children = sorted(folder.iterdir())
    if not children:
        return " The folder is empty."
    table = next((child for child in children if child.suffix.lower() == ".csv"), None)
    if table is not None:
        return f" Did you mean {shlex.quote(str(table))}?"
    if not any(is_image_name(child.name) for child in children):
        folders = [child for child in children if child.is_dir()][:_MAX_FOLDERS]
        album = next((each for each in folders if any(one.recognizes(each) for one in describe_datasets())), None)
        return "" if album is None else f" Did you mean {shlex.quote(str(album))}?"
    beside = next((child for child in sorted(folder.parent.iterdir()) if child.suffix.lower() == ".csv"), None)
    return (
        f" {folder} holds images without labels. DATA is the table of their tags, a CSV with the columns image and "
        f"present: {shlex.quote(str(beside or 'tags.csv'))} --images {shlex.quote(str(folder))}."
    )


def _hint_about_file(file: Path) -> str:
    if file.suffix.lower() in _SPREADSHEETS:
        return " Save the sheet as 'CSV UTF-8', and give that file."
    if file.suffix.lower() == ".json":
        return " From Label Studio, export JSON (not JSON-MIN); COCO is the folder that its annotations are in."
    if is_image_name(file.name):
        return " It is an image: DATA is the table of the tags, a CSV with the columns image and present."
    return f" If it is a CSV all the same, say so: csv={file}."
