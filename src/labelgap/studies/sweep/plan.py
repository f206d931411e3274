"""What all trials of a sweep share, and the settings of each: a trial is a request of ``fit`` with other values."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import PurePath
from typing import Any, Final

import torch

from labelgap.core.errors import InputError
from labelgap.data.dataset import Dataset
from labelgap.data.identity import DataIdentity
from labelgap.losses import Loss, method_options
from labelgap.models import Backbone
from labelgap.studies.sweep.search_space import (
    Parameter,
    Value,
    head_space,
    is_option,
    paper_space,
    parse_parameter,
    parse_search,
    search_space,
)
from labelgap.training.auto import FOLDS, supports_newton
from labelgap.training.config import RunConfig
from labelgap.training.network import build_classifier, feature_width
from labelgap.training.plan import (
    FOLDS_REASON,
    TrainingRequest,
    describe_left_out,
    plan_training,
    prepare_data,
    without_reviewed_absents,
)
from labelgap.training.selection import Selection, choose_selection

_NOT_SHARED: Final = {"format", "data", "classes", "why", "trace", "precision", "weights", "backbone_input"}
"""Of a configuration: what differs between machines or is compared by itself."""

_STEPS: Final = {"optimizer", "lr", "batch_size", "momentum", "nesterov"}
"""Settings that ask for another optimizer than "newton"."""

_OF_DATA: Final = ("folds", "reviewed_absents", "size", "average_flips", "precision")
"""Settings of what is learned from, not of the learning."""

Search = Mapping[str, str | Sequence[Value]]


@dataclass(frozen=True)
class SweepPlan:
    """What all trials share.

    Attributes:
        data: with train and val alone: test is measured once, for the best trial.
        request: what is fixed.
        config: of a trial with the first value of every parameter.
        selection: how epochs and trials are selected.
        space: what is searched.
        first: the values that ``fit`` would use, as far as the space has them.
    """

    data: Dataset
    request: TrainingRequest
    config: RunConfig
    selection: Selection
    space: tuple[Parameter, ...]
    first: Mapping[str, Value]

    @property
    def identity(self) -> dict[str, str]:
        """What the sweep is of, by name: digests that processes on other machines compare."""
        left_out = {*_NOT_SHARED, *(parameter.name for parameter in self.space), "options", "method", "backbone_lr"}
        settings = self.config.model_dump(mode="json", exclude=left_out)
        settings["weights"] = self.config.weights and PurePath(self.config.weights).name
        searched = {parameter.name for parameter in self.space}
        options = {name: value for name, value in self.config.options.items() if name not in searched}
        return {
            "method": self.config.method,
            "data": _digest([DataIdentity.of(self.data).digest(), self.data.classes]),
            "search space": "; ".join(map(str, self.space)),
            "settings": json.dumps({**settings, "options": options}, sort_keys=True),
        }

    @property
    def study_name(self) -> str:
        """The name of the study in a storage: another for every method, data set, search space and setting."""
        return f"labelgap {self.config.method} {_digest(self.identity)}"

    @property
    def auto_request(self) -> TrainingRequest:
        """What ``fit`` is asked for where nobody gives a method or settings: the same network, seed and folds alone."""
        given, config = self.request, self.config
        kept: Any = {name: value for name, value in given.training.items() if name in _OF_DATA}
        return TrainingRequest(
            backbone=given.backbone or config.backbone,
            weights=given.weights,
            protocol=config.protocol,
            head=given.head,
            seed=given.seed,
            select="auto" if config.folds else config.select,
            training=kept,
        )

    def resolve(self, values: Mapping[str, Any], device: torch.device) -> RunConfig:
        """Return the configuration of a trial; ``InputError`` where its values do not fit together."""
        return plan_training(self.data, with_values(self.request, values), device).config


def make_request(method: str, settings: Mapping[str, Any]) -> TrainingRequest:
    """Return the arguments of ``fit``, as a caller gave them, as a request; trials are not traced."""
    own = {item.name for item in fields(TrainingRequest)} - {"method", "training"}
    if "trace" in settings:
        raise InputError("trials are not traced: train the best settings with trace afterwards.")
    training: Any = {name: value for name, value in settings.items() if name not in own}
    given = {name: value for name, value in settings.items() if name in own and value is not None}
    return TrainingRequest(method, **given, trace="off", training=training)


def with_values(request: TrainingRequest, values: Mapping[str, Any]) -> TrainingRequest:
    """Return a request with the values of a trial: options of its method, and settings of training."""
    options = {name: value for name, value in values.items() if is_option(name, str(request.method))}
    training: Any = {**request.training, **{name: value for name, value in values.items() if name not in options}}
    return replace(request, options={**request.options, **options}, training=training)


def check_sweep(request: TrainingRequest, search: Search, trials: int) -> None:
    """Raise an error for a name or value that is wrong whatever the data are."""
    if trials < 1:
        raise InputError(f"--trials {trials}: at least one is needed.")
    request.check()
    if request.method == "auto":
        for name, values in search.items():
            parse_parameter(name, values)
        return
    own = parse_search(str(request.method), search, _fixed(request))
    for number in range(2):
        with_values(request, {each.name: each.ends[-number] for each in own}).check()


def plan_sweep(
    data: Dataset, request: TrainingRequest, search: Search, device: torch.device, log: Callable[[str], None]
) -> SweepPlan:
    """Resolve what a request leaves open; ``InputError`` where nothing can be scored."""
    data, left_out = without_reviewed_absents(prepare_data(data, request, device), request)
    if left_out:
        log(describe_left_out(left_out))
        request = replace(request, training={**request.training, "reviewed_absents": "ignore"})
    data = replace(data, test=None)
    if request.method == "auto":
        config = plan_training(data, request, device).config
        log(f"{config.method}: {'the first method that auto compares on such labels' if config.folds else config.why}")
        request = replace(request, method=config.method)
    fixed = _fixed(request)
    own = parse_search(str(request.method), search, fixed)
    given = {each.name: each.ends[0] for each in own}
    plan = plan_training(data, with_values(request, given), device)
    usual, selection, loss_fn = plan.config, plan.selection, plan.loss
    if usual.folds:
        selection = replace(choose_selection(data.train.labels, None), why=FOLDS_REASON.format(folds=usual.folds))
    if selection.labels is None:
        raise InputError(
            f"a sweep selects settings by their score, and here {selection.why}. Give a val split; without one linear "
            f"heads are cross-validated on at least {2 * FOLDS} images with known labels, unless --folds is 0."
        )
    request, default = _default_space(data, request, usual, loss_fn, given)
    space = search_space(own, fixed, default)
    values = {each.name: each.ends[0] for each in space}
    config = plan_training(data, with_values(request, values), device).config
    return SweepPlan(data, request, config, selection, space, _usual_values(data, request, space, device))


def _default_space(
    data: Dataset, request: TrainingRequest, usual: RunConfig, loss_fn: Loss, search: Collection[str]
) -> tuple[TrainingRequest, tuple[Parameter, ...]]:
    """Return what is searched by default; and the request, with the optimizer "newton" where a head can have it.

    Args:
        data: the data set.
        request: what is fixed.
        usual: a configuration of the request.
        loss_fn: of it.
        search: the names that the user searches.
    """
    if usual.protocol != "linear":
        return request, paper_space(usual.method, usual.lr / usual.backbone_lr)
    if usual.head != "linear" or request.preset is not None:
        return request, paper_space(usual.method)
    labels = len(data.train) * len(data.classes)
    left_open = not _STEPS & {*search, *request.given_settings()}
    newton = (left_open and supports_newton(loss_fn, labels)) or request.training.get("optimizer") == "newton"
    if newton:
        request = replace(request, training={**request.training, "optimizer": "newton"})
    backbone = request.backbone if isinstance(request.backbone, Backbone) else None
    network = build_classifier(usual, feature_width(data), pretrained=False, backbone=backbone)
    return request, head_space(usual.method, network.backbone.num_features / labels, newton=newton)


def _usual_values(
    data: Dataset, request: TrainingRequest, space: Sequence[Parameter], device: torch.device
) -> dict[str, Value]:
    """Return the values that ``fit`` would use without a search, as far as the space has them."""
    try:
        config = plan_training(data, request, device).config
    except InputError:  # an option that must be given
        return {}
    usual = {**method_options(config.method), **config.options}
    found: dict[str, Any] = {each.name: usual.get(each.name, getattr(config, each.name, None)) for each in space}
    return {each.name: found[each.name] for each in space if found[each.name] in each}


def _fixed(request: TrainingRequest) -> dict[str, Any]:
    """Return the settings and options that the user gave."""
    return {**request.given_settings(), **request.options}


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]
