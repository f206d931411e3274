"""``config.json``: the settings of a run, in a frozen model that refuses unknown keys."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, FailFast, Field, ValidationError

from labelgap.core.errors import InputError, RunError, suggest_path
from labelgap.core.manifest import finish_replacement
from labelgap.core.stored import read_json, validation_problem
from labelgap.core.trust import write_signed_json
from labelgap.data.readers.recipe import StoredRecipe
from labelgap.models import InputSpec
from labelgap.models.info import Precision
from labelgap.training.settings import KEYWORDS, SETTINGS, Text, TrainingSettings

FORMAT: Final = 1
CONFIG_FILE: Final = "config.json"
INITIAL_WEIGHTS: Final = "backbone.safetensors"
"""The initial weights of a backbone that was given as an object, in the run folder."""
JOINED: Final = "joined"
"""The table of a run that got more images is a file of this name in its folder, with the suffix of its format."""
MAX_CLASSES: Final = 200_000
_RUN_FOLDER: Final = "{run}/"  # the beginning of the path of a file in the folder of the run, in ``config.json``


def _check_unique(classes: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(classes)) < len(classes):
        raise ValueError("a class is named twice")
    return classes


Classes = Annotated[
    tuple[Text, ...], FailFast(), Field(min_length=1, max_length=MAX_CLASSES), AfterValidator(_check_unique)
]


class RunConfig(TrainingSettings):
    """The settings of a run as they were chosen; ``method`` is never "auto" here."""

    format: Literal[1] = FORMAT
    """Version of the run folder."""
    data: StoredRecipe
    """How the data set was loaded: name, path, options, steps."""
    classes: Classes
    """Names of the classes, in order."""
    why: Text | None = None
    """The reason why "auto" chose the method; None where the user named it."""
    backbone_input: InputSpec | None = None
    """The input of a backbone that was given as an object; its weights are in the run folder."""
    flip: bool
    """Whether training images are flipped horizontally at random."""

    @property
    def trains_backbone(self) -> bool:
        """Whether the whole network is trained, not a head on fixed features."""
        return self.protocol != "linear"

    @property
    def largest_size(self) -> int:
        """The side of the largest images that its settings name; 0 where they name none."""
        return max(self.size or 0, *self.average_sizes, 0)

    @property
    def feature_precision(self) -> Precision:
        """The precision of the features under the head; a network that is trained is scored in float32."""
        return "float32" if self.trains_backbone else "bfloat16" if self.precision == "bf16" else self.precision

    def linear_phase(self) -> RunConfig:
        """Return the configuration of linear-init's first phase: its own epochs, rate and batch, otherwise defaults."""
        kept = ("size", "precision", "reviewed_absents")
        defaults = {name: SETTINGS[name][0].default for name in KEYWORDS if name not in kept}
        own: dict[str, Any] = {"epochs": self.linear_epochs, "lr": self.linear_lr, "batch_size": self.linear_batch_size}
        own |= {"backbone_lr": self.linear_lr, "protocol": "linear", "trace": "off"}
        return self.model_copy(update={**defaults, **own})

    def fingerprint(self) -> str:
        """Return a digest of every setting that affects the numbers: not of ``why`` and ``checkpoint_minutes``."""
        settings = self.model_dump(mode="json", exclude={"why", "checkpoint_minutes"}, exclude_defaults=True)
        if self.weights is not None and Path(self.weights).name == INITIAL_WEIGHTS:
            settings["weights"] = INITIAL_WEIGHTS  # wherever the run folder is
        if (path := self.data.get("path")) is not None and Path(path).stem == JOINED:
            settings["data"]["path"] = Path(path).name
        if self.backbone_input is not None:
            settings["backbone_input"] = asdict(self.backbone_input)  # with what is a default there
        phase = {name: settings.pop(f"linear_{name}", None) for name in ("epochs", "lr", "batch_size")}
        if self.linear_epochs is not None:
            settings["linear"] = phase  # as runs of earlier versions have it, so that they are resumed
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
    path = config.data.get("path")
    if path is not None and Path(path).parent == folder.absolute() and Path(path).stem == JOINED:
        config = config.model_copy(update={"data": {**config.data, "path": _RUN_FOLDER + Path(path).name}})
    write_signed_json(folder / CONFIG_FILE, config.model_dump(mode="json"))


def _flatten_phase(stored: dict[str, Any]) -> None:
    """Change the first phase of linear-init, an object of its own in earlier runs, to settings beside the others."""
    phase = stored.pop("linear", None)
    if isinstance(phase, dict):
        stored.update({f"linear_{name}": value for name, value in phase.items()})


def read_config(folder: Path) -> RunConfig:
    """Read ``config.json``; a ``RunError`` says why a folder is not a run."""
    path = folder / CONFIG_FILE
    if not folder.exists():
        raise RunError(f"{folder} is not a run: it does not exist.{suggest_path(folder)}")
    finish_replacement(folder)
    if not path.exists():
        inside = sorted(each.parent for each in folder.glob(f"*/{CONFIG_FILE}"))
        meant = f" Did you mean {inside[-1]}?" if inside else ""
        raise RunError(f"{folder} is not a run: it has no {CONFIG_FILE}.{meant}")
    config = read_json(path, RunConfig, format=FORMAT, upgrade=_flatten_phase)
    if (config.data.get("path") or "").startswith(_RUN_FOLDER):
        place = folder.absolute() / config.data["path"].removeprefix(_RUN_FOLDER)
        config = config.model_copy(update={"data": {**config.data, "path": os.path.normpath(place)}})
    if config.weights == INITIAL_WEIGHTS:
        config = config.model_copy(update={"weights": str(folder / INITIAL_WEIGHTS)})
    return config
