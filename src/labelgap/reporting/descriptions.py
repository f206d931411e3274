"""Methods and runs as text: all methods in Markdown; the method, the data and the settings of a run."""

from __future__ import annotations

import sys
from typing import Any

from labelgap.core.errors import LabelGapError
from labelgap.core.text import join_names, join_numbers
from labelgap.core.trust import is_class_path
from labelgap.losses import Loss, Method, defaults, describe_method, method_options, methods, published_options
from labelgap.losses.base.registry import PAPER_DATASETS
from labelgap.models.info import NO_WEIGHTS
from labelgap.reporting.formatting import single_line
from labelgap.reporting.page import render_template
from labelgap.training import Run
from labelgap.training.config import RunConfig
from labelgap.training.rerun import format_value
from labelgap.training.settings import PROTOCOLS, RUN, SETTINGS

_THRESHOLD_SOURCES = {
    "measured": "measured {where} (the highest F1 there)",
    "estimated": "estimated {where} from few known labels",
    "borrowed": "taken from the other classes because too few labels are known",
    "default": "left at 0.5 because the known labels support none",
}
_NAMES = {"voc2012": "VOC 2012", "coco2014": "COCO 2014", "nuswide": "NUS-WIDE", "cub": "CUB"}
_DATASETS = {name: _NAMES[name] for name in PAPER_DATASETS}


def find_method(name: str) -> Method | None:
    """Return a method; None for somebody's own one, which is not installed, or whose module is not imported yet."""
    if is_class_path(name) and name.partition(":")[0] not in sys.modules:
        return None
    try:
        return describe_method(name)
    except LabelGapError:
        return None


def revises_labels(name: str) -> bool:
    """Return whether a method may revise labels permanently; False for one that is not installed or imported here."""
    method = find_method(name)
    return method is not None and method.loss_class.end_epoch is not Loss.end_epoch


def describe_method_choice(config: RunConfig) -> str:
    """Return the method of a run, what it does, its paper and, if `auto` chose it, why."""
    why = "" if config.why is None else f" Chosen because {config.why}."
    entry = find_method(config.method)
    if entry is None:
        return f"`{config.method}`.{why}"
    paper = f" ({entry.reference})" if entry.reference else ""
    return f"`{config.method}`{paper}, {entry.summary}.{why}"


def describe_data(config: RunConfig) -> list[tuple[str, str]]:
    """Return how the data were loaded; of a path its last part, because reports are shared."""
    loaded = [(name, format_value(value)) for name, value in config.data.items() if value not in (None, {}, [], "")]
    classes = f"{len(config.classes):,}: {join_names([single_line(name) for name in config.classes], 12)}"
    return [*((name, single_line(text)) for name, text in loaded), ("classes", classes)]


def describe_settings(config: RunConfig, *, everything: bool = False, size: int | None = None) -> list[tuple[str, str]]:
    """Return the settings of a run that have an effect, by name; ``everything``: also those at their neutral value.

    ``size`` is that of the images where the settings leave it to the backbone.
    """
    known = {**(defaults(config.method) if find_method(config.method) is not None else {}), **config.options}
    texts = {"options": _setting(known, "none"), "protocol": f"{config.protocol}: {PROTOCOLS[config.protocol]}"}
    texts |= {} if config.size or size is None else {"size": str(size)}
    texts |= {"weights": "none: random ones"} if config.weights == NO_WEIGHTS else {}
    rows = []
    for name, (info, setting) in SETTINGS.items():
        value = getattr(config, name)
        without = setting.needs is not None and getattr(config, setting.needs[0]) != setting.needs[1]
        if without or config.protocol not in setting.protocols or setting.group == RUN:
            continue
        if everything or value != info.default or config.protocol in setting.varies:
            rows.append((name.replace("_", " "), texts.get(name) or _setting(value, setting.default)))
    return [*rows, *([("random flips", "yes")] if config.flip else [])]


def _setting(value: Any, default: str | None = None) -> str:
    if value is None or value in ({}, []):
        return default or "not set"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else single_line(format_value(value))


def describe_thresholds(run: Run) -> list[str]:
    """Return how many thresholds of a run were found in which way."""
    marks, where = run.thresholds.marks, "out of fold" if run.config.folds else "on val"
    sources = ((marks.count(mark), text) for mark, text in _THRESHOLD_SOURCES.items() if mark in marks)
    return [f"{count} {text.format(where=where)}" for count, text in sources]


def methods_markdown() -> str:
    """Return the page of all methods in Markdown, as ``labelgap methods --markdown`` prints it."""
    entries = {name: describe_method(name) for name in methods()}
    options = {name: method_options(name) for name in entries}
    published = {name: {data: published_options(name, data) for data in _DATASETS} for name in entries}
    shown = {"methods": entries, "options": options, "published": published, "datasets": _DATASETS}
    return str(render_template("methods.md", **shown, join_numbers=join_numbers))
