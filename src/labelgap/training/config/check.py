"""Checks of a request that need no data: a mistyped name does not cost a read of the images."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, get_args

from labelgap.core.errors import InputError, UnknownNameError
from labelgap.data.feature_vectors import FEATURES
from labelgap.losses import Loss, loss
from labelgap.models import HeadName, check_backbone
from labelgap.models.weight_files import NO_WEIGHTS, check_weight_file
from labelgap.training.config.describe import PROTOCOLS
from labelgap.training.config.presets import PRESETS
from labelgap.training.config.request import TrainingRequest
from labelgap.training.config.schema import RunConfig
from labelgap.training.loop.trace import parse_trace
from labelgap.training.selection import check_rule

_PHASE: Final = {"epochs": 1, "lr": 1.0, "batch_size": 1}


def check_request(request: TrainingRequest) -> None:
    """Raise an error for a name or value of a request that is wrong whatever the data are; nothing is built.

    ``resolve_config`` checks how the settings, the data and the device fit together.
    """
    if request.method == "auto" and request.options:
        raise InputError("options belong to a method: name it with --method, or leave the options out.")
    if isinstance(request.method, str) and request.method != "auto":
        loss(request.method, **request.options)
    for kind, name, known in (
        ("preset", request.preset, PRESETS),
        ("protocol", request.protocol, PROTOCOLS),
        ("head", request.head, get_args(HeadName)),
    ):
        if name is not None and name not in known:
            raise UnknownNameError(kind, name, known)
    if isinstance(request.backbone, str) and request.backbone != FEATURES:
        check_backbone(request.backbone)
    if request.weights not in (None, NO_WEIGHTS):
        check_weight_file(request.weights)
    check_rule(request.select)
    parse_trace(request.trace, entries=1)
    _check_settings(request)


def _check_settings(request: TrainingRequest) -> None:
    """Check the value of every setting on its own, in a configuration that is otherwise valid."""
    given = request.given_settings()
    phase = {name: given.pop(f"linear_{name}", value) for name, value in _PHASE.items()}
    if (precision := given.get("precision")) == "auto":
        del given["precision"]
    elif precision == "float16":
        raise InputError("precision=float16 is what some CPUs compute features with by themselves: use auto.")
    base: dict[str, Any] = {**_PHASE, "backbone_lr": 1.0, "linear": phase, "protocol": "linear-init", **given}
    names = {"data": {}, "classes": ("class",), "method": "an", "backbone": "backbone", "select": "last"}
    RunConfig.checked(**names, **base, flip=False, seed=request.seed, trace="off")


def as_started(request: TrainingRequest, stored: RunConfig) -> TrainingRequest:
    """Return a request with the settings of a run that were chosen by its data."""
    same = isinstance(request.method, Loss) or request.method not in ("auto", stored.method)
    method = (request.method, request.options) if same else (stored.method, stored.options)
    select = stored.select if request.select == "auto" else request.select
    return replace(request, method=method[0], options=method[1], select=select)
