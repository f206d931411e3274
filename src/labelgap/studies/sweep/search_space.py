"""What a sweep searches, and what all its trials share: a trial is a request of ``fit`` with other values."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

import torch

from labelgap.core.errors import InputError, UnknownNameError
from labelgap.core.text import parse_scalar
from labelgap.data.dataset import Dataset
from labelgap.data.identity import DataIdentity
from labelgap.losses import Loss, loss, method_options
from labelgap.models import Backbone
from labelgap.studies.compare.settings import KIM_RATES, OPTION_GRIDS, refuse_prior
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
from labelgap.training.settings import KEYWORDS

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

Value = bool | int | float | str
Search = Mapping[str, str | Sequence[Value]]

COLE_RATES: Final = (1e-2, 1e-3, 1e-4, 1e-5)  # Cole et al. (CVPR 2021): for every method whose paper states no other
COLE_BATCHES: Final = (8, 16)
_WEAKEST: Final = 5e-4
_DECADES: Final = 1e4
"""The range of the weight decay, relative to the features: it has the penalties that ``candidates`` compares inside."""
_FIXED: Final = ("folds", "precision", "reviewed_absents")
"""Settings that are not searched: they do not change the model, or what val is."""
_NOT_SHARED: Final = {"format", "data", "classes", "why", "trace", "precision", "weights", "backbone_input"}
"""Of a configuration: what differs between machines or is compared by itself."""
_STEPS: Final = {"optimizer", "lr", "batch_size", "momentum", "nesterov"}
"""Settings that ask for another optimizer than "newton"."""
_OF_DATA: Final = ("folds", "reviewed_absents", "size", "average_flips", "precision")
"""Settings of what is learned from, not of the learning."""
_SYNTAX: Final = "write 1e-5..1e-2:log (a range, logarithmic), 0..1 (a range) or 8,16,32 (values)"


@dataclass(frozen=True)
class Parameter:
    """A setting of training or an option of the method that is searched."""

    name: str
    choices: tuple[Value, ...] = ()  # its values; empty for a range
    low: int | float = 0
    high: int | float = 0  # included. The range is of whole numbers where both ends are
    log: bool = False  # whether values are drawn from the range by their logarithm

    @property
    def integer(self) -> bool:
        """Whether it is a range of whole numbers."""
        return not self.choices and isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def ends(self) -> tuple[Value, ...]:
        """The values that stand for all: the choices, or both ends."""
        return self.choices or (self.low, self.high)

    @property
    def values(self) -> Sequence[Value] | None:
        """All values; None for a range that is not of whole numbers."""
        return self.choices or (range(int(self.low), int(self.high) + 1) if self.integer else None)

    @property
    def size(self) -> float:
        """The number of values, which may be infinite."""
        return math.inf if self.values is None else len(self.values)

    @property
    def distribution(self) -> BaseDistribution:
        """The parameter as optuna takes it."""
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        if self.choices:
            return CategoricalDistribution(self.choices)
        if self.integer:
            return IntDistribution(int(self.low), int(self.high), log=self.log)
        return FloatDistribution(float(self.low), float(self.high), log=self.log)

    def __contains__(self, value: object) -> bool:
        if self.choices:
            return value in self.choices
        return isinstance(value, int | float) and self.low <= value <= self.high

    def __str__(self) -> str:
        text = ",".join(map(str, self.choices)) or f"{self.low}..{self.high}{':log' if self.log else ''}"
        return f"{self.name}={text}"


def paper_space(method: str, head_factor: float = 1.0) -> tuple[Parameter, ...]:
    """Return the search space of a method's paper; of a network, with its head's rate relative to the backbone's."""
    kim = method.startswith("ll-")
    scaled = tuple(float(f"{rate * head_factor:.12g}") for rate in (KIM_RATES if kim else COLE_RATES))
    batches = () if kim else (Parameter("batch_size", COLE_BATCHES),)
    options = (Parameter(name, values) for name, values in OPTION_GRIDS.get(method, {}).items())
    return (Parameter("lr", scaled), *batches, *options)


def head_space(method: str, unit: float, *, newton: bool) -> tuple[Parameter, ...]:
    """Return the search space of a linear head; ``unit`` is the number of features for each label of train."""
    low = float(f"{_WEAKEST * unit:.1g}")
    decay = Parameter("weight_decay", (), low, float(f"{_DECADES * low:.1g}"), log=True)
    paper = [each for each in paper_space(method) if not (newton and each.name in ("lr", "batch_size"))]
    return (*paper, decay, Parameter("standardize", (True, False)))


def search_space(
    given: Sequence[Parameter], fixed: Collection[str], default: Sequence[Parameter]
) -> tuple[Parameter, ...]:
    """Return the default space, with the user's ranges instead of its own, without the names that the user fixed."""
    names = {*(each.name for each in given), *fixed}
    space = [*given, *(each for each in default if each.name not in names)]
    if math.prod(each.size for each in space) == 1:
        raise InputError(
            f"nothing is left to search: {', '.join(sorted(names))} have one value each. Leave one of them out, or "
            "give its range, e.g. --search lr=1e-5..1e-2:log"
        )
    return tuple(space)


