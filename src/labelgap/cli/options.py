"""Options that several commands share."""

from __future__ import annotations

import functools
import inspect
import os
import shlex
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from labelgap.core.data_options import DATA, PATH_OPTIONS, DataOptions, DataPaths
from labelgap.core.errors import InputError, ProblemsError
from labelgap.core.settings import Setting, settings_of, value_type

if TYPE_CHECKING:
    from labelgap.data import Dataset
    from labelgap.training.settings import TrainingSettings

_data_option = functools.partial(typer.Option, rich_help_panel=DATA)

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
        rich_help_panel=DATA,
        metavar="DATA",
        help="Where the data of RUN are, if somebody else made it or it was moved.",
    ),
]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")]
Workers = Annotated[
    int | None, typer.Option(help="Processes that decode images.", show_default="depends on the device")
]


class RunDataOptions(DataPaths):
    """Where the data of a run are, if somebody else made it or it was moved."""

    data: Annotated[str | None, Setting(DATA)] = None
    """Where the data of RUN are, if somebody else made it or it was moved; the other paths say where theirs are."""

    def given(self) -> dict[str, Any]:
        """Return the given options but ``data`` as arguments of ``labelgap.data.load_moved``."""
        return check_moved(
            self.data, {name: path for name in PATH_OPTIONS if (path := getattr(self, name)) is not None}
        )


def data_arguments(options: DataOptions) -> dict[str, Any]:
    """Return the given options as arguments of ``labelgap.data.open_data``."""
    from labelgap.cli.parsing import parse_names, parse_pairs

    parsed = {
        **vars(options),
        "classes": parse_names(options.classes, "--classes"),
        "ignore_columns": parse_names(options.ignore_columns, "--ignore-columns"),
        "rename": parse_pairs(options.rename, "--rename"),
    }
    return {name: value for name, value in parsed.items() if value is not None and value is not False}


def check_moved(data: str | None, given: dict[str, Any]) -> dict[str, Any]:
    """Return options of the data of a run; an error where ``--data`` does not say where these are."""
    for name in given if data is None else ():
        raise InputError(f"--{name.replace('_', '-')} belongs to --data: say where the data are as well.")
    return given


Command = Callable[..., None]


def with_options(**groups: type[Any]) -> Callable[[Command], Command]:
    """Add options to a command for every field of some dataclasses or models of settings.

    The command gets an instance of each by name; that of a model has None for a setting that is not given.
    """
    names = {name: _parameters(group) for name, group in groups.items()}
    added = [parameter for parameters in names.values() for parameter in parameters]

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        own = [parameter for parameter in signature.parameters.values() if parameter.name not in groups]

        @functools.wraps(command)
        def wrapper(*arguments: Any, **named: Any) -> None:
            for name, group in groups.items():
                values = {each.name: named.pop(each.name) for each in names[name] if each.name in named}
                named[name] = group.model_construct(**values) if issubclass(group, BaseModel) else group(**values)
            command(*arguments, **named)

        parameters = sorted([*own, *added], key=lambda parameter: parameter.kind)
        wrapper.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return wrapper

    return decorate


def _parameters(group: type[Any]) -> list[inspect.Parameter]:
    """Return the parameters of a command for the fields of a dataclass, or for the settings of a model."""
    if not issubclass(group, BaseModel):
        hints = get_type_hints(group, include_extras=True)
        found = [(field.name, field.default, hints[field.name]) for field in fields(group)]
    else:
        found = [(name, None, _annotation(name, *each)) for name, each in settings_of(group).items()]
    kind = inspect.Parameter.KEYWORD_ONLY
    return [inspect.Parameter(name, kind, default=default, annotation=hint) for name, default, hint in found]


def _annotation(name: str, info: FieldInfo, setting: Setting) -> Any:
    """Return the type of a setting's option; of one that is not given the value is None."""
    kind = value_type(info)
    flag = f"--{(setting.flag or name).replace('_', '-')}"
    flags = f"{flag}/--no-{flag[2:]}" if kind is bool and setting.flag is None else flag
    shown: dict[str, Any] = {} if setting.default is None else {"show_default": setting.default}
    return Annotated[kind | None, typer.Option(flags, help=info.description, rich_help_panel=setting.group, **shown)]


def setting_option(name: str, default: str | None = None, **more: Any) -> Any:
    """Declare an option of a command that is a setting of a training: its help is that of the setting."""
    from labelgap.training.settings import SETTINGS

    info, setting = SETTINGS[name]
    shown = default or setting.default
    return typer.Option(help=info.description, show_default=True if shown is None else shown, **more)


def training_arguments(settings: TrainingSettings) -> dict[str, Any]:
    """Return the given options as arguments of ``labelgap.fit``."""
    from labelgap.cli.parsing import parse_options

    given = {name: value for name, value in vars(settings).items() if value is not None}
    return {**given, "options": parse_options(given.get("options", ()))}


def format_arguments(data: str, options: DataOptions, observe: str | None = None, label_seed: int = 1200) -> str:
    """Return DATA and its options as arguments of another command, quoted for a shell.

    Example:
        >>> format_arguments("my tags.csv", DataOptions(images=Path("photos"), rename=["dog=Dog"], allow_leaks=True))
        "'my tags.csv' --images photos --rename dog=Dog --allow-leaks"
    """
    words = [data]
    for name, value in vars(options).items():
        flag = f"--{name.replace('_', '-')}"
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
            options = options.model_copy(update={"images": place})
    options = options.model_copy(update={"val": None, "test": None})
    clean = path.with_name(f"{path.stem}-clean{path.suffix}")
    return f"labelgap inspect {format_arguments(data, options)} --fix {shlex.quote(str(clean))}"


def open_dataset(data: str, options: DataOptions, observe: str | None = None, label_seed: int = 1200) -> Dataset:
    """Open DATA, and hide labels when ``--observe`` is given; an error names the command that cleans a table."""
    from labelgap.cli.parsing import parse_observe
    from labelgap.data import open_data

    hidden = None if observe is None else parse_observe(observe)
    try:
        opened = open_data(data, **data_arguments(options))
    except ProblemsError as error:
        if error.fixable:
            error.add_note(f"a table without these problems:  {fix_command(data, str(error.path), options)}")
        raise
    return opened if hidden is None else opened.observe(**hidden, seed=label_seed)
