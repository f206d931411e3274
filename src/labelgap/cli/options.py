"""Options that several commands share, how options are declared, and how their values are parsed."""

from __future__ import annotations

import functools
import inspect
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, make_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, get_type_hints

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

import labelgap as lg
from labelgap.core.errors import InputError, ProblemsError, UnknownNameError, nearest
from labelgap.core.settings import DATA, DATA_OPTIONS, DataOptions, DataPaths, Setting, settings_of, value_type
from labelgap.core.text import parse_scalar

if TYPE_CHECKING:
    from labelgap.inference.parts import PartsResult
    from labelgap.training.settings import TrainingSettings

_DURATION: Final = re.compile(r"(?:([\d.]+)w)?(?:([\d.]+)d)?(?:([\d.]+)h)?(?:([\d.]+)m(?:in)?)?(?:([\d.]+)s)?")
_SECONDS: Final = (7 * 86400, 86400, 3600, 60, 1)


def option(about: str, default: str | bool = True, name: str | None = None, **more: Any) -> Any:
    """Declare an option: its help, what the help says of the default, and its name where it is not the parameter's."""
    return typer.Option(*([] if name is None else [name]), help=about, show_default=default, **more)


def setting_options(*names: str, group: str = "Options", **defaults: str) -> type[Any]:
    """Return options that are settings of a training, as these are declared there; ``defaults`` names other ones."""
    from labelgap.training.settings import SETTINGS

    found = list[tuple[str, Any, Any]]()
    for name in names:
        info, setting = SETTINGS[name]
        own = replace(setting, group=group, default=defaults.get(name, setting.default))
        found.append((name, _annotation(name, info, own), None))
    return make_dataclass("SettingOptions", found)


PARTS: Final = "Many machines"
WORKERS: Final = "Processes that decode images; with --engine the workers, e.g. 4 or 1:64."
_SHARDS: Final = "Compute part I of N, from 0, in this process; the others on other machines, into the same --out."
AsJson = Annotated[bool, option("Print JSON.", name="--json")]
Data = Annotated[
    str, typer.Argument(metavar="DATA", help="A CSV, a folder, shards, a VOC devkit, name=path …: `labelgap datasets`.")
]
Device = Annotated[str, option("auto, cpu, cuda or mps.")]
Force = Annotated[bool, option("Replace existing files.")]
NoImages = Annotated[bool, option("Leave images out of the page.")]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")]
Workers = Annotated[int | None, option("Processes that decode images.", "depends on the device")]


class DataSource(DataOptions):
    """How to read data, and which of the training labels to hide."""

    observe: Annotated[str | None, Setting(DATA)] = None
    """Hide training labels as the papers do, e.g. positives=1,negatives=0 (or all), or as people do: salient,
    small-overlooked, rare-overlooked, annotators, or random,share=0.3; or keep a share of all, absent ones included:
    labels,share=0.3."""
    label_seed: Annotated[int | None, Setting(DATA, default="1200; the papers'")] = None
    """Seed of --observe."""

    @property
    def hidden(self) -> dict[str, Any] | None:
        """The arguments of ``Dataset.observe`` but the seed; None where no label is hidden."""
        return None if self.observe is None else parse_observe(self.observe)

    @property
    def seed(self) -> int:
        """Of the draw of the labels that are not hidden."""
        return 1200 if self.label_seed is None else self.label_seed

    def open(self, data: str) -> lg.Dataset:
        """Open DATA, and hide labels."""
        hidden = self.hidden  # an error before anything is read
        opened = open_dataset(data, self)
        return opened if hidden is None else opened.observe(**hidden, seed=self.seed)


