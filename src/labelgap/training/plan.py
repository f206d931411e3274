"""``plan_training`` decides everything about a training before it starts: data, method, settings, selection, search."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, get_args

import numpy as np
import torch
from torch import Tensor

from labelgap.core.errors import InputError, UnknownNameError
from labelgap.core.system import format_bytes
from labelgap.core.text import pluralize
from labelgap.core.trust import class_path
from labelgap.data.dataset import Dataset
from labelgap.data.findings import ValidationHeldOut
from labelgap.data.identity import DataIdentity
from labelgap.data.images import FEATURES
from labelgap.data.split import hold_out_val, is_unsplit
from labelgap.labels import PRESENT
from labelgap.losses import Loss, describe_method, loss, loss_options, methods, published_options
from labelgap.models import Backbone, HeadName, check_backbone, has_average_pool, has_batch_norm, is_pretrained
from labelgap.models.batch_norm import check_batch_norm
from labelgap.models.inference import inference_precision
from labelgap.models.info import NO_WEIGHTS, OPEN_CLIP_PREFIX
from labelgap.models.weight_files import check_weight_file
from labelgap.training.auto import (
    SearchSpace,
    auto_methods,
    choose_method,
    head_settings,
    is_searched,
    only_prior,
    resolve_folds,
)
from labelgap.training.config import RunConfig
from labelgap.training.keywords import TrainingKeywords
from labelgap.training.loop.trace import parse_trace
from labelgap.training.network import check_feature_data
from labelgap.training.presets import LINEAR_DEFAULTS, LINEAR_PHASE, PRESETS, describe_missing_settings, preset
from labelgap.training.reviewed_labels import leave_out_ranked_absents
from labelgap.training.selection import Selection, check_rule, choose_selection
from labelgap.training.settings import KEYWORDS, PROTOCOLS, check_effect, check_settings
from labelgap.training.teacher import TAUGHT, check_unseen, open_teacher

FOLDS_REASON: Final = (
    "no val split: every image is trained on; {folds}-fold cross-validation chooses settings and thresholds"
)
FEW_IMAGES: Final = 2000  # fewer images without a split of their own are trained on by a linear head, on a GPU too
NETWORK_RECIPE: Final = {"epochs": 20, "batch_size": 16, "schedule": "cosine", "warmup": 0.5}
"""Of a pretrained network, with any optimizer. Evidence: docs/results/recipe.md."""
ATTENTION_EPOCHS: Final = 12
"""Of a network with the head "attention", which learns faster, and missing labels by heart after that."""
OPTIMIZER_RECIPES: Final[dict[str, dict[str, Any]]] = {
    "sgd": {"lr": 0.1, "backbone_lr": 0.01, "weight_decay": 1e-3},
    "adam": {"lr": 2e-4, "backbone_lr": 2e-5},
    "adamw": {"lr": 2e-4, "backbone_lr": 2e-5, "weight_decay": 0.05},
}
"""The head has ten times the rate of the backbone (Kim 2022)."""
PRETRAINED_BACKBONE: Final = "efficientnet-lite0"


@dataclass(frozen=True)
class TrainingRequest:
    """The arguments of ``fit``; None, or a default, where the choice is left open."""

    method: str | Loss = "auto"
    options: Mapping[str, Any] = field(default_factory=dict)
    preset: str | None = None
    backbone: str | Backbone | None = None
    weights: str | None = None
    protocol: str | None = None
    head: str = "auto"
    seed: int = 0
    select: str = "auto"
    trace: str | int = "auto"
    allow_micro_batch: bool = False
    teacher: str | None = None
    training: TrainingKeywords = field(default_factory=TrainingKeywords)

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> TrainingRequest:
        """Return the request of some arguments of ``fit``."""
        own = {name: value for name, value in arguments.items() if name in cls.__dataclass_fields__}
        training = {name: value for name, value in arguments.items() if name not in own}
        return cls(**own, training=training)  # type: ignore[arg-type]

    def given_settings(self) -> dict[str, Any]:
        """Return the settings of ``training`` that are not left open."""
        return {name: value for name, value in self.training.items() if value is not None and value != "auto"}

    def check(self) -> None:
        """Raise an error for a name or value that is wrong whatever the data are: before any image is read."""
        for kind, name, known in (
            ("preset", self.preset, PRESETS),
            ("protocol", self.protocol, PROTOCOLS),
            ("head", self.head, (*get_args(HeadName), "auto")),
        ):
            if name is not None and name not in known:
                raise UnknownNameError(kind, name, known)
        if self.method == "auto" and self.options:
            raise InputError("options belong to a method: name it with --method, or leave the options out.")
        if isinstance(self.method, str) and self.method != "auto":
            loss(self.method, **self.options)
        if isinstance(self.backbone, str) and self.backbone != FEATURES:
            check_backbone(self.backbone)
        if self.weights not in (None, NO_WEIGHTS) and not isinstance(self.backbone, Backbone):
            check_weight_file(self.weights)
        check_rule(self.select)
        parse_trace(self.trace, entries=1)
        check_settings(self.given_settings())

    def as_started(self, stored: RunConfig) -> TrainingRequest:
        """Return the request with the choices of a run that were made by its data, which have changed since."""
        same = isinstance(self.method, Loss) or self.method not in ("auto", stored.method)
        method = (self.method, self.options) if same else (stored.method, stored.options)
        select = stored.select if self.select == "auto" else self.select
        return replace(self, method=method[0], options=method[1], select=select)


@dataclass(frozen=True, eq=False)
class TrainingPlan:
    """What a training does."""

    data: Dataset  # with a val where a network is trained
    config: RunConfig  # every setting; those that are searched have the value from which the search starts
    device: torch.device
    selection: Selection  # the rule that selects the epoch, and the labels of val it uses
    loss: Loss  # of the method; not yet prepared
    search: SearchSpace | None  # the settings that val, or a cross-validation, chooses before the training
    backbone: Backbone | None  # the one that was given as an object
    notes: tuple[str, ...]  # what a user should know before the training
    identity: DataIdentity | None = None  # of the data with all labels, where the plan is run

    def lines(self) -> Iterator[str]:
        """Yield the plan in words: the method and why, the protocol, and the notes."""
        config = self.config
        reason = "" if config.why is None else f" ({config.why})"
        method = "auto" if self.search is not None and self.search.methods else config.method
        yield f"{method}{reason}; {config.protocol}, {config.backbone}, {pluralize(config.epochs, 'epoch')}"
        yield from self.notes
        if self.loss.initialized:
            yield f"{self.loss.name}: {self.loss.initialized}"
        if self.loss.state_bytes:
            stored = f"{format_bytes(self.loss.state_bytes)} for the training images{self.loss.state_form}"
            yield f"{self.loss.name} stores {stored}"

    def __str__(self) -> str:
        config, hidden = self.config, {"format", "data", "classes", "method", "why"}
        lines = [f"{'method':<19}{config.method}" + ("" if config.why is None else f": {config.why}")]
        for name, value in config.model_dump(mode="json", exclude=hidden, exclude_none=True).items():
            if isinstance(value, dict):
                value = " ".join(f"{key}={each}" for key, each in value.items()) or "none"
            lines.append(f"{name:<19}{value}")
        return "\n".join([*lines, *([] if self.search is None else [f"{'searched':<19}{self.search}"]), *self.notes])


def plan_training(
    data: Dataset, request: TrainingRequest, device: torch.device | None = None, stored: RunConfig | None = None
) -> TrainingPlan:
    """Decide everything that a request leaves open, or raise an error about what does not fit together."""
    request.check()
    if empty := [split.name for split in data.splits if not len(split)]:
        raise InputError(f"{data.name}: {empty[0]} has no images. Leave the split out, or give it some.")
    known = data.train.labels.values
    told = data.prior is not None and not data.prior.images.keys().isdisjoint(data.train.labels.images)
    if not told and not ((known == PRESENT).any() if request.method == "auto" else len(known)):
        raise InputError(
            f"{data.name}: no label of train is known to be present, there is nothing to learn from. Tag a few images, "
            "or say by --prior FILE what a model or other people say of them."
        )
    protocol, from_preset = _protocol(data, request, device, stored)
    data = data if protocol == "linear" else hold_out_val(data)
    data, left_out = without_reviewed_absents(data, request)
    default = default_linear_backbone(data) if protocol == "linear" and request.weights is None else data.backbone
    backbone = request.backbone or from_preset.get("backbone") or default
    own, name = (backbone, backbone.name) if isinstance(backbone, Backbone) else (None, backbone)
    check_feature_data(data, name, protocol)
    given = request.given_settings()
    of_network = {"weights": request.weights, **{name: given.get(name) for name in ("size", "average_flips")}}
    for option, value in of_network.items() if data.backbone == FEATURES else ():
        if value is not None and value is not False:
            raise InputError(f"{option}={value} is for a network, and {data.name} has feature vectors: leave it out.")
    folds = resolve_folds(data, given.get("folds"), protocol)
    if request.teacher is not None and stored is None:
        check_unseen(open_teacher(request.teacher, data.classes)[0], data, folds)
    pretrained = name == FEATURES or own is not None or is_pretrained(name, request.weights)
    recipe = protocol != "linear" and pretrained and not from_preset  # of a whole network
    head = _head(request, stored, backbone if recipe else None)
    searched = is_searched(data, protocol, folds, preset=request.preset, head=head)
    method, why, options, loss_fn = _method(data, request, protocol, searched, pretrained)
    batch_norm = protocol == "linear" or not pretrained or bool(from_preset) or "optimizer" in given
    network: Any = {"head": head, "batch_norm": batch_norm or has_batch_norm(backbone), "flip": data.flip}
    settings = resolve_settings(protocol, pretrained, from_preset, given, **network)
    if protocol == "linear":
        settings |= head_settings(settings, loss_fn, data, given, folds, searched=searched)
    if settings.get("accumulate", 1) > 1 and loss_fn.batch_dependent and not request.allow_micro_batch:
        raise InputError(
            f"the loss of '{method}' depends on the whole batch, and with accumulated gradients it would see a part at "
            "a time: use a larger --batch-size instead, or --allow-micro-batch if that is intended."
        )
    observed, truth = (None, None) if data.val is None else (data.val.labels, data.val.truth)
    rule = from_preset.get("select", "auto") if request.select == "auto" else request.select
    selection = choose_selection(observed, truth, rule)
    if selection.labels is None and settings.pop("stop_below", None) and "stop_below" in given:
        raise InputError(f"stop_below needs a val score, and here {selection.why}: leave it out, or give a val split.")
    if "precision" not in settings:
        settings["precision"] = _precision(protocol, backbone, device) if stored is None else stored.precision
    settings["reviewed_absents"] = "ignore" if left_out else given.get("reviewed_absents", "use")
    trace = parse_trace(request.trace, len(data.train) * len(data.classes))
    if request.trace == "auto" and stored is not None:
        trace = stored.trace
    elif request.trace == "auto" and (_is_cuda(device) or settings.get("optimizer") == "newton"):
        trace = "off"  # each step would be copied to the host; those of newton do not show in which order it learns
    recorded = stored.backbone_input if stored is not None and stored.backbone == backbone else None
    config = RunConfig.checked(
        **{each: getattr(request, each) for each in ("preset", "weights", "seed", "teacher")},
        head=head,
        data=dict(data.recipe),
        classes=data.classes,
        method=method,
        why=why,
        options=options,
        backbone=name,
        backbone_input=recorded if own is None else asdict(own.input_spec),
        protocol=protocol,
        select=selection.rule,
        trace=trace,
        flip=data.flip and protocol != "linear",
        **settings,
    )
    _check_head(config)
    check_batch_norm(config.batchnorm, backbone, pretrained=pretrained)
    search = _search_space(data, request, config, given) if searched or folds else None
    untraced = trace == "off" and request.trace == "auto" and _is_cuda(device)
    notes = tuple(_notes(data, config, selection, left_out, untraced))
    return TrainingPlan(data, config, device or torch.device("cpu"), selection, loss_fn, search, own, notes)


def _head(request: TrainingRequest, stored: RunConfig | None, backbone: str | Backbone | None) -> str:
    """Return the head; by default that of the run to resume, else what suits the backbone of a whole network."""
    if request.head != "auto":
        return request.head
    if stored is not None:
        return stored.head
    return "attention" if backbone is not None and has_average_pool(backbone) else "linear"


def describe_random_features(config: RunConfig) -> str | None:
    """Return what a user should know of a linear head on the features of random weights; None for any other run."""
    fixed = config.protocol == "linear" and config.backbone != FEATURES
    if not fixed or is_pretrained(config.backbone, config.weights):
        return None
    return (
        f"the weights of {config.backbone} are random, and --protocol linear does not train them: its features carry "
        "little information. Choose a pretrained backbone (`labelgap backbones`), --weights or --protocol end-to-end"
    )


def prepare_data(
    data: Dataset, request: TrainingRequest, device: torch.device, stored: RunConfig | None = None
) -> Dataset:
    """Return the data as the protocol of a request needs them: where a network is trained, with a val."""
    return data if _protocol(data, request, device, stored)[0] == "linear" else hold_out_val(data)


def _protocol(
    data: Dataset, request: TrainingRequest, device: torch.device | None, stored: RunConfig | None
) -> tuple[str, dict[str, Any]]:
    """Return the protocol, that of the data or, of many images on a GPU, linear-init, and settings of the preset."""
    protocol = request.protocol or (stored.protocol if stored and request.preset is None else None)
    from_preset, has_features = dict[str, Any](), data.backbone == FEATURES
    if request.preset is not None:
        method = request.method if isinstance(request.method, str) else _registered_name(request.method)
        asked = protocol or ("linear" if has_features else None)
        from_preset = preset(request.preset, method=method, dataset=data.recipe.get("name"), protocol=asked)
        ignored = ("backbone", "size", "transform") if has_features else ()
        from_preset = {name: value for name, value in from_preset.items() if name not in ignored}
    protocol = protocol or from_preset.get("protocol")
    if protocol is None:
        images = data.protocol == "linear" and not has_features
        images = images and not (is_unsplit(data) and len(data.train) < FEW_IMAGES)
        protocol = "linear-init" if images and _is_cuda(device) else data.protocol
    return protocol, from_preset


def without_reviewed_absents(data: Dataset, request: TrainingRequest) -> tuple[Dataset, int]:
    """Leave out the absents of ranked reviews where that is asked for, and by default for `auto` without val."""
    given = request.training.get("reviewed_absents")
    if given == "use" or (given != "ignore" and (request.method != "auto" or data.val is not None)):
        return data, 0
    return leave_out_ranked_absents(data)


def describe_left_out(count: int) -> str:
    """Return what a user should know of absents that are left out."""
    left = pluralize(count, "absent label")
    return f"left out of training: {left} that people decided on likely labels, which are the hardest ones"


def default_linear_backbone(data: Dataset) -> str:
    """Return the backbone for linear heads: that of the data if it is pretrained, else the default one."""
    return data.backbone if data.backbone == FEATURES or is_pretrained(data.backbone) else PRETRAINED_BACKBONE


def resolve_settings(
    protocol: str,
    pretrained: bool,
    from_preset: Mapping[str, Any],
    given: Mapping[str, Any],
    *,
    head: str = "linear",
    batch_norm: bool = True,
    flip: bool = True,
) -> dict[str, Any]:
    """Merge the user's settings over those of a preset, or over the defaults; refuse what does not fit together.

    Defaults: linear, 25 epochs at batch 16, as in the single-positive papers; end-to-end from pretrained weights, 20
    epochs (12 with the head "attention") at batch 16, a cosine schedule after half an epoch of warm-up, and SGD for a
    network with batch normalization (docs/results/recipe.md), AdamW for one without; linear-init, both. Images that may
    not be mirrored (``flip``), such as text, are not turned or cut either.
    """
    base = {name: from_preset[name] for name in KEYWORDS if name in from_preset}
    if not base and protocol == "linear":
        base = {**LINEAR_DEFAULTS, "backbone_lr": LINEAR_DEFAULTS["lr"]}
    elif not base:
        base = {"epochs": 10, "lr": 3e-3, "backbone_lr": 3e-3, "batch_size": 64}
        if pretrained:
            optimizer = given.get("optimizer") or ("sgd" if batch_norm else "adamw")
            rates = OPTIMIZER_RECIPES.get(optimizer, OPTIMIZER_RECIPES["sgd"])  # newton is refused below
            images = {"transform": "augment" if flip else "resize", "average_flips": flip}
            base = {**NETWORK_RECIPE, **rates, **images, "optimizer": optimizer}
            if head == "attention":
                base["epochs"] = ATTENTION_EPOCHS
        base |= LINEAR_PHASE if protocol == "linear-init" else {}
    settings = {**base, **given}
    check_effect(given, {**settings, "head": head}, protocol)
    if protocol == "linear":
        settings["backbone_lr"] = settings["lr"]
    elif "lr" in given and "backbone_lr" not in given:  # in proportion, without floating-point noise
        settings["backbone_lr"] = float(f"{base['backbone_lr'] / base['lr'] * given['lr']:.12g}")
    if settings.get("optimizer") != "sgd":
        return {name: value for name, value in settings.items() if name not in ("momentum", "nesterov")}
    settings.setdefault("momentum", 0.9)
    if settings.get("nesterov") and not settings["momentum"]:
        raise InputError("nesterov needs a momentum: leave it out, or give --momentum 0.9.")
    return settings


def _precision(protocol: str, backbone: str | Backbone, device: torch.device | None) -> str:
    """Return the default precision: 16 bits where the device computes with them."""
    if protocol == "linear":
        precision = inference_precision(backbone, device)
        return "bf16" if precision == "bfloat16" else precision
    bf16 = _is_cuda(device) and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bf16" if bf16 else "float32"


def _is_cuda(device: torch.device | None) -> bool:
    return device is not None and device.type == "cuda"


def _method(
    data: Dataset, request: TrainingRequest, protocol: str, searched: bool, pretrained: bool
) -> tuple[str, str | None, dict[str, Any], Loss]:
    """Return the method, the reason for it, its options and its loss, a new one of the class of a given object."""
    why: str | None = None
    given: Mapping[str, Any] = request.options
    if isinstance(request.method, Loss):
        if request.options:
            raise InputError("the options of a loss object are in the object: leave options out.")
        method, given = _registered_name(request.method), loss_options(request.method)
    elif request.method != "auto":
        method = request.method
    elif request.teacher is not None:
        (method, given), why = TAUGHT, "the teacher speaks of every unknown label"
    elif only_prior(data):
        (method, given), why = TAUGHT, "too few labels are known to judge the prior: it is all there is to learn from"
    else:
        method, why = choose_method(data.train.labels, protocol, pretrained=pretrained)
        if data.prior is not None and method == "gr":
            method = "gpr"  # the same where the prior is not used
        if searched:
            compared, judge = list(auto_methods(data)), "cross-validation" if data.val is None else "val"
            method, why = compared[0], f"{compared[0]} fits such labels; {judge} chooses its weight decay"
            if len(compared) > 1:
                why = f"{judge} chooses among {', '.join(compared)}"
    options = {name: _as_json(value) for name, value in given.items()}
    options = {**published_options(method, data.recipe.get("name")), **options}
    loss_fn = loss(method, **options)
    if loss_fn.reduction == "none":
        raise InputError("reduction='none' gives a matrix, and training needs one number: use 'mean' or 'sum'.")
    told = "--teacher" if request.teacher is not None else "--prior" if data.prior is not None else None
    if told and request.method != "auto" and not loss_fn.takes_soft:
        raise InputError(
            f"{method} takes no soft labels: methods whose cost is a mixture do (an, em, role …), and gpr. Name one of "
            f"these, or leave {told} out."
        )
    if request.teacher is not None and (data.prior is not None or data.train.labels.complete):
        why = "it would replace the prior" if data.prior is not None else "no label of train is unknown"
        raise InputError(f"a teacher is of no use here: {why}. Leave --teacher out.")
    found = loss_fn.initialize_from(data.train.labels, None if data.val is None else data.val.labels)
    return method, why, {**options, **found}, loss_fn


def _registered_name(loss_fn: Loss) -> str:
    known = methods()
    for name in (loss_fn.name, *known):
        if name in known and describe_method(name).loss_class is type(loss_fn):
            return name
    return class_path(type(loss_fn))


def _as_json(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray | Tensor):
        return value.tolist()
    return [_as_json(each) for each in value] if isinstance(value, list | tuple) else value


def _search_space(
    data: Dataset, request: TrainingRequest, config: RunConfig, given: Mapping[str, Any]
) -> SearchSpace | None:
    """Return what is searched before the training; folds are trained for their scores in any case."""
    space = SearchSpace()
    if request.preset is None:
        rate = "lr" not in given and config.optimizer != "newton"
        taught = request.teacher is not None or only_prior(data)
        compared = auto_methods(data) if request.method == "auto" and not taught else ()
        space = SearchSpace(compared, "weight_decay" not in given, rate)
    return space if config.folds or space != SearchSpace() else None


def _notes(data: Dataset, config: RunConfig, selection: Selection, left_out: int, untraced: bool) -> Iterator[str]:
    if left_out:
        yield describe_left_out(left_out)
    if untrained := describe_random_features(config):
        yield untrained
    if config.preset and (missing := describe_missing_settings(config.preset, data.recipe.get("name"))):
        yield missing
    yield from (str(finding) for finding in data.findings if isinstance(finding, ValidationHeldOut))
    yield selection.why if not config.folds else FOLDS_REASON.format(folds=config.folds)
    if untraced:
        yield "single labels are not traced on a GPU; --trace all does"


def _check_head(config: RunConfig) -> None:
    """Refuse a head without what it needs; training would not start from "zero-shot"."""
    zero_shot, searched = config.head == "zero-shot", config.folds or config.optimizer == "newton"
    for refused, reason in (
        (
            config.head in ("attention", "boostlu") and config.protocol == "linear",
            "needs the feature maps of an image, not one vector: use --protocol end-to-end",
        ),
        (
            zero_shot and not config.backbone.startswith(OPEN_CLIP_PREFIX),
            f"needs a backbone with a text tower ({OPEN_CLIP_PREFIX}…)",
        ),
        (zero_shot and config.protocol == "end-to-end", "needs fixed features: --protocol linear or linear-init"),
        (
            zero_shot and searched,
            "is a start, and without a val split settings are chosen by cross-validation, with an optimizer that has "
            "no start: give a val split, or --folds 0 --optimizer adam",
        ),
    ):
        if refused:
            raise InputError(f"the head '{config.head}' {reason}. --head linear works everywhere.")
