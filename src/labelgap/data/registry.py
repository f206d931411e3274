"""The data sets that labelgap can read, by name, and which one a text or a recipe means.

To add one: write ``data/readers/NAME.py`` with a function from a path and options to a ``Dataset`` and a
``DatasetLayout``, and add both to ``BUILTIN_READERS``. From outside: ``register_dataset``, or an entry point of the
group "labelgap.datasets".
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, get_type_hints

from pydantic import TypeAdapter, ValidationError

from labelgap.core.errors import InputError, UnknownNameError, describe_missing_path, nearest_path
from labelgap.core.findings import Note
from labelgap.core.registry import Registry, load_plugins
from labelgap.core.settings import PATH_OPTIONS
from labelgap.core.text import truncate_text
from labelgap.core.trust import require_trust
from labelgap.data.addresses import ADDRESSES, load_addresses
from labelgap.data.dataset import Dataset
from labelgap.data.images import FEATURES
from labelgap.data.readers.annotation_tools import is_annotation_file, load_annotations, load_live_fiftyone
from labelgap.data.readers.arff import ARFF_LAYOUT, load_arff
from labelgap.data.readers.chexpert import CHEXPERT_LAYOUT, load_chexpert
from labelgap.data.readers.coco import coco_layout, load_coco2014, load_coco2017
from labelgap.data.readers.common import DatasetLayout, RequiredFile
from labelgap.data.readers.cub import CUB_LAYOUT, load_cub
from labelgap.data.readers.digits import load_digits
from labelgap.data.readers.features import is_feature_file, load_features
from labelgap.data.readers.folder import is_tag_folder, load_folder
from labelgap.data.readers.huggingface import HUGGINGFACE_LAYOUT, load_huggingface, save_live
from labelgap.data.readers.image_paths import is_image_name, refuse_url
from labelgap.data.readers.nuswide import NUSWIDE_LAYOUT, load_nuswide
from labelgap.data.readers.openimages import OPENIMAGES_LAYOUT, load_openimages
from labelgap.data.readers.recipe import SHARDS, Recipe, to_stored_option, to_stored_path
from labelgap.data.readers.shards import is_shard_folder, is_shard_url, load_shards
from labelgap.data.readers.spml import SPML_LAYOUT, load_spml
from labelgap.data.readers.table import load_table
from labelgap.data.readers.transfer import TRANSFER_SETS
from labelgap.data.readers.voc import load_voc2007, load_voc2012, voc_layout

_NO_LAYOUT: Final = DatasetLayout()


@dataclass(frozen=True)
class DatasetReader:
    """How one kind of data is loaded: from a path (to ``path_to``, in words; empty for no path) and options."""

    name: str
    load: Callable[..., Dataset]
    summary: str
    path_to: str = ""
    recognizer: Callable[[Path], bool] | None = None
    reference: str = ""
    builtin: bool = True
    layout: DatasetLayout = _NO_LAYOUT

    def recognizes(self, path: Path) -> bool:
        """Return whether an existing path leads to such data: as ``recognizer`` says, or where the layout finds it."""
        found = self.recognizer or self.layout.find
        return found is not None and bool(found(path))

    @property
    def options(self) -> tuple[str, ...]:
        """The names of the options, sorted."""
        named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        parameters = inspect.signature(self.load).parameters.values()
        return tuple(sorted(each.name for each in parameters if each.kind in named and each.name != "path"))

    @property
    def takes_any_option(self) -> bool:
        """Whether ``load`` takes options by ``**``."""
        kinds = {each.kind for each in inspect.signature(self.load).parameters.values()}
        return inspect.Parameter.VAR_KEYWORD in kinds

    def problems(self, path: Path) -> list[str]:
        """Return what is missing at a path or is of another version, as far as a quick look tells; or an empty list."""
        if not self.path_to:
            raise InputError(f"{self.name} takes no path; {os.fspath(path)!r} was given.")
        if not path.exists():
            raise InputError(describe_missing_path(path))
        problems = self.layout.problems(path)
        recognized = self.recognizes(path) or not self.builtin
        return problems if problems or recognized else [f"this is not {self.path_to}"]

    def check_stored_options(self, options: Mapping[str, Any]) -> None:
        """Raise an error for options out of a stored file without the types that ``load`` declares, if built in."""
        if not self.builtin:
            return
        hints = get_type_hints(self.load)
        for name, value in options.items():
            if name not in self.options:
                continue  # ``load`` of the registry refuses it
            try:
                TypeAdapter(hints[name]).validate_python(value, strict=True)
            except ValidationError as error:
                message = error.errors(include_url=False)[0]["msg"]
                raise InputError(f"{self.name} option {name}={truncate_text(repr(value))}: {message}.") from None


def _has_suffix(*suffixes: str) -> Callable[[Path], bool]:
    return lambda path: path.is_file() and path.suffix.lower() in suffixes


def _own(*files: RequiredFile, source: str = "your own", license: str = "yours") -> DatasetLayout:
    return DatasetLayout(source, license, files=files)


_VOC: Final = "Everingham et al., IJCV 2010"
_COCO: Final = "Lin et al., ECCV 2014"
_TRANSFER: Final = "Kobayashi, CVPR 2023, table 8"
_COCO_PATH: Final = "a folder with COCO's annotations"
_PHOTOS: Final = RequiredFile("photos/*.jpg", "any folder: --images photos")

BUILTIN_READERS: Final = (
    DatasetReader(
        "digits",
        load_digits,
        "scenes of handwritten digits, embedded in labelgap, one label shown of each",
        layout=_own(
            source="drawn by labelgap from the digits of scikit-learn (UCI, Optical Recognition of Handwritten Digits)",
            license="CC BY 4.0 (the digits)",
        ),
    ),
    DatasetReader(
        "csv",
        load_table,
        "your own photos: a table of tags and a folder of images",
        "a .csv file",
        _has_suffix(".csv", ".tsv"),
        layout=_own(RequiredFile("tags.csv", "image,[split],class…: 1, 0 or blank; or image,[split],present"), _PHOTOS),
    ),
    DatasetReader(
        FEATURES,
        load_features,
        "vectors that a network computed elsewhere, and their labels; no pixels",
        "an .npz or .parquet file with features",
        is_feature_file,
        layout=_own(RequiredFile("x.npz", "classes, {train,val,test}_features, {train,val,test}_labels; or .parquet")),
    ),
    DatasetReader(
        "parquet",
        load_table,
        "your own photos: as csv, in Parquet",
        "a .parquet file",
        _has_suffix(".parquet"),
        layout=_own(RequiredFile("tags.parquet", "the columns of a csv"), _PHOTOS),
    ),
    *(
        DatasetReader(name, load, f"{text}: 20 classes, boxes", "a VOC devkit", None, _VOC, layout=voc_layout(name[3:]))
        for name, load, text in (
            ("voc2012", load_voc2012, "PASCAL VOC2012 as the single-positive papers use it"),
            ("voc2007", load_voc2007, "PASCAL VOC2007"),
        )
    ),
    *(
        DatasetReader(name, load, f"{text}: 80 classes, boxes", _COCO_PATH, None, _COCO, layout=coco_layout(name[4:]))
        for name, load, text in (
            ("coco2014", load_coco2014, "COCO 2014 as the single-positive papers use it"),
            ("coco2017", load_coco2017, "COCO 2017"),
        )
    ),
    DatasetReader(
        "nuswide",
        load_nuswide,
        "NUS-WIDE: 81 concepts, the official split",
        "a folder with NUS-WIDE's lists",
        reference="Chua et al., CIVR 2009",
        layout=NUSWIDE_LAYOUT,
    ),
    DatasetReader(
        "cub",
        load_cub,
        "CUB-200-2011: 312 attributes of birds, certainties, the official split, boxes",
        "a folder with CUB-200-2011",
        reference="Wah et al., Caltech 2011",
        layout=CUB_LAYOUT,
    ),
    *(
        DatasetReader(
            each.name,
            each.load,
            f"{each.title}; one class per image",
            f"a folder with {each.name}",
            None,
            _TRANSFER,
            layout=each.layout,
        )
        for each in TRANSFER_SETS
    ),
    DatasetReader(
        "spml",
        load_spml,
        "the single-positive papers' arrays: formatted_{train,val}_{images,labels,labels_obs}.npy",
        "a folder with formatted_train_images.npy",
        reference="Cole et al., CVPR 2021",
        layout=SPML_LAYOUT,
    ),
    DatasetReader(
        "chexpert",
        load_chexpert,
        "chest radiographs, CheXpert or MIMIC-CXR: 1, 0, -1 = uncertain, blank = unknown",
        "a folder with CheXpert's train.csv",
        reference="Irvin et al., AAAI 2019; Johnson et al., 2019",
        layout=CHEXPERT_LAYOUT,
    ),
    DatasetReader(
        "arff",
        load_arff,
        "multi-label tables of Mulan and MEKA, sparse or dense; features, no pixels",
        "an .arff file, or a folder with NAME-train.arff",
        reference="Tsoumakas et al., JMLR 2011; Read et al., JMLR 2016",
        layout=ARFF_LAYOUT,
    ),
    DatasetReader(
        "openimages",
        load_openimages,
        "Open Images V3 and V4 to V7: labels that people verified, all others unknown; boxes on request",
        "a folder with the CSV files of Open Images",
        reference="Krasin et al. 2017; Kuznetsova et al., IJCV 2020",
        layout=OPENIMAGES_LAYOUT,
    ),
    DatasetReader(
        "huggingface",
        load_huggingface,
        "a Hugging Face data set on a disk: save_to_disk, or Parquet files as on the Hub",
        "a folder with dataset_dict.json, state.json or train-00000-of-00001.parquet",
        reference="Lhoest et al., EMNLP 2021",
        layout=HUGGINGFACE_LAYOUT,
    ),
    DatasetReader(
        SHARDS,
        load_shards,
        "images and labels in tar files, in a folder or at a URL: what `labelgap shard` writes",
        "a folder or a URL of shards (.tar)",
        is_shard_folder,
        layout=_own(RequiredFile("shards/*.tar", "what `labelgap shard DATA` writes, or WebDataset files")),
    ),
    DatasetReader(
        "annotations",
        load_annotations,
        "your own photos, labeled in CVAT or Label Studio",
        "CVAT's annotations.xml, or a .json file of Label Studio's tasks",
        is_annotation_file,
        layout=_own(RequiredFile("annotations.xml", "tags, choices, boxes or other shapes; or tasks.json"), _PHOTOS),
    ),
    DatasetReader(
        ADDRESSES,
        load_addresses,
        "images by their addresses, paths or URLs: what `labelgap audit RUN --predictions` writes",
        "a .parquet file of image, present and absent",
        layout=_own(RequiredFile("images.parquet", "image, an address; present and absent, lists")),
    ),
    DatasetReader(
        "folder",
        load_folder,
        "your own photos: sorted into a folder per tag, below train, val and test or not",
        "a folder with a folder of photos per tag",
        is_tag_folder,
        layout=_own(RequiredFile("cat/*.jpg", "a folder per tag"), RequiredFile("dog/*.jpg", "or train/dog/*.jpg …")),
    ),
)


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
        ...     return lg.load("digits", train=20, val=5, test=5, seed=seed)
        >>> register_dataset("small-digits", small_digits)  # doctest: +SKIP
        >>> lg.load("small-digits", seed=3)  # doctest: +SKIP
        Dataset(digits: 20 train, 5 val, 5 test; 10 classes)
    """
    if not DATASET_NAME.fullmatch(name):
        raise InputError(f"{name!r} is not a name of a data set: letters, digits, '_' and '-', a letter first.")
    if "path" in inspect.signature(load).parameters:
        path_to = path_to or "its data"
    elif path_to or recognizes:
        raise InputError(f"{_qualified_name(load)} has no parameter 'path', so nothing can lead to it.")
    summary = summary or (inspect.getdoc(load) or "").partition("\n")[0].rstrip(".")
    reader = DatasetReader(
        name, load, summary, path_to, recognizes or (lambda path: False), reference, False, layout or _NO_LAYOUT
    )
    _REGISTRY.add(name, reader, summary=summary, reference=reference)
    return load


