"""Every setting of a training, declared once: its type, bounds, help text, group, and where it has an effect.

``keywords.py``, written by ``python -m labelgap.training.settings``, commands and documentation come from the fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, JsonValue, StringConstraints

from labelgap.core.errors import InputError, UnknownNameError
from labelgap.core.settings import Setting, SettingsModel, check_values, settings_of

PROTOCOLS: Final = {
    "linear": "a linear head on fixed features",
    "end-to-end": "the whole network",
    "linear-init": "first a linear head on fixed features, then the whole network",
}
"""What is trained under each protocol."""
MAX_SIZE: Final = 4096
"""Side of the images in pixels."""
MAX_TEXT: Final = 4096
LINEAR: Final = frozenset({"linear"})
NETWORK: Final = frozenset({"end-to-end", "linear-init"})
LINEAR_INIT: Final = frozenset({"linear-init"})

MODEL: Final = "Method and model"
OPTIMIZATION: Final = "Optimization (defaults depend on the protocol or preset)"
HEADS: Final = "Heads"
IMAGES: Final = "Input images"
RUN: Final = "Options"

Text = Annotated[str, StringConstraints(max_length=MAX_TEXT)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=500)]
Options = Annotated[dict[Name, JsonValue], Field(max_length=1000)]
Count = Annotated[int, Field(ge=1, le=10**9)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Side = Annotated[int, Field(ge=16, le=MAX_SIZE)]
_NUMBER: Final = Setting(OPTIMIZATION, varies=frozenset(PROTOCOLS))
_PHASE: Final = Setting(OPTIMIZATION, protocols=LINEAR_INIT)
_OF_NETWORK: Final = Setting(OPTIMIZATION, protocols=NETWORK)
_OF_SGD: Final = Setting(OPTIMIZATION, needs=("optimizer", "sgd"))


def _split_numbers(given: Any) -> Any:
    """Split texts with commas, as a command gets them."""
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list | tuple):
        return given
    return [part for each in texts for part in (each.split(",") if isinstance(each, str) else [each])]


class TrainingSettings(SettingsModel):
    """What is trained, and how."""

    method: Annotated[Name, Setting(MODEL, default="auto")]
    """See `labelgap methods`; auto chooses by the labels. A class of your own: package.module:Class."""
    options: Annotated[Options, Setting(MODEL, flag="option")] = Field(default_factory=dict)
    """Option of the method, e.g. delta_rel=0.2; repeatable."""
    preset: Annotated[Name | None, Setting(MODEL)] = None
    """Settings of a paper: cole2021, kim2022, zhou2022 or kobayashi2023."""
    backbone: Annotated[Name, Setting(MODEL, default="depends on the data")]
    """See `labelgap backbones`."""
    weights: Annotated[
        Annotated[str, StringConstraints(max_length=MAX_TEXT, pattern=r"^[^\x00]+$")] | None, Setting(MODEL)
    ] = None
    """File with weights of the backbone: .pth, .safetensors; or none."""
    teacher: Annotated[Text | None, Setting(MODEL)] = None
    """Finished run: its calibrated probabilities are the targets of unknown labels."""
    protocol: Annotated[
        Literal["linear", "end-to-end", "linear-init"], Setting(MODEL, default="depends on data and device")
    ]
    """linear, end-to-end or linear-init."""
    head: Annotated[
        Literal["linear", "attention", "boostlu", "zero-shot"], Setting(MODEL, default="auto", varies=NETWORK)
    ] = "linear"
    """auto, linear, attention (pools also by the maximum), boostlu, or zero-shot (from class names)."""
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64), Setting(MODEL, default="0")]
    """Seed of initialization, order and augmentation."""
    select: Annotated[Literal["clean", "known", "observed", "last"], Setting(MODEL, default="auto")]
    """How to select the epoch: auto, clean, known, observed, last."""
    trace: Annotated[Annotated[int, Field(ge=1, le=10**15)] | Literal["all", "off"], Setting(RUN, default="auto")]
    """Training labels to record: auto (off on a GPU), all, off or a number."""

    epochs: Annotated[Count, _NUMBER]
    """Number of epochs."""
    lr: Annotated[Rate, _NUMBER]
    """Learning rate of the head."""
    backbone_lr: Annotated[
        Rate, Setting(OPTIMIZATION, default="proportional to --lr", protocols=NETWORK, varies=frozenset(PROTOCOLS))
    ]
    """Learning rate of the backbone."""
    batch_size: Annotated[Count, _NUMBER]
    """Images per batch, over all processes."""
    linear_epochs: Annotated[Count | None, _PHASE] = None
    """Epochs of the first phase of linear-init, a head on fixed features, trained by Adam at a constant rate."""
    linear_lr: Annotated[Rate | None, _PHASE] = None
    """Learning rate of that phase."""
    linear_batch_size: Annotated[Count | None, _PHASE] = None
    """Batch size of that phase."""
    optimizer: Annotated[
        Literal["adam", "adamw", "sgd", "newton"],
        Setting(OPTIMIZATION, values={"adamw": NETWORK, "newton": LINEAR}, varies=frozenset(PROTOCOLS)),
    ] = "adam"
    """sgd, adam, adamw, or newton (linear heads, all images)."""
    standardize: Annotated[bool, Setting(HEADS, protocols=LINEAR, varies=LINEAR)] = False
    """Standardize features of a linear head."""
    folds: Annotated[int, Field(ge=0, le=1000), Setting(HEADS, protocols=LINEAR)] = 0
    """Folds of the cross-validation where there is no val; 0 for none."""
    reviewed_absents: Annotated[Literal["use", "ignore"], Setting(HEADS)] = "use"
    """Absents decided on likely labels: use, or ignore (auto without val)."""
    attention_weight: Annotated[Annotated[float, Field(ge=0, le=1)], Setting(HEADS, needs=("head", "attention"))] = 0.05
    """Share of the maximum in the logits of the head attention."""
    attention_temperature: Annotated[Rate | None, Setting(HEADS, needs=("head", "attention"))] = None
    """Average over positions weighted by the softmax of scores times this, instead of the maximum."""
    momentum: Annotated[float, Field(ge=0, lt=1), Setting(OPTIMIZATION, default="0.9", needs=("optimizer", "sgd"))] = (
        0.0
    )
    """Momentum of sgd."""
    nesterov: Annotated[bool, _OF_SGD] = False
    """Variant of sgd."""
    weight_decay: Annotated[NotNegative, _NUMBER] = 0.0
    """L2 penalty; decoupled with adamw."""
    schedule: Annotated[Literal["constant", "cosine"], Setting(OPTIMIZATION, protocols=NETWORK, varies=NETWORK)] = (
        "constant"
    )
    """Learning rate schedule: constant or cosine (to zero, step by step)."""
    warmup: Annotated[NotNegative, Setting(OPTIMIZATION, protocols=NETWORK, varies=NETWORK)] = 0.0
    """Epochs of learning rate warmup."""
    clip: Annotated[Rate | None, _OF_NETWORK] = None
    """Maximum norm of the gradient."""
    ema: Annotated[Annotated[float, Field(gt=0, lt=1)] | None, _OF_NETWORK] = None
    """Decay of a moving average of the weights, which is scored and saved, e.g. 0.999."""
    accumulate: Annotated[Count, _OF_NETWORK] = 1
    """Batches per optimizer step."""
    checkpoint_minutes: Annotated[NotNegative, Setting(RUN, default="10", protocols=NETWORK)] = 10.0
    """Minutes between checkpoints within an epoch; 0: at its end only. It does not affect the numbers."""
    stop_below: Annotated[Annotated[float, Field(ge=0, le=1)] | None, Setting(OPTIMIZATION)] = None
    """Stop this far below the best val score, e.g. 0.03."""
    transform: Annotated[Literal["resize", "augment", "crop"], Setting(IMAGES, protocols=NETWORK, varies=NETWORK)] = (
        "resize"
    )
    """resize, augment (random crops, geometry, color), or crop (Kobayashi 2023)."""
    average_flips: Annotated[bool, Setting(IMAGES, varies=NETWORK)] = False
    """Average over image and mirror: twice the time."""
    batchnorm: Annotated[
        Literal["local", "sync", "frozen"], Setting(OPTIMIZATION, default="local", protocols=NETWORK)
    ] = "local"
    """Statistics of batch norm: local (of each process), sync (of the whole batch), frozen (initial ones)."""
    average_sizes: Annotated[
        Annotated[list[Side], Field(max_length=10), BeforeValidator(_split_numbers)],
        Setting(IMAGES, protocols=NETWORK),
    ] = []
    """Sides in pixels at which an image is scored, e.g. 448,640; the logits are averaged."""
    size: Annotated[
        Annotated[int, Field(ge=1, le=MAX_SIZE)] | None, Setting(IMAGES, default="that of the backbone")
    ] = None
    """Side of the input images."""
    precision: Annotated[
        Literal["float32", "bf16", "float16"],
        Setting(
            OPTIMIZATION,
            default="16 bits where the hardware computes with them",
            values={"bf16": NETWORK},
            varies=frozenset(PROTOCOLS),
        ),
    ] = "float32"
    """auto, float32 or bf16; of a linear head, that of the convolutions that compute its features."""


SETTINGS: Final = settings_of(TrainingSettings)
"""All settings."""
ARGUMENTS: Final = tuple(name for name, (_, setting) in SETTINGS.items() if setting.group == MODEL or name == "trace")
"""Those that ``fit`` names in its signature."""
KEYWORDS: Final = tuple(name for name in SETTINGS if name not in ARGUMENTS)
"""Those that ``fit`` takes as further keywords, and ``TrainingRequest`` as ``training``."""


def check_settings(given: Mapping[str, Any]) -> None:
    """Raise an error for a keyword that is no setting, or has a value that it cannot have."""
    for name in given:
        if name not in KEYWORDS:
            raise UnknownNameError("setting", name, KEYWORDS)
    if given.get("precision") == "float16":
        raise InputError("precision=float16 is what some CPUs compute features with by themselves: use auto.")
    check_values(TrainingSettings, given)


def check_sizes(given: list[str] | None) -> list[int] | None:
    """Return sizes as a command gets them, such as "448,640", as numbers; an error where they are none."""
    if given is None:
        return None
    check_values(TrainingSettings, {"average_sizes": given})
    return [int(each) for each in _split_numbers(given)]


def check_effect(given: Mapping[str, Any], settings: Mapping[str, Any], protocol: str) -> None:
    """Refuse settings of the user without effect; ``settings`` are all of the run."""
    for name, value in given.items():
        info, setting = SETTINGS[name]
        allowed = next((where for one, where in setting.values.items() if one == value), setting.protocols)
        neutral = settings["lr"] if name == "backbone_lr" else info.default
        if protocol not in allowed and value != neutral:
            what = "a linear head" if allowed == LINEAR else "a whole network"
            raise InputError(
                f"{name}={value} is for training {what}, and --protocol {protocol} trains {PROTOCOLS[protocol]}: leave "
                f"it out, or use --protocol {' or '.join(sorted(allowed, reverse=True))}."
            )
        if setting.needs is not None and value != info.default and settings.get(setting.needs[0]) != setting.needs[1]:
            raise InputError(f"{name}={value} is a setting of --{' '.join(setting.needs)}: leave it out.")


def keywords_module() -> str:
    """Return the source of ``keywords.py``: the keywords of ``fit`` for type checkers and editors."""
    from labelgap.core.settings import annotation_text

    lines = [
        '"""The keywords of ``fit``, written by ``python -m labelgap.training.settings``; see ``TrainingSettings``."""',
        "",
        "from typing import Literal, TypedDict",
        "",
        "",
        "class TrainingKeywords(TypedDict, total=False):",
        '    """Settings of a training; None, or "auto", where one is left open."""',
        "",
    ]
    return "\n".join([*lines, *(f"    {name}: {annotation_text(SETTINGS[name][0])}" for name in KEYWORDS), ""])


if __name__ == "__main__":
    Path(__file__).with_name("keywords.py").write_text(keywords_module())
