"""How to repeat a run: as a command, or as Python where the commands have no option for it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, Final

from labelgap.core.class_path import is_class_path
from labelgap.core.files import display_path
from labelgap.data.readers.recipe import PATH_OPTIONS
from labelgap.training.config.defaults import TrainingSettings
from labelgap.training.config.schema import RunConfig

RERUN_OUT: Final = "runs/rerun"
"""The default folder of the repeated run: a folder that holds a run is not overwritten."""

DATA_OPTIONS: Final = frozenset(
    {
        "aliases",
        "allow_leaks",
        "annotations",
        "boxes",
        "certainty",
        "classes",
        "delimiter",
        "duplicates",
        "encoding",
        "ignore_columns",
        "images",
        "machine",
    }
    | {"on_bad_image", "parents", "rename", "separator", "test", "uncertain", "unlabeled", "unlisted", "val", "zeros"}
)
"""The options of the commands about DATA; a test compares them."""

_ALWAYS: Final = ("epochs", "lr", "backbone_lr", "batch_size", "precision")
_HEAD: Final = ("optimizer", "weight_decay", "standardize")
"""Settings of a linear head that are searched, or depend on what is."""
_NETWORK: Final = ("optimizer", "weight_decay", "schedule", "warmup", "transform", "average_flips")
"""Settings whose default depends on the network, where one is trained: those of the recipe."""
_NUMBER: Final = re.compile(
    r"[+-]?(\d[\d_]*\.?[\d_]*|\.\d+)(e[+-]?\d+)?|[+-]?(nan|inf(inity)?)|true|false", re.IGNORECASE
)


def train_command(config: RunConfig, out: str = RERUN_OUT) -> str | None:
    """Return the command that repeats a run.

    It states every setting that was resolved, so that it does the same on another machine; but features of 16 bits,
    which only some CPUs compute, are left to the machine.

    Returns:
        A line for a shell; None where the commands have no option for something: data made by hand, the sizes of the
        digits, labels hidden twice, an option that is a list of one, classes by their import path. ``train_script``
        covers all of them.
    """
    data = data_arguments(config.data)
    if data is None or any(map(is_class_path, (config.method, config.backbone))):
        return None
    words = ["labelgap", "train", *data]
    for name, value in fit_arguments(config).items():
        if name == "options":
            texts = {option: _text(given) for option, given in value.items()}
            if None in texts.values():
                return None
            for option, text in texts.items():
                words += ["--option", f"{option}={text}"]
        else:
            words += _flag(name, value)
    return shlex.join([*words, "--out", out])


def train_script(config: RunConfig, out: str = RERUN_OUT) -> str:
    """Return Python code that repeats a run; data that were made by hand are left open in it."""
    modules = sorted({name.partition(":")[0] for name in (config.method, config.backbone) if is_class_path(name)})
    lines = [*(f"import {module}" for module in modules), "import labelgap as lg", ""]
    lines += [f"data = {_loading(config.data)}", "lg.fit(", "    data,"]
    lines += [f"    {name}={value!r}," for name, value in fit_arguments(config).items()]
    return "\n".join([*lines, f"    out={out!r},", ")"])


def fit_arguments(config: RunConfig) -> dict[str, Any]:
    """Return the arguments of ``fit`` that give this configuration, without those at their default.

    With a preset all are there, since the preset would replace the defaults; otherwise also those whose default depends
    on the network or on the data.
    """
    fields = type(config).model_fields
    stated = (*_ALWAYS, *(_HEAD if config.protocol == "linear" else _NETWORK))
    given: dict[str, Any] = {"method": config.method, "options": dict(config.options), "preset": config.preset}
    given |= {name: getattr(config, name) for name in ("backbone", "weights", "protocol")}
    given |= {"head": None if config.head == "linear" else config.head}
    given |= {name: getattr(config, name) for name in ("seed", "select", "trace")}
    for name in TrainingSettings.__annotations__:
        if name.startswith("linear_"):
            given[name] = None if config.linear is None else getattr(config.linear, name.removeprefix("linear_"))
        elif name in stated or config.preset is not None or getattr(config, name) != fields[name].default:
            given[name] = getattr(config, name)
    if config.optimizer == "sgd":
        given["momentum"] = config.momentum
    if config.protocol == "linear" and config.preset is None and config.lr == config.backbone_lr:
        del given["backbone_lr"]
    if config.protocol == "linear" and config.precision != "float32":
        del given["precision"]  # the default of a CPU with 16-bit floats; another would refuse it
    if config.accumulate > 1:
        given["allow_micro_batch"] = True
    return {name: value for name, value in given.items() if value is not None and value != {}}


def without_directories(config: RunConfig) -> RunConfig:
    """Return a configuration to share: of absolute paths only the last part is left."""
    return config.model_copy(
        update={"data": strip_directories(config.data), "weights": strip_directories(config.weights)}
    )


def strip_directories(value: Any) -> Any:
    """Return a value, however nested, in which absolute paths are cut to their last part."""
    if isinstance(value, Mapping):
        return {key: strip_directories(each) for key, each in value.items()}
    if isinstance(value, list):
        return [strip_directories(each) for each in value]
    path = PurePath(value) if isinstance(value, str) else None
    return path.name if path is not None and path.is_absolute() and path.name else value


def data_arguments(recipe: Mapping[str, Any]) -> list[str] | None:
    """Return DATA and its options as arguments of the commands, or None where there is no such option."""
    if not recipe:
        return None
    words = [recipe["name"] if recipe["path"] is None else f"{recipe['name']}={display_path(recipe['path'])}"]
    for name, value in recipe["options"].items():
        if value is None or (name == "allow_leaks" and not value):
            continue
        is_path = name in PATH_OPTIONS
        if is_path and not isinstance(value, str):
            return None
        argument = _data_option(name, display_path(value) if is_path else value)
        if argument is None or name not in DATA_OPTIONS or value is False:  # no option switches anything off
            return None
        words += argument
    hidden = _observed(recipe["steps"])
    return None if hidden is None else [*words, *hidden]


def _data_option(name: str, value: Any) -> list[str] | None:
    """Return an option as arguments; None where the command cannot express its value."""
    if isinstance(value, list):
        expressible = value and all(
            isinstance(each, str) and each and each == each.strip() and "," not in each for each in value
        )
        return _flag(name, ",".join(value)) if expressible else None
    if isinstance(value, Mapping):
        expressible = all(
            isinstance(new, str) and old == old.strip() != "" and new == new.strip() != "" and "=" not in old
            for old, new in value.items()
        )
        return [word for old, new in value.items() for word in _flag(name, f"{old}={new}")] if expressible else None
    return _flag(name, value)


def _observed(steps: list[Mapping[str, Any]]) -> list[str] | None:
    """Return the arguments that hide labels: once, and in train only; None for anything else."""
    if not steps:
        return []
    drawn = steps[0].get("observe")
    if len(steps) > 1 or drawn is None or drawn["splits"] != ["train"]:
        return None
    amounts = ",".join(f"{name}={value}" for name, value in drawn.items() if name not in ("seed", "splits"))
    return ["--observe", amounts, "--label-seed", str(drawn["seed"])]


def _flag(name: str, value: Any) -> list[str]:
    """Return an option of a command with its value."""
    dashed = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{dashed}" if value else f"--no-{dashed}"]
    return [f"--{dashed}", str(value)]


def _text(value: Any) -> str | None:
    """Return the text of a method's option that the command parses to the same value; None where there is none."""
    if isinstance(value, list):
        parts = [_text(part) for part in value]
        return None if len(parts) < 2 or None in parts or list in map(type, value) else ",".join(map(str, parts))
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    plain = isinstance(value, str) and value == value.strip() and "," not in value and not _NUMBER.fullmatch(value)
    return str(value) if plain else None


def _loading(recipe: Mapping[str, Any]) -> str:
    """Return the expression that loads the data and repeats its steps."""
    if not recipe:
        return "...  # your own: they were made by hand and cannot be loaded by name"
    path = [] if recipe["path"] is None else [repr(recipe["path"])]
    options = [f"{name}={value!r}" for name, value in recipe["options"].items()]
    loaded = f"lg.load({', '.join([repr(recipe['name']), *path, *options])})"
    for step in recipe["steps"]:
        for action, arguments in step.items():
            loaded += f".{action}({', '.join(f'{name}={value!r}' for name, value in arguments.items())})"
    return loaded