@functools.cache
def _load_plugins() -> None:
    for name, load in load_plugins(ENTRY_POINTS):
        if name not in _REGISTRY:
            register_dataset(name, load)


def _readers() -> Registry[DatasetReader]:
    _load_plugins()
    return _REGISTRY


def dataset_names() -> list[str]:
    """Return the names of all data sets."""
    return _readers().names()


def describe_dataset(name: str) -> DatasetReader:
    """Return the reader of a data set; an unknown name is an error that names the nearest."""
    return _readers().get(name).value


def describe_datasets() -> list[DatasetReader]:
    """Return the reader of every data set: its name, options, summary, and what its path leads to."""
    return [entry.value for entry in _readers()]


def load_by_name(name: str, path: str | os.PathLike[str] | None = None, **options: Any) -> Dataset:
    """Load one of ``dataset_names()`` from where it lies."""
    reader = _readers().get(name).value
    given = {name: value for name, value in options.items() if name != "prior"}
    for option in given:
        if option not in reader.options and not reader.takes_any_option:
            raise UnknownNameError(f"{name} option", option, reader.options)
    if path is not None and not reader.path_to:
        raise InputError(f"{name} takes no path; {os.fspath(path)!r} was given.")
    if path is None and reader.path_to:
        raise InputError(f"{name} needs a path, to {reader.path_to}: {name}=PATH.")
    data = reader.load(**given) if path is None else reader.load(path, **given)
    if options.get("prior") is not None:
        data = _with_prior(data, Path(options["prior"]))
    paths = {key for key, value in options.items() if key in PATH_OPTIONS and isinstance(value, str | os.PathLike)}
    plain = {key: to_stored_option(to_stored_path(value) if key in paths else value) for key, value in options.items()}
    place = None if path is None else to_stored_path(path)
    loader = {} if reader.builtin else {"loader": _qualified_name(reader.load)}
    return replace(data, recipe={"name": name, "path": place, "options": plain, "steps": [], **loader})


def _with_prior(data: Dataset, path: Path) -> Dataset:
    """Return data with what sources say of their labels, and findings about what each is worth."""
    from labelgap.data.prior import read_prior

    names = {name for split in data.splits for name in split.labels.images}
    prior, notes = read_prior(path, data.classes, names)
    findings = (*data.findings, *notes, *prior.findings(data.train.labels))
    return replace(data, prior=prior, findings=findings)


def _qualified_name(load: Callable[..., Dataset]) -> str:
    return f"{load.__module__}:{getattr(load, '__qualname__', type(load).__name__)}"


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
