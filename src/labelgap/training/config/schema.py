"""Everything that decides what a run does, in one frozen object that refuses unknown keys."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from labelgap.core.errors import InputError, RunError, nearest
from labelgap.core.files import write_json
from labelgap.models import HeadName

__all__ = ["FORMAT", "LinearPhase", "RunConfig", "read_config", "write_config"]

FORMAT: Final = 1
CONFIG_FILE = "config.json"


class LinearPhase(BaseModel):
    """The first phase of linear-init: a head on fixed features, by Adam at a constant rate."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    epochs: int = Field(ge=1)
    lr: float = Field(gt=0)
    batch_size: int = Field(ge=1)


class RunConfig(BaseModel):
    """The effective settings of a run, as they are in ``config.json``.

    Attributes:
        format: version of the run folder.
        data: how the data were loaded: name, path, options, observation.
        classes: names of the classes in order.
        method: the objective's name; "auto" has been decided by now.
        why: the reason "auto" gave, or that the user asked for it.
        options: of the objective.
        preset: the paper whose settings were asked for, if any.
        backbone: name of the network.
        weights: the file its weights come from, where it is not their usual source; "none" where it begins at random.
        size: the side of its pictures in pixels, where it is not the network's own.
        protocol: "linear", "end-to-end" or "linear-init".
        linear: the linear phase of linear-init; what follows is then the phase after it.
        head: "linear" or "boostlu".
        epochs: how many.
        lr: learning rate of the head.
        backbone_lr: learning rate of the backbone, where it is trained.
        batch_size: images per batch, over all processes.
        optimiser: "adam" or "sgd", with ``momentum``, ``nesterov`` and ``weight_decay``.
        schedule: of the rates, step by step: "constant", or "cosine" down to nothing.
        warmup: epochs in which the rates rise to their full height.
        clip: the largest norm of a gradient; None for any.
        ema: decay of a moving average of the weights, which is then what is kept; None for none.
        accumulate: batches whose gradients make one step.
        stop_below: how far the score may fall below the best before training ends, from 0 to 1; None for as it likes.
        transform: "resize", or "crop" for random parts in random light (Kobayashi 2023).
        flip: whether training images are flipped left to right at random.
        precision: in which the network computes: "float32", or "bf16" where that is safe.
        seed: of initialisation, order and augmentation.
        select: the rule by which the epoch is chosen.
        trace: how many training entries are recorded: "all", "off", or a number.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = FORMAT
    data: dict[str, Any]
    classes: tuple[str, ...]
    method: str
    why: str
    options: dict[str, Any] = Field(default_factory=dict)
    preset: str | None = None
    backbone: str
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
        """Return a digest of all that decides the numbers; the reason for a choice does not."""
        text = json.dumps(self.model_dump(mode="json", exclude={"why"}, exclude_defaults=True), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @classmethod
    def checked(cls, **settings: Any) -> RunConfig:
        """Make a configuration; what is wrong in it is told in one ``InputError``."""
        try:
            return cls(**settings)
        except ValidationError as error:
            raise InputError("; ".join(_sentence(item, cls) for item in error.errors()) + ".") from None


def write_config(folder: Path, config: RunConfig) -> None:
    """Write ``config.json``."""
    write_json(folder / CONFIG_FILE, config.model_dump(mode="json"))


def read_config(folder: Path) -> RunConfig:
    """Read ``config.json`` of a run folder, or say why it cannot be one."""
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
    try:
        return RunConfig.checked(**settings)
    except InputError as error:
        raise RunError(f"{path}: {error}") from None


def _sentence(item: Any, model: type[BaseModel]) -> str:
    key = ".".join(str(part) for part in item["loc"])
    if item["type"] == "extra_forbidden":
        close = nearest(key, model.model_fields)
        return f"there is no setting '{key}'" + (f"; did you mean '{close}'?" if close else "")
    return f"{key}={item['input']!r}: {item['msg'][:1].lower()}{item['msg'][1:]}"
