"""How to go on after a run: the commands that repeat it, or lead to an accuracy where its labels support none."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, Final

from labelgap.core.files import display_path
from labelgap.core.settings import DATA_OPTIONS, PATH_OPTIONS
from labelgap.core.text import parse_scalar
from labelgap.core.trust import is_class_path
from labelgap.data.dataset import Dataset, Split
from labelgap.data.images import FEATURES, FeatureVectors
from labelgap.training.config import RunConfig
from labelgap.training.settings import KEYWORDS, SETTINGS

RERUN_OUT: Final = "runs/rerun"  # the default folder of the repeated run: a folder that holds a run is not overwritten


def train_command(config: RunConfig, out: str = RERUN_OUT) -> str | None:
    """Return the command that repeats a run with every setting; None if the commands have no option for something."""
    data = data_arguments(config.data)
    if data is None or any(map(is_class_path, (config.method, config.backbone))):
        return None
    given = fit_arguments(config)
    options = {name: _text(value) for name, value in given.pop("options", {}).items()}
    if None in options.values():
        return None
    words = _flag("method", given.pop("method"))
    words += [word for name, text in options.items() for word in ("--option", f"{name}={text}")]
    words += [word for name, value in given.items() for word in _flag(name, value)]
    return shlex.join(["labelgap", "train", *data, *words, "--out", out])


def train_script(config: RunConfig, out: str = RERUN_OUT) -> str:
    """Return Python code that repeats a run; data that were made by hand are left open in it."""
    modules = sorted({name.partition(":")[0] for name in (config.method, config.backbone) if is_class_path(name)})
    lines = [*(f"import {module}" for module in modules), "import labelgap as lg", ""]
    lines += [f"data = {_loading(config.data)}", "lg.fit(", "    data,"]
    lines += [f"    {name}={value!r}," for name, value in fit_arguments(config).items()]
    return "\n".join([*lines, f"    out={out!r},", ")"])


def fit_arguments(config: RunConfig) -> dict[str, Any]:
    """Return the arguments of ``fit`` that give this configuration, without those at their fixed default."""
    given: dict[str, Any] = {
        name: value
        for name, (info, setting) in SETTINGS.items()
        if (value := getattr(config, name)) != info.default
        or config.protocol in setting.varies
        or (config.preset is not None and name in KEYWORDS)
    }
    if config.optimizer == "sgd":
        given["momentum"] = config.momentum
    if config.protocol == "linear" and config.preset is None and config.lr == config.backbone_lr:
        del given["backbone_lr"]
    if config.protocol == "linear" and config.precision != "float32":
        del given["precision"]  # the default of a CPU with 16-bit floats; another would refuse it
    if config.accumulate > 1:
        given["allow_micro_batch"] = True
    return {name: value for name, value in given.items() if value is not None and value not in ({}, [])}


def without_directories(config: RunConfig) -> RunConfig:
    """Return a configuration to share: of absolute paths only the last part is left."""
    paths = ("data", "weights", "teacher")
    return config.model_copy(update={name: strip_directories(getattr(config, name)) for name in paths})


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
    """Return an option as arguments; None where the command would read another value."""
    if isinstance(value, list):
        text = ",".join(map(str, value))
        same = bool(value) and [part.strip() for part in text.split(",") if part.strip()] == value
        return _flag(name, text) if same else None
    if isinstance(value, Mapping):
        texts = [f"{old}={new}" for old, new in value.items()]
        pairs = [tuple(part.strip() for part in text.split("=", 1)) for text in texts]
        same = pairs == list(value.items()) and all(map(all, pairs))
        return [word for text in texts for word in _flag(name, text)] if same else None
    return _flag(name, value)


def _observed(steps: list[Mapping[str, Any]]) -> list[str] | None:
    if not steps:
        return []
    drawn = steps[0].get("observe")
    if len(steps) > 1 or drawn is None or drawn["splits"] != ["train"]:
        return None
    amounts = ",".join(f"{name}={value}" for name, value in drawn.items() if name not in ("seed", "splits"))
    return ["--observe", amounts, "--label-seed", str(drawn["seed"])]


def _flag(name: str, value: Any) -> list[str]:
    dashed = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{dashed}" if value else f"--no-{dashed}"]
    return [f"--{dashed}", ",".join(map(str, value)) if isinstance(value, list) else str(value)]


def _text(value: Any) -> str | None:
    """Return the text of a method's option that the command parses to the same value; None where there is none."""
    values = value if isinstance(value, list) else [value]
    text = ",".join(str(each).lower() if isinstance(each, bool) else str(each) for each in values)
    read = [parse_scalar(part.strip()) for part in text.split(",")]
    return text if (read if len(read) > 1 else read[0]) == value else None