@dataclass(frozen=True)
class PartOptions:
    """How to compute a source in parts, on one machine or many."""

    engine: Annotated[str | None, option("ray: one part for each shard, on a cluster.", rich_help_panel=PARTS)] = None
    address: Annotated[str | None, option("Of the Ray cluster.", "RAY_ADDRESS", rich_help_panel=PARTS)] = None
    gpus_per_worker: Annotated[float, option("1, or a fraction.", rich_help_panel=PARTS)] = 0.0
    cpus_per_worker: Annotated[float, option("CPUs of a worker, which decode images.", rich_help_panel=PARTS)] = 1.0
    shards: Annotated[str | None, option(_SHARDS, metavar="I/N", rich_help_panel=PARTS)] = None

    @property
    def asked(self) -> bool:
        """Whether parts are written, and not one file."""
        return self.engine is not None or self.shards is not None

    @property
    def part(self) -> tuple[int, int]:
        """Which of how many parts of the shards."""
        number, _, parts = (self.shards or "0/1").partition("/")
        return parse_count(number, "--shards"), parse_count(parts, "--shards")

    def predict(
        self, predictor: lg.Predictor, source: str, out: str, workers: str | None, *, restart: bool = False
    ) -> PartsResult:
        """Compute the shards of a source that these options name."""
        from labelgap.inference.engines.ray import RayEngine, Workers
        from labelgap.inference.parts import compute_in_turn, predict_parts

        if self.engine not in (None, "ray"):
            raise UnknownNameError("engine", self.engine, ["ray"])
        pool = Workers.parse(workers if self.engine else None, self.cpus_per_worker, self.gpus_per_worker)
        engine = RayEngine(pool, self.address) if self.engine else compute_in_turn
        return predict_parts(predictor, source, out, engine=engine, part=self.part, restart=restart, quiet=False)


def parse_count(text: str, name: str) -> int:
    """Parse a number, 0 or more."""
    if not text.isdecimal():
        raise InputError(f"{name} {text}: a number is expected, e.g. 4 (--shards: 0/64).")
    return int(text)


class RunDataPaths(DataPaths):
    """Where the data of a run are, if somebody else made it or it was moved."""

    data: Annotated[str | None, Setting(DATA)] = None
    """Where the data of RUN are, if somebody else made it or it was moved; the other options are of these data."""

    def given(self) -> dict[str, Any]:
        """Return the given options but ``data`` as arguments of ``labelgap.data.load_moved``."""
        given = data_arguments(self)
        for name in given if self.data is None else ():
            raise InputError(f"--{name.replace('_', '-')} belongs to --data: say where the data are as well.")
        return given


class RunDataOptions(RunDataPaths, DataOptions):
    """Where the data of a run are, and how to read them; or how to read DATA."""