def parse_search(method: str, search: Search, fixed: Mapping[str, Any]) -> list[Parameter]:
    """Parse what a user searches; ``InputError`` where a name or a range is wrong, or ``fixed`` by the user too."""
    own = [parse_parameter(name, values) for name, values in search.items()]
    known = [*method_options(method), *(each for each in KEYWORDS if each not in _FIXED)]
    for parameter in own:
        name = parameter.name
        if name not in known:
            raise UnknownNameError(f"option of '{method}' or setting of training called", name, known)
        if name in fixed:
            raise InputError(f"{name} is given as {fixed[name]} and searched as well: leave one of them out.")
        if name in method_options(method):
            for value in parameter.ends:
                loss(method, **{name: value})
    return own


def parse_parameter(name: str, values: str | Sequence[Value]) -> Parameter:
    """Parse a range, such as "1e-5..1e-2:log", or a list of values."""
    where = f"--search {name}={values if isinstance(values, str) else list(values)}"
    text, colon, scale = values.partition(":") if isinstance(values, str) else ("", "", "")
    low, dots, high = text.partition("..")
    if not dots and not colon:
        parts = [parse_scalar(part.strip()) for part in text.split(",") if part.strip()]
        choices = parts if isinstance(values, str) else list(values)
        if not choices:
            raise InputError(f"{where} is empty: {_SYNTAX}.")
        if any(not isinstance(each, bool | int | float | str) for each in choices):
            raise InputError(f"{where}: values are numbers, texts, true or false.")
        if any(isinstance(each, float) and not math.isfinite(each) for each in choices):
            raise InputError(f"{where}: numbers must be finite.")
        return Parameter(name, tuple(dict.fromkeys(choices)))
    first, last = parse_scalar(low), parse_scalar(high)
    if isinstance(first, str | bool) or isinstance(last, str | bool) or (colon and scale != "log"):
        raise InputError(f"{where}: {_SYNTAX}.")
    if not (math.isfinite(first) and math.isfinite(last)) or first >= last:
        raise InputError(f"{where} is empty: the first number must be the smaller one.")
    if scale == "log" and first <= 0:
        raise InputError(f"{where}: a logarithmic range begins above 0.")
    return Parameter(name, (), first, last, scale == "log")


@dataclass(frozen=True)
class SweepPlan:
    """What all trials share."""

    data: Dataset  # with train and val alone: test is measured once, for the best trial
    request: TrainingRequest  # what is fixed
    config: RunConfig  # of a trial with the first value of every parameter
    selection: Selection  # how epochs and trials are selected
    space: tuple[Parameter, ...]
    first: Mapping[str, Value]  # the values that ``fit`` would use, as far as the space has them

    @property
    def identity(self) -> dict[str, str]:
        """What the sweep is of, by name: digests that processes on other machines compare."""
        searched = {parameter.name for parameter in self.space}
        left_out = {*_NOT_SHARED, *searched, "options", "method", "backbone_lr"}
        settings = self.config.model_dump(mode="json", exclude=left_out)
        settings["weights"] = self.config.weights and PurePath(self.config.weights).name
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
    if "trace" in settings:
        raise InputError("trials are not traced: train the best settings with trace afterwards.")
    given = {name: value for name, value in settings.items() if value is not None}
    return TrainingRequest.of({**given, "method": method, "trace": "off"})


def with_values(request: TrainingRequest, values: Mapping[str, Any]) -> TrainingRequest:
    """Return a request with the values of a trial: options of its method, and settings of training."""
    options = {name: value for name, value in values.items() if name in method_options(str(request.method))}
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
    if usual.protocol == "linear":
        refuse_prior(data)
    if usual.folds:
        selection = replace(choose_selection(data.train.labels, None), why=FOLDS_REASON.format(folds=usual.folds))
    if selection.labels is None:
        raise InputError(
            f"a sweep selects settings by their score, and here {selection.why}. Give a val split; without one linear "
            f"heads are cross-validated on at least {2 * FOLDS} images with known labels, unless --folds is 0."
        )
    request, default = _default_space(data, request, usual, loss_fn, given)
    space = search_space(own, fixed, default)
    config = plan_training(data, with_values(request, {each.name: each.ends[0] for each in space}), device).config
    first: dict[str, Any] = {}
    with suppress(InputError):  # an option that must be given
        usual = plan_training(data, request, device).config
        values = {**usual.model_dump(), **method_options(usual.method), **usual.options}
        first = {each.name: values[each.name] for each in space if values.get(each.name) in each}
    return SweepPlan(data, request, config, selection, space, first)


def _default_space(
    data: Dataset, request: TrainingRequest, usual: RunConfig, loss_fn: Loss, search: Collection[str]
) -> tuple[TrainingRequest, tuple[Parameter, ...]]:
    """Return what is searched by default; and the request, with the optimizer "newton" where a head can have it."""
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


def _fixed(request: TrainingRequest) -> dict[str, Any]:
    return {**request.given_settings(), **request.options}


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]
