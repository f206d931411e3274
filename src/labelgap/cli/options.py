"""Options that several commands share."""

from __future__ import annotations

import functools
import inspect
import os
import shlex
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, make_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, get_type_hints

import typer
from pydantic import BaseModel

from labelgap.core.errors import InputError, ProblemsError
from labelgap.core.settings import settings_of, value_type

if TYPE_CHECKING:
    from labelgap.data import Dataset

_DATA_PANEL: Final = "Data"
_data_option = functools.partial(typer.Option, rich_help_panel=_DATA_PANEL)
_published_option = functools.partial(typer.Option, rich_help_panel="Published data sets")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Data = Annotated[
    str,
    typer.Argument(metavar="DATA", help="A CSV, a folder, shards, a VOC devkit, name=path …: `labelgap datasets`."),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
Force = Annotated[bool, typer.Option("--force", help="Replace existing files.")]
LabelSeed = Annotated[int, _data_option(help="Seed of --observe; the papers use 1200.")]
Observe = Annotated[
    str | None,
    _data_option(
        help="Hide training labels as the papers do, e.g. positives=1,negatives=0 (or all), or as people do: salient, "
        "small-overlooked, rare-overlooked, annotators, or random,share=0.3."
    ),
]
RunData = Annotated[
    str | None,
    typer.Option(
        "--data",
        rich_help_panel=_DATA_PANEL,
        metavar="DATA",
        help="Where the data of RUN are, if somebody else made it or it was moved.",
    ),
]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")]
Workers = Annotated[
    int | None, typer.Option(help="Processes that decode images.", show_default="depends on the device")
]


@dataclass(frozen=True)
class DataOptions:
    """How to read DATA; None for an option that is not given. A new option of a reader is one line here.

    ``with_options`` adds all of them to a command; ``given`` converts them to arguments of the readers.
    """

    images: Annotated[
        Path | None, _data_option(help="Folder that image names are relative to.", show_default="that of the table")
    ] = None
    val: Annotated[Path | None, _data_option(help="Table of val images, in the same layout.")] = None
    test: Annotated[Path | None, _data_option(help="Table of test images, in the same layout.")] = None
    zeros: Annotated[
        str | None, _data_option(help="Meaning of a 0 in a wide table: absent or unknown.", show_default="absent")
    ] = None
    unlisted: Annotated[
        str | None, _data_option(help="State of a class not in the lists: unknown or absent.", show_default="unknown")
    ] = None
    uncertain: Annotated[
        str | None, _published_option(help="What uncertain labels (-1) become: unknown, present or absent.")
    ] = None
    delimiter: Annotated[str | None, _data_option(help="Cell separator of a CSV.", show_default="detected")] = None
    separator: Annotated[str | None, _data_option(help="Separator within a list.", show_default="detected")] = None
    encoding: Annotated[str | None, _data_option(help="Encoding of a CSV.", show_default="detected")] = None
    classes: Annotated[list[str] | None, _data_option(help="Classes to use, e.g. cat,dog; repeatable.")] = None
    ignore_columns: Annotated[
        list[str] | None, _data_option(help="Columns that are not classes, e.g. width,height; repeatable.")
    ] = None
    rename: Annotated[
        list[str] | None, _data_option(help="Rename a class or column: dog=Dog, file=image; repeatable.")
    ] = None
    aliases: Annotated[Path | None, _data_option(help="CSV with two columns: synonym, class.")] = None
    parents: Annotated[Path | None, _data_option(help="CSV with two columns: child, parent it implies.")] = None
    on_bad_image: Annotated[
        str | None,
        _data_option(help="Unreadable images: error (lists all) or skip.", show_default="error; predict: skip"),
    ] = None
    duplicates: Annotated[
        str | None, _data_option(help="Duplicate images to detect: near, exact or off.", show_default="near")
    ] = None
    certainty: Annotated[
        str | None, _published_option(help="CUB labels below it are unknown: guessing, probably or definitely.")
    ] = None
    unlabeled: Annotated[
        str | None, _published_option(help="Images without a label: keep (nuswide) or drop (openimages).")
    ] = None
    annotations: Annotated[
        Path | None, _published_option(help="VOC devkit with the boxes of the images of a feature file.")
    ] = None
    machine: Annotated[
        float | None, _published_option(help="Confidence from which labels of a network are used (openimages).")
    ] = None
    boxes: Annotated[bool, _published_option("--boxes", help="Read boxes, too (openimages).")] = False
    allow_leaks: Annotated[bool, _data_option("--allow-leaks", help="Allow an image in several splits.")] = False

    def given(self) -> dict[str, Any]:
        """Return the given options as arguments of ``labelgap.data.open_data``."""
        from labelgap.cli.parsing import parse_names, parse_pairs

        parsed = {
            **{field.name: getattr(self, field.name) for field in fields(self)},
            "classes": parse_names(self.classes, "--classes"),
            "ignore_columns": parse_names(self.ignore_columns, "--ignore-columns"),
            "rename": parse_pairs(self.rename, "--rename"),
            "boxes": self.boxes or None,
            "allow_leaks": self.allow_leaks or None,
        }
        return {name: value for name, value in parsed.items() if value is not None}


@dataclass(frozen=True)
class RunDataOptions:
    """Where the data of a run are, if somebody else made it or it was moved."""

    data: RunData = None
    images: Annotated[Path | None, _data_option(help="With --data: folder that image names are relative to.")] = None
    val: Annotated[Path | None, _data_option(help="With --data: table of val images, if RUN had one.")] = None
    test: Annotated[Path | None, _data_option(help="With --data: table of test images, if RUN had one.")] = None
    aliases: Annotated[Path | None, _data_option(help="With --data: CSV of synonyms, if RUN had one.")] = None
    parents: Annotated[Path | None, _data_option(help="With --data: CSV of parents, if RUN had one.")] = None
    annotations: Annotated[
        Path | None, _published_option(help="With --data: VOC devkit with the boxes, if RUN had one.")
    ] = None

    def given(self) -> dict[str, Any]:
        """Return the given options but ``data`` as arguments of ``labelgap.data.load_moved``."""
        paths = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "data"}
        return check_moved(self.data, {name: path for name, path in paths.items() if path is not None})