def with_options(**groups: type[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add options for every field of dataclasses or models of settings to a command, which gets an instance of each."""
    names = {name: _parameters(group) for name, group in groups.items()}
    added = [parameter for parameters in names.values() for parameter in parameters]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
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
    about = " ".join((info.description or "").split())
    return Annotated[kind | None, option(about, setting.default or True, flags, rich_help_panel=setting.group)]


@contextmanager
def joined_processes(device: str) -> Iterator[None]:
    """Connect the processes that torchrun started; in this block, an error of one ends all of them."""
    from labelgap.training.devices import choose_device
    from labelgap.training.loop.processes import fail_together, init_distributed

    init_distributed(choose_device(device))
    with fail_together():
        yield


def training_arguments(settings: TrainingSettings) -> dict[str, Any]:
    """Return the given options as arguments of ``labelgap.fit``."""
    given = {name: value for name, value in vars(settings).items() if value is not None}
    return {**given, "options": parse_options(given.get("options", ()))}


def data_arguments(options: DataPaths) -> dict[str, Any]:
    """Return the given options as arguments of ``labelgap.data.load``."""
    given = {name: value for name, value in vars(options).items() if name in DATA_OPTIONS}
    for name in ("classes", "ignore_columns"):
        given[name] = parse_names(given.get(name), f"--{name.replace('_', '-')}")
    given["rename"] = parse_pairs(given.get("rename"), "--rename")
    return {name: value for name, value in given.items() if value not in (None, [], {}) and value is not False}


def format_arguments(data: str, options: DataOptions) -> str:
    """Return DATA and its options as arguments of another command, quoted for a shell."""
    words = [data]
    for name, value in vars(options).items():
        flag, values = f"--{name.replace('_', '-')}", value if isinstance(value, list | tuple) else [value]
        if value is not None and value is not False:
            words += [flag] if value is True else [word for one in values for word in (flag, str(one))]
    return shlex.join(words)


def fix_command(data: str, path: str | os.PathLike[str], options: DataOptions) -> str:
    """Return the command that writes a clean copy of a table beside it: of DATA, or of a table of val or test."""
    path, left = Path(path), without(options, "val", "test", "observe", "label_seed")
    if path in (options.val, options.test):
        place = Path(data.partition("=")[2] or data).parent  # images are relative to DATA
        data = str(path)
        if options.images is None and place != path.parent:
            left = left.model_copy(update={"images": place})
    clean = path.with_name(f"{path.stem}-clean{path.suffix}")
    return f"labelgap inspect {format_arguments(data, left)} --fix {shlex.quote(str(clean))}"


def without(options: DataOptions, *names: str) -> DataOptions:
    """Return the options as if some were not given."""
    return options.model_copy(update=dict.fromkeys(names))


def open_dataset(data: str, options: DataOptions) -> lg.Dataset:
    """Open DATA; an error names the command that cleans a table."""
    try:
        return lg.load(data, **data_arguments(options))
    except ProblemsError as error:
        if error.fixable:
            error.add_note(f"a table without these problems:  {fix_command(data, str(error.path), options)}")
        raise


def parse_duration(text: str, name: str) -> float:
    """Parse a duration in weeks, days, hours, minutes and seconds, and return seconds; a bare number is minutes.

    Example:
        >>> [parse_duration(text, "--budget") for text in ("15m", "1h30m", "2", "30d")]
        [900.0, 5400.0, 120.0, 2592000.0]
    """
    compact = text.strip().lower().replace(" ", "")
    match = _DURATION.fullmatch(f"{compact}m" if compact.isdecimal() else compact)
    try:
        if match is None or not compact:
            raise ValueError
        return sum(float(count or 0) * seconds for count, seconds in zip(match.groups(), _SECONDS, strict=True))
    except ValueError:
        raise InputError(f"{name} {text}: write a duration as 30d, 12h, 1h30m or 90s.") from None


def parse_numbers(text: str | None, name: str, number: type[int] | type[float]) -> list[float] | None:
    """Parse comma-separated numbers; None where the option is not given."""
    try:
        return None if text is None else [number(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{name} {text}: write comma-separated numbers, e.g. {name} 16") from None


def parse_options(pairs: Iterable[str], name: str = "--option") -> dict[str, Any]:
    """Parse ``key=value`` pairs whose values are numbers, true or false, lists of them with commas, or texts.

    Example:
        >>> parse_options(["delta-rel=0.2", "base=all", "range=0.1,0.9"])
        {'delta_rel': 0.2, 'base': 'all', 'range': [0.1, 0.9]}
    """
    found = parse_pairs(pairs, name, "delta_rel=0.2")
    values = {key: [parse_scalar(part.strip()) for part in value.split(",")] for key, value in found.items()}
    return {key.replace("-", "_"): value if len(value) > 1 else value[0] for key, value in values.items()}


def parse_names(texts: Iterable[str] | None, name: str) -> list[str]:
    """Parse comma-separated names from one or several options; an empty list when no option was given."""
    names = [part.strip() for text in texts or () for part in text.split(",") if part.strip()]
    if texts is not None and not names:
        raise InputError(f"{name}: name at least one, e.g. {name} cat,dog")
    return names


def parse_pairs(pairs: Iterable[str] | None, name: str, example: str = "dog=Dog") -> dict[str, str]:
    """Parse ``key=value`` pairs of names."""
    found: dict[str, str] = {}
    for pair in pairs or ():
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or not key or not value:
            raise InputError(f"{name} {pair}: write it as key=value, e.g. {name} {example}")
        if found.setdefault(key, value) != value:
            raise InputError(f"{name} {key} is given twice.")
    return found


def parse_observe(text: str) -> dict[str, Any]:
    """Parse ``positives=1,negatives=0``, or a rule for the present labels and its options.

    Example:
        >>> parse_observe("small-overlooked,share=0.3,negatives=1")
        {'positives': 'small-overlooked', 'share': 0.3, 'negatives': 1}
    """
    from labelgap.labels.masking import check_draw

    parts = [part.strip() for part in text.split(",") if part.strip()]
    if parts and "=" not in parts[0]:
        parts[0] = f"positives={parts[0]}"
    given, allowed = parse_options(parts, "--observe"), ("positives", "negatives")
    options, rule = {key: value for key, value in given.items() if key not in allowed}, given.get("positives", 1)
    for key in options:
        if not isinstance(rule, str) and (near := nearest(key, allowed)):
            raise InputError(f"--observe takes positives and negatives, not '{key}'. Did you mean '{near}'?")
    try:
        check_draw(rule, options, given.get("negatives", 0))
    except InputError as error:
        raise InputError(f"--observe {text}: {error}") from None
    return given