def _loading(recipe: Mapping[str, Any]) -> str:
    if not recipe:
        return "...  # your own: they were made by hand and cannot be loaded by name"
    path = [] if recipe["path"] is None else [repr(recipe["path"])]
    options = [f"{name}={value!r}" for name, value in recipe["options"].items()]
    loaded = f"lg.load({', '.join([repr(recipe['name']), *path, *options])})"
    for step in recipe["steps"]:
        for action, arguments in step.items():
            loaded += f".{action}({', '.join(f'{name}={value!r}' for name, value in arguments.items())})"
    return loaded


def format_value(value: Any) -> str:
    """Return a value as text; of a path only its last part, because reports are shared."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {format_value(item)}" for name, item in value.items())
    if isinstance(value, list | tuple):
        return "; ".join(map(format_value, value))
    return str(strip_directories(value))


RANDOM_IMAGES: Final = 300  # how many random images are labeled in full; the review takes all where there are fewer


def review_split(data: Dataset) -> Split:
    """Return the split whose random images are reviewed by default: val or test if labels are unknown, else train."""
    held_out = (split for split in (data.val, data.test) if split is not None and not split.labels.complete)
    return next(held_out, data.train)


def run_review_commands(
    folder: str | os.PathLike[str], config: RunConfig, data: Dataset | None = None, *, share: bool = False
) -> tuple[str, ...]:
    """Return the commands that measure a run on random images of its own data, with short paths to ``share``."""
    complete = data is not None and all(split.labels.complete for split in data.splits)
    if not config.data or config.backbone == FEATURES or complete:
        return ()
    run = _place(folder, share)
    images = RANDOM_IMAGES if data is None else min(RANDOM_IMAGES, len(review_split(data)))
    return _commands(["review", run, "--random", str(images)], ["evaluate", run, f"{run}-review"])


def run_audit_commands(
    folder: str | os.PathLike[str], config: RunConfig, data: Dataset | None = None, *, share: bool = False
) -> tuple[str, ...]:
    """Return the commands that rank the labels that are probably missing, where ``run_review_commands`` has any."""
    run = _place(folder, share)
    return _commands(["audit", run], ["review", run]) if run_review_commands(folder, config, data) else ()


def data_review_commands(
    folder: str | os.PathLike[str], data: Dataset, words: Sequence[str], name: str, split: str
) -> tuple[str, ...]:
    """Return the commands that measure a run on random images of other data, given by ``words`` and ``name``."""
    if isinstance(data.train.images, FeatureVectors):
        return ()
    run = _place(folder)
    review = f"{run}-{name}-review"
    drawn = ["--random", str(RANDOM_IMAGES), *([] if split == "all" else ["--split", split]), "--out", review]
    return _commands(["review", *words, *drawn], ["evaluate", run, review])


def comparison_review_commands(
    folder: str | os.PathLike[str], recipe: Mapping[str, Any], *, share: bool = False
) -> tuple[str, ...]:
    """Return the commands that write a table on which the methods of a comparison have an accuracy."""
    shown = strip_directories(dict(recipe)) if share else recipe
    data = data_arguments({**shown, "steps": []} if shown else shown)
    if data is None or recipe["name"] == FEATURES:
        return ()
    place = _place(folder, share)
    review = f"{place}-review"
    drawn = ["--random", str(RANDOM_IMAGES), "--out", review]
    return _commands(["review", *data, *drawn], ["apply", review, "--out", f"{place}-better.csv"])


def _commands(*commands: Sequence[str]) -> tuple[str, ...]:
    return tuple(shlex.join(["labelgap", *words]) for words in commands)


def _place(folder: str | os.PathLike[str], share: bool = False) -> str:
    """Return a folder as an argument that no command takes for an option."""
    path = display_path(folder)
    path = strip_directories(path) if share else path
    return f"./{path}" if path.startswith("-") else path
