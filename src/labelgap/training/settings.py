"""From what a person asked for to what a run does: everything left open is decided here, before anything is written."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import numpy as np
from torch import Tensor

from labelgap.core.errors import InputError, RunError, UnknownNameError
from labelgap.data.dataset import Dataset
from labelgap.data.features import FEATURES
from labelgap.labels.codes import PRESENT
from labelgap.models import UNTRAINED, HeadName, describe
from labelgap.objectives import Objective, objective, published
from labelgap.objectives.cole2021_expected import ExpectsPositives
from labelgap.training.auto import choose_method
from labelgap.training.config import FILE, RunConfig, read_config
from labelgap.training.defaults import defaults_for
from labelgap.training.selection import Selection, choose_selection
from labelgap.training.traces import parse_trace
from labelgap.training.vectors import check_vectors

__all__ = ["Wishes", "decide", "open_folder"]

ENOUGH = 100
PROTOCOLS = ("linear", "end-to-end")


@dataclass(frozen=True)
class Wishes:
    """What was asked for; None where the choice is left open. See ``fit``."""

    method: str = "auto"
    options: Mapping[str, Any] = field(default_factory=dict)
    backbone: str | None = None
    protocol: str | None = None
    head: str = "linear"
    epochs: int | None = None
    lr: float | None = None
    backbone_lr: float | None = None
    batch_size: int | None = None
    seed: int = 0
    select: str = "auto"
    trace: str | int = "auto"


def decide(data: Dataset, wishes: Wishes) -> tuple[RunConfig, Selection, Objective]:
    """Decide everything that was left open, or say what of it cannot be."""
    _check_labels(data)
    protocol = wishes.protocol or data.protocol
    if protocol not in PROTOCOLS:
        raise InputError(f"protocol '{protocol}': it is {' or '.join(PROTOCOLS)}.")
    _check_head(wishes.head, protocol)
    backbone = wishes.backbone or data.backbone
    check_vectors(data, backbone, protocol)
    method, why = _method(data, wishes, protocol)
    given = {name: _plain(value) for name, value in wishes.options.items()}
    options = {**published(method, data.recipe.get("name")), **given}
    made = objective(method, **options)
    if getattr(made, "reduction", "mean") == "none":
        raise InputError("reduction='none' gives a matrix, and training needs one number: take 'mean' or 'sum'.")
    options |= _expected_positives(made, data)
    observed, truth = (None, None) if data.val is None else (data.val.labels, data.val.truth)
    selection = choose_selection(observed, truth, wishes.select)
    defaults = defaults_for(protocol, _has_weights(backbone))._asdict()
    asked = {name: getattr(wishes, name) for name in defaults}
    config = RunConfig.checked(
        data=dict(data.recipe),
        classes=data.classes,
        method=method,
        why=why,
        options=options,
        backbone=backbone,
        protocol=protocol,
        head=wishes.head,
        **{name: defaults[name] if value is None else value for name, value in asked.items()},
        flip=data.flip and protocol == "end-to-end",
        seed=wishes.seed,
        select=selection.rule,
        trace=parse_trace(wishes.trace, len(data.train) * len(data.classes)),
    )
    return config, selection, made


def open_folder(folder: Path, config: RunConfig, resume: bool) -> None:
    """Make the run's folder, or check that the run in it is the one to go on with."""
    exists = (folder / FILE).exists()
    if exists and not resume:
        raise RunError(f"{folder} holds a run already: go on with it by --resume, or choose another --out.")
    if resume and not exists:
        raise RunError(f"{folder} holds no run to resume.")
    if exists and (stored := read_config(folder).model_copy(update={"why": config.why})) != config:
        different = [name for name in type(config).model_fields if getattr(stored, name) != getattr(config, name)]
        raise RunError(
            f"{folder} was started with another {different[0]} ({getattr(stored, different[0])!r}, now "
            f"{getattr(config, different[0])!r}): resume it as it was, or choose another --out."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{folder} cannot be made ({error.strerror}): choose another --out.") from None
    if not os.access(folder, os.W_OK):
        raise RunError(f"{folder} cannot be written to: choose another --out.")


def _check_labels(data: Dataset) -> None:
    for split in data.splits:
        if not len(split):
            raise InputError(f"{data.name}: {split.name} has no images. Leave the split out, or give it some.")
    if not len(data.train.labels.values):
        raise InputError(f"{data.name}: no label of train is known, there is nothing to learn from. Tag a few images.")


def _plain(value: Any) -> Any:
    """Return an option as ``config.json`` holds it, so that it comes back from there as it was."""
    if isinstance(value, np.generic | np.ndarray | Tensor):
        return value.tolist()
    return list(value) if isinstance(value, tuple) else value


def _check_head(head: str, protocol: str) -> None:
    if head not in get_args(HeadName):
        raise UnknownNameError("head", head, get_args(HeadName))
    if head != "linear" and protocol == "linear":
        raise InputError(
            f"the head '{head}' looks at every place of an image, and the linear protocol keeps one vector per image: "
            "train with --protocol end-to-end, or with --head linear."
        )


def _method(data: Dataset, wishes: Wishes, protocol: str) -> tuple[str, str]:
    if wishes.method != "auto":
        return wishes.method, "as asked"
    if wishes.options:
        raise InputError("options belong to a method: name it with --method, or leave the options out.")
    return choose_method(data.train.labels, protocol)


def _expected_positives(made: Objective, data: Dataset) -> dict[str, Any]:
    """Give a method that must know the number of positives their mean over fully known val images, if enough are."""
    if not isinstance(made, ExpectsPositives) or made.expected_positives is not None or data.val is None:
        return {}
    labels = data.val.labels
    full = np.diff(labels.starts) == len(labels.classes)
    if full.sum() < ENOUGH:
        return {}
    present = np.bincount(labels.rows[labels.values == PRESENT], minlength=len(labels))
    mean = round(float(present[full].mean()), 4)
    made.expected_positives = mean
    return {"expected_positives": mean}


def _has_weights(backbone: str) -> bool:
    sources = {row.name: row.source for row in describe()}
    if backbone == FEATURES:
        return True
    if backbone not in sources:
        raise UnknownNameError("backbone", backbone, sources, "`labelgap backbones` lists them.")
    return sources[backbone] != UNTRAINED.source