def check_moved(data: str | None, given: dict[str, Any]) -> dict[str, Any]:
    """Return options of the data of a run; an error where ``--data`` does not say where these are."""
    for name in given if data is None else ():
        raise InputError(f"--{name.replace('_', '-')} belongs to --data: say where the data are as well.")
    return given


Command = Callable[..., None]


def with_options(**groups: type[Any]) -> Callable[[Command], Command]:
    """Add an option to a command for every field of some dataclasses; the command gets an instance of each by name."""
    added = [
        inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hint)
        for group in groups.values()
        for field, hint in zip(fields(group), get_type_hints(group, include_extras=True).values(), strict=True)
    ]

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        own = [parameter for parameter in signature.parameters.values() if parameter.name not in groups]

        @functools.wraps(command)
        def wrapper(*arguments: Any, **named: Any) -> None:
            for name, group in groups.items():
                values = {field.name: named.pop(field.name) for field in fields(group) if field.name in named}
                named[name] = group(**values)
            command(*arguments, **named)

        parameters = sorted([*own, *added], key=lambda parameter: parameter.kind)
        wrapper.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return wrapper

    return decorate


def settings_options(model: type[BaseModel]) -> type[Any]:
    """Return a dataclass with an option for every setting of a model; None for one that is not given."""
    made = []
    for name, (info, setting) in settings_of(model).items():
        kind = value_type(info)
        kind = list[str] if kind is dict else kind
        flag = f"--{(setting.flag or name).replace('_', '-')}"
        flags = [f"{flag}/--no-{flag[2:]}"] if kind is bool else [flag]
        shown: dict[str, Any] = {} if setting.default is None else {"show_default": setting.default}
        option = typer.Option(*flags, help=info.description, rich_help_panel=setting.group, **shown)
        made.append((name, Annotated[kind | None, option], None))
    return make_dataclass(model.__name__, made, frozen=True)


def training_arguments(options: Any) -> dict[str, Any]:
    """Return the given options of ``settings_options(TrainingSettings)`` as arguments of ``labelgap.fit``."""
    from labelgap.cli.parsing import parse_options

    given = {name: value for name, value in asdict(options).items() if value is not None}
    return {**given, "options": parse_options(given.get("options", ()))}


def format_arguments(data: str, options: DataOptions, observe: str | None = None, label_seed: int = 1200) -> str:
    """Return DATA and its options as arguments of another command, quoted for a shell.

    Example:
        >>> format_arguments("my tags.csv", DataOptions(images=Path("photos"), rename=["dog=Dog"], allow_leaks=True))
        "'my tags.csv' --images photos --rename dog=Dog --allow-leaks"
    """
    words = [data]
    for field in fields(options):
        value, flag = getattr(options, field.name), f"--{field.name.replace('_', '-')}"
        if value is None or value is False:
            continue
        values = value if isinstance(value, list | tuple) else [value]
        words += [flag] if value is True else [word for one in values for word in (flag, str(one))]
    if observe is not None:
        words += ["--observe", observe, *(["--label-seed", str(label_seed)] if label_seed != 1200 else [])]
    return " ".join(map(shlex.quote, words))


def fix_command(data: str, path: str | os.PathLike[str], options: DataOptions) -> str:
    """Return the command that writes a clean copy of a table beside it: of DATA, or of a table of val or test.

    Example:
        >>> fix_command("csv=old/tags.csv", "old/tags.csv", DataOptions())
        'labelgap inspect csv=old/tags.csv --fix old/tags-clean.csv'
        >>> fix_command("old/tags.csv", "test.csv", DataOptions(test=Path("test.csv")))
        'labelgap inspect test.csv --images old --fix test-clean.csv'
    """
    path = Path(path)
    if path in (options.val, options.test):
        place = Path(data.partition("=")[2] or data).parent  # images are relative to DATA
        data = str(path)
        if options.images is None and place != path.parent:
            options = replace(options, images=place)
    options = replace(options, val=None, test=None)
    clean = path.with_name(f"{path.stem}-clean{path.suffix}")
    return f"labelgap inspect {format_arguments(data, options)} --fix {shlex.quote(str(clean))}"


def open_dataset(data: str, options: DataOptions, observe: str | None = None, label_seed: int = 1200) -> Dataset:
    """Open DATA, and hide labels when ``--observe`` is given; an error names the command that cleans a table."""
    from labelgap.cli.parsing import parse_observe
    from labelgap.data import open_data

    hidden = None if observe is None else parse_observe(observe)
    try:
        opened = open_data(data, **options.given())
    except ProblemsError as error:
        if error.fixable:
            error.add_note(f"a table without these problems:  {fix_command(data, str(error.path), options)}")
        raise
    return opened if hidden is None else opened.observe(**hidden, seed=label_seed)
