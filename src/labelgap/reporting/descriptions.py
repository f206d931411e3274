"""Methods and runs as text: all methods in Markdown; the method, the data and the settings of a run."""

from __future__ import annotations

import sys

from labelgap.core.errors import LabelGapError
from labelgap.core.text import join_names, join_numbers
from labelgap.core.trust import is_class_path
from labelgap.data.images import FEATURES
from labelgap.losses import Loss, Method, defaults, describe_method, method_options, methods, published_options
from labelgap.losses.base.registry import PAPER_DATASETS
from labelgap.reporting.formatting import single_line
from labelgap.reporting.page import render_template
from labelgap.training import Run
from labelgap.training.config import RunConfig
from labelgap.training.rerun import format_value
from labelgap.training.settings import PROTOCOLS

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
    """Return the settings of a run as pairs of name and text; ``everything``: also those with their default value."""
    first = config.linear_phase() if config.protocol == "linear-init" else None
    adam = "" if first is None else f"{first.epochs} epochs of Adam at {first.lr:g}, batches of {first.batch_size}"
    stops = f"; stops {100 * (config.stop_below or 0):g} points below the best val score"
    options = {**(defaults(config.method) if find_method(config.method) is not None else {}), **config.options}
    one_rate = config.protocol == "linear" or config.backbone_lr == config.lr
    rates = f"{config.lr:g}" if one_rate else f"head {config.lr:g}, backbone {config.backbone_lr:g}"
    stored = "" if config.weights is None else f", weights of {format_value(config.weights)}"
    precision = "bfloat16 autocast" if config.precision == "bf16" else "float32"
    if config.precision != "float32" and not config.trains_backbone:
        precision = f"features in {config.feature_precision}, the head in float32"
    rows = [  # name, text, and the text of a default, "" for none
        ("method", config.method, ""),
        ("options", format_value(options), "none"),
        ("preset", f"{config.preset}: the paper's settings unless stated otherwise" if config.preset else "", "none"),
        ("backbone", config.backbone + (", random weights" if config.weights == "none" else stored), ""),
        ("head", config.head + _attention(config), "linear"),
        ("images", _images(config, size), ""),
        ("protocol", f"{config.protocol}: {PROTOCOLS[config.protocol]}", ""),
        ("first phase", adam and f"the head alone: {adam}", ""),
        ("epochs", f"at most {config.epochs}{stops}" if config.stop_below else str(config.epochs), ""),
        ("batch size", f"{config.batch_size}", ""),
        ("gradient accumulation", f"over {config.accumulate} batches" if config.accumulate > 1 else "", "none"),
        ("optimizer", _optimizer(config), ""),
        ("learning rate", rates, ""),
        ("warmup", f"{config.warmup:g} epochs" if config.warmup else "", "none"),
        ("schedule", config.schedule, "constant"),
        ("gradient clipping", "" if config.clip is None else f"to a norm of {config.clip:g}", "none"),
        ("weight averaging", "" if config.ema is None else f"exponential, decay {config.ema:g}", "none"),
        ("batch normalization", config.batchnorm, "local"),
        ("precision", precision, ""),
        ("logits", _averaged(config), ""),
        ("epoch selection", config.select, ""),
        ("seed", str(config.seed), ""),
    ]
    if config.backbone == FEATURES:
        rows[3:6] = [("backbone", "none, the data are features", ""), rows[4]]
    shown = [(name, single_line(text or default), default) for name, text, default in rows]
    return [(name, text) for name, text, default in shown if text and (everything or text != default)]


def describe_thresholds(run: Run) -> list[str]:
    """Return how many thresholds of a run were found in which way."""
    marks, where = run.thresholds.marks, "out of fold" if run.config.folds else "on val"
    sources = ((marks.count(mark), text) for mark, text in _THRESHOLD_SOURCES.items() if mark in marks)
    return [f"{count} {text.format(where=where)}" for count, text in sources]


def _images(config: RunConfig, backbone_size: int | None) -> str:
    size = config.size or backbone_size
    shape = "the backbone's size" if size is None else f"{size} × {size} pixels"
    if config.transform == "crop":
        return f"random crops with color jitter, resized to {shape}"
    if config.transform == "augment":
        flipped = ", flipped" if config.flip else ""
        return f"resized to {shape}, then cropped, turned, sheared, shifted{flipped} and changed in color at random"
    return f"resized to {shape}" + (", flipped at random" if config.flip else "")


def _attention(config: RunConfig) -> str:
    if config.head != "attention":
        return ""
    temperature = config.attention_temperature
    pooled = "the maximum" if temperature is None else f"the softmax at temperature {temperature:g}"
    return f", a share of {config.attention_weight:g} by {pooled}"


def _averaged(config: RunConfig) -> str:
    views = ["an image and its mirror image"] if config.average_flips else []
    views += [f"the sizes {' and '.join(map(str, config.average_sizes))} px"] if config.average_sizes else []
    return f"averaged over {', and over '.join(views)}" if views else ""


def _optimizer(config: RunConfig) -> str:
    sgd = f"SGD, momentum {config.momentum:g}" + (", Nesterov" if config.nesterov else "")
    names = {"adam": "Adam", "adamw": "AdamW", "newton": "Newton's method, all images in a step", "sgd": sgd}
    return names[config.optimizer] + (f", weight decay {config.weight_decay:g}" if config.weight_decay else "")


def methods_markdown() -> str:
    """Return the page of all methods in Markdown, as ``labelgap methods --markdown`` prints it."""
    entries = {name: describe_method(name) for name in methods()}
    options = {name: method_options(name) for name in entries}
    published = {name: {data: published_options(name, data) for data in _DATASETS} for name in entries}
    shown = {"methods": entries, "options": options, "published": published, "datasets": _DATASETS}
    return str(render_template("methods.md", **shown, join_numbers=join_numbers))
