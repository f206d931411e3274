"""``config.json``: the effective settings of a run, in a frozen model that refuses unknown keys."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    StringConstraints,
    ValidationError,
    model_validator,
)

from labelgap.core.errors import InputError, RunError, suggest_path
from labelgap.core.stored import read_json, validation_problem
from labelgap.core.trust import write_signed_json
from labelgap.data.readers.recipe import StoredRecipe
from labelgap.models import BatchNormMode, HeadName, InputSpec
from labelgap.models.inference import Precision

FORMAT: Final = 1
CONFIG_FILE: Final = "config.json"
INITIAL_WEIGHTS: Final = "backbone.safetensors"
"""The initial weights of a backbone that was given as an object, in the run folder."""


MAX_CLASSES: Final = 200_000
MAX_SIZE: Final = 4096
"""Side of the images in pixels."""
MAX_TEXT: Final = 4096


def _check_unique(classes: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(classes)) < len(classes):
        raise ValueError("a class is named twice")
    return classes


Text = Annotated[str, StringConstraints(max_length=MAX_TEXT)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=500)]
Classes = Annotated[tuple[Text, ...], Field(min_length=1, max_length=MAX_CLASSES), AfterValidator(_check_unique)]
Options = Annotated[dict[Name, JsonValue], Field(max_length=1000)]
Epochs = Annotated[int, Field(ge=1, le=10**9)]
BatchSize = Annotated[int, Field(ge=1, le=10**9)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Size = Annotated[int, Field(ge=1, le=MAX_SIZE)]
PerChannel = Annotated[tuple[Annotated[float, Field(allow_inf_nan=False)], ...], Field(min_length=1, max_length=64)]


class BackboneInput(BaseModel):
    """The ``InputSpec`` of a backbone that was given as an object."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    size: Size
    mean: PerChannel
    std: PerChannel
    channels: int = Field(ge=1, le=64)
    interpolation: Literal["bilinear", "bicubic"]

    @model_validator(mode="after")
    def _check(self) -> BackboneInput:
        self.input_spec()
        return self

    def input_spec(self) -> InputSpec:
        """Return it as the backbone has it."""
        return InputSpec(**self.model_dump())


