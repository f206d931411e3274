"""Everything that decides what a run does, in one frozen object that refuses unknown keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from labelgap.core.errors import InputError, RunError, nearest
from labelgap.core.files import write_json
from labelgap.models import HeadName

__all__ = ["FORMAT", "RunConfig", "read_config", "write_config"]

FORMAT: Final = 1
FILE = "config.json"


class RunConfig(BaseModel):
    """The effective settings of a run, as they are in ``config.json``.

    Attributes:
        format: version of the run folder.
        data: how the data were loaded: name, path, options, observation.
        classes: names of the classes in order.
        method: the objective's name; "auto" has been decided by now.
        why: the reason "auto" gave, or that the user asked for it.
        options: of the objective.
        backbone: name of the network.
        protocol: "linear" or "end-to-end".
        head: "linear" or "boostlu".
        epochs: how many.
        lr: learning rate of the head.
        backbone_lr: learning rate of the backbone, for end-to-end.
        batch_size: images per step, over all processes.
        flip: whether training images are flipped left to right at random.
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
    backbone: str
    protocol: Literal["linear", "end-to-end"]
    head: HeadName = "linear"
    epochs: int = Field(ge=1)
    lr: float = Field(gt=0)
    backbone_lr: float = Field(gt=0)
    batch_size: int = Field(ge=1)
    flip: bool
    seed: int
    select: Literal["clean", "known", "observed", "last"]
    trace: int | Literal["all", "off"]

    @classmethod
    def checked(cls, **settings: Any) -> RunConfig:
        """Make a configuration; what is wrong in it is told in one ``InputError``."""
        try:
            return cls(**settings)
        except ValidationError as error:
            raise InputError("; ".join(_sentence(item, cls) for item in error.errors()) + ".") from None


def write_config(folder: Path, config: RunConfig) -> None:
    """Write ``config.json``."""
    write_json(folder / FILE, config.model_dump(mode="json"))


def read_config(folder: Path) -> RunConfig:
    """Read ``config.json`` of a run folder, or say why it cannot be one."""
    path = folder / FILE
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(f"{folder} is not a run: it has no {FILE}.") from None
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
