"""``config.json``: the effective settings of a run, in a frozen model that refuses unknown keys."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from labelgap.core.errors import InputError, RunError, nearest
from labelgap.core.files import write_json
from labelgap.models import HeadName

__all__ = ["FORMAT", "INITIAL_WEIGHTS", "LinearPhase", "RunConfig", "read_config", "write_config"]

FORMAT: Final = 1
CONFIG_FILE = "config.json"
INITIAL_WEIGHTS: Final = "backbone.safetensors"
"""The initial weights of a backbone that was given as an object, in the run folder."""


class LinearPhase(BaseModel):
    """The first phase of linear-init: a head on fixed features, trained by Adam at a constant rate."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    epochs: int = Field(ge=1)
    lr: float = Field(gt=0)
    batch_size: int = Field(ge=1)


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
        head: "linear" or "boostlu".
        epochs: number of epochs.
        lr: learning rate of the head.
        backbone_lr: learning rate of the backbone, where it is trained.
        batch_size: images per batch, over all processes.
        optimizer: "adam" or "sgd", with ``momentum``, ``nesterov`` and ``weight_decay``.
        schedule: of the learning rates: "constant", or "cosine" to zero, step by step.
        warmup: epochs of a linear warm-up.
        clip: largest norm of the gradient; None for no clipping.
        ema: decay of the moving average of the weights that is scored and saved; None for no average.
        accumulate: batches per optimizer step.
        stop_below: training stops when the score is this far below the best one, from 0 to 1; None for never.
        transform: "resize", or "crop" for random crops and color changes (Kobayashi 2023).
        flip: whether training images are flipped horizontally at random.
        precision: "float32", or "bf16" autocast.
        seed: of initialization, order and augmentation.
        select: the rule that selects the epoch.
        trace: how many training entries are recorded: "all", "off", or a number.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = FORMAT
    data: dict[str, Any]
    classes: tuple[str, ...]
    method: str
    why: str | None = None
    options: dict[str, Any] = Field(default_factory=dict)
    preset: str | None = None
    backbone: str
    backbone_input: dict[str, Any] | None = None
    weights: str | None = None
    size: int | None = Field(default=None, ge=1)
    protocol: Literal["linear", "end-to-end", "linear-init"]
    linear: LinearPhase | None = None
    head: HeadName = "linear"
    epochs: int = Field(ge=1)
    lr: float = Field(gt=0)
    backbone_lr: float = Field(gt=0)
    batch_size: int = Field(ge=1)
    optimizer: Literal["adam", "sgd"] = "adam"
    momentum: float = Field(default=0.0, ge=0, lt=1)
    nesterov: bool = False
    weight_decay: float = Field(default=0.0, ge=0)
    schedule: Literal["constant", "cosine"] = "constant"
    warmup: float = Field(default=0.0, ge=0)
    clip: float | None = Field(default=None, gt=0)
    ema: float | None = Field(default=None, gt=0, lt=1)
    accumulate: int = Field(default=1, ge=1)
    stop_below: float | None = Field(default=None, ge=0, le=1)
    transform: Literal["resize", "crop"] = "resize"
    flip: bool
    precision: Literal["float32", "bf16"] = "float32"
    seed: int
    select: Literal["clean", "known", "observed", "last"]
    trace: int | Literal["all", "off"]

    def fingerprint(self) -> str:
        """Return a digest of every setting that affects the numbers; ``why`` does not."""
        settings = self.model_dump(mode="json", exclude={"why"}, exclude_defaults=True)
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
            raise InputError("; ".join(_problem(item, cls) for item in error.errors()) + ".") from None


def write_config(folder: Path, config: RunConfig) -> None:
    """Write ``config.json``."""
    if config.weights is not None and Path(config.weights) == folder / INITIAL_WEIGHTS:
        config = config.model_copy(update={"weights": INITIAL_WEIGHTS})
    write_json(folder / CONFIG_FILE, config.model_dump(mode="json"))


def read_config(folder: Path) -> RunConfig:
    """Read ``config.json``; a ``RunError`` says why a folder is not a run."""
    path = folder / CONFIG_FILE
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(f"{folder} is not a run: it has no {CONFIG_FILE}.") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise RunError(f"{path} is damaged ({error}).") from None
    found = settings.get("format") if isinstance(settings, dict) else None
    if found != FORMAT:
        raise RunError(f"{folder} is a run of format {found}; this version of labelgap reads format {FORMAT}.")
    if settings.get("weights") == INITIAL_WEIGHTS:
        settings["weights"] = str(folder / INITIAL_WEIGHTS)
    try:
        return RunConfig.checked(**settings)
    except InputError as error:
        raise RunError(f"{path}: {error}") from None


def _problem(item: Any, model: type[BaseModel]) -> str:
    key = ".".join(str(part) for part in item["loc"])
    if item["type"] == "extra_forbidden":
        close = nearest(key, model.model_fields)
        return f"there is no setting '{key}'" + (f"; did you mean '{close}'?" if close else "")
    return f"{key}={item['input']!r}: {item['msg'][:1].lower()}{item['msg'][1:]}"