class LinearPhase(BaseModel):
    """The first phase of linear-init: a head on fixed features, trained by Adam at a constant rate."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    epochs: Epochs
    lr: Rate
    batch_size: BatchSize


class RunConfig(BaseModel):
    """The effective settings of a run, as they are in ``config.json``.

    Attributes:
        format: version of the run folder.
        data: how the data set was loaded: name, path, options, steps.
        classes: names of the classes, in order.
        method: name of the loss, or the import path of its class (``package.module:Class``); "auto" is resolved.
        why: the reason why "auto" chose the method; None where the user named it.
        options: of the loss.
        preset: the paper whose settings were asked for.
        backbone: name of the backbone, or the import path of its class.
        backbone_input: the input specification of a backbone that was given as an object.
        weights: file of the initial weights of the backbone; "none" for random ones; None for its usual ones. For an
            object it is ``backbone.safetensors`` in the run folder.
        size: side of the images in pixels; None for the backbone's own.
        protocol: "linear", "end-to-end" or "linear-init".
        linear: the first phase of linear-init; the other settings are those of the second.
        head: "linear", "boostlu", or "zero-shot" for a linear one that starts from the class names.
        epochs: number of epochs.
        lr: learning rate of the head.
        backbone_lr: learning rate of the backbone, where it is trained.
        batch_size: images per batch, over all processes.
        optimizer: "adam", "adamw", "sgd", or "newton" for a linear head, with ``momentum``, ``nesterov`` and
            ``weight_decay``.
        standardize: whether a linear head is trained on standardized features.
        reviewed_absents: whether absents that people decided on likely labels are used, or left out of training.
        folds: of the cross-validation that chose the settings and scored the training images; 0 for none.
        schedule: of the learning rates: "constant", or "cosine" to zero, step by step.
        warmup: epochs of a linear warm-up.
        clip: largest norm of the gradient; None for no clipping.
        ema: decay of the moving average of the weights that is scored and saved; None for no average.
        accumulate: batches per optimizer step.
        checkpoint_minutes: between two checkpoints within an epoch of a network; 0 for one at the end of epochs only.
            It does not affect the numbers, and a resumed run may have another.
        stop_below: training stops when the score is this far below the best one, from 0 to 1; None for never.
        transform: "resize"; "augment" for random crops, geometry and color, which are ``Augmentation``'s; "crop" for
            the random crops and color changes of Kobayashi 2023.
        average_flips: whether the logits of an image are averaged with those of its mirror image; a linear head is
            trained on the mean of their features, which is the same.
        batchnorm: what batch normalization uses where a network is trained: statistics of each process ("local"), of
            the whole batch ("sync"), or those of the initial weights ("frozen").
        flip: whether training images are flipped horizontally at random.
        precision: where a network is trained, "float32", or "bf16" autocast; of a linear head, that of the
            convolutions that computed its features: "float32", "bf16" or "float16".
        seed: of initialization, order and augmentation.
        select: the rule that selects the epoch.
        trace: how many training entries are recorded: "all", "off", or a number.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = FORMAT
    data: StoredRecipe
    classes: Classes
    method: Name
    why: Text | None = None
    options: Options = Field(default_factory=dict)
    preset: Name | None = None
    backbone: Name
    backbone_input: BackboneInput | None = None
    weights: Annotated[str, StringConstraints(max_length=MAX_TEXT, pattern=r"^[^\x00]+$")] | None = None
    size: Size | None = None
    protocol: Literal["linear", "end-to-end", "linear-init"]
    linear: LinearPhase | None = None
    head: HeadName = "linear"
    epochs: Epochs
    lr: Rate
    backbone_lr: Rate
    batch_size: BatchSize
    optimizer: Literal["adam", "adamw", "sgd", "newton"] = "adam"
    standardize: bool = False
    folds: int = Field(default=0, ge=0, le=1000)
    reviewed_absents: Literal["use", "ignore"] = "use"
    momentum: float = Field(default=0.0, ge=0, lt=1)
    nesterov: bool = False
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    schedule: Literal["constant", "cosine"] = "constant"
    warmup: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    clip: float | None = Field(default=None, gt=0)
    ema: float | None = Field(default=None, gt=0, lt=1)
    accumulate: int = Field(default=1, ge=1, le=10**9)
    checkpoint_minutes: float = Field(default=10.0, ge=0, allow_inf_nan=False)
    stop_below: float | None = Field(default=None, ge=0, le=1)
    transform: Literal["resize", "augment", "crop"] = "resize"
    average_flips: bool = False
    batchnorm: BatchNormMode = "local"
    flip: bool
    precision: Literal["float32", "bf16", "float16"] = "float32"
    seed: int = Field(ge=-(2**63), lt=2**64)
    select: Literal["clean", "known", "observed", "last"]
    trace: Annotated[int, Field(ge=1, le=10**15)] | Literal["all", "off"]

    @property
    def trains_backbone(self) -> bool:
        """Whether the whole network is trained, not a head on fixed features."""
        return self.protocol != "linear"

    @property
    def feature_precision(self) -> Precision:
        """The precision of the features under the head; a network that is trained is scored in float32."""
        return "float32" if self.trains_backbone else "bfloat16" if self.precision == "bf16" else self.precision

    def fingerprint(self) -> str:
        """Return a digest of every setting that affects the numbers: not of ``why`` and ``checkpoint_minutes``."""
        settings = self.model_dump(mode="json", exclude={"why", "checkpoint_minutes"}, exclude_defaults=True)
        if self.weights is not None and Path(self.weights).name == INITIAL_WEIGHTS:
            settings["weights"] = INITIAL_WEIGHTS  # wherever the run folder is
        text = json.dumps(settings, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @classmethod
    def checked(cls, **settings: Any) -> RunConfig:
        """Return a configuration; all problems are in one ``InputError``."""
        try:
            return cls(**settings)
        except ValidationError as error:
            raise InputError("; ".join(validation_problem(item, cls) for item in error.errors()) + ".") from None


def write_config(folder: Path, config: RunConfig) -> None:
    """Write ``config.json``."""
    if config.weights is not None and Path(config.weights) == folder / INITIAL_WEIGHTS:
        config = config.model_copy(update={"weights": INITIAL_WEIGHTS})
    write_signed_json(folder / CONFIG_FILE, config.model_dump(mode="json"))


def _describe_other_folder(folder: Path) -> str:
    """Return why a folder is not a run, and which is probably meant."""
    if not folder.exists():
        return f"it does not exist.{suggest_path(folder)}"
    inside = sorted(path.parent for path in folder.glob(f"*/{CONFIG_FILE}"))
    return f"it has no {CONFIG_FILE}." + (f" Did you mean {inside[-1]}?" if inside else "")


def read_config(folder: Path) -> RunConfig:
    """Read ``config.json``; a ``RunError`` says why a folder is not a run."""
    path = folder / CONFIG_FILE
    if not path.exists():
        raise RunError(f"{folder} is not a run: {_describe_other_folder(folder)}")
    config = read_json(path, RunConfig, format=FORMAT)
    if config.weights == INITIAL_WEIGHTS:
        config = config.model_copy(update={"weights": str(folder / INITIAL_WEIGHTS)})
    return config
