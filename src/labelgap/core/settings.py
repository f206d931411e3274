"""Settings that are declared once, as fields of a model: keywords, options, configurations and docs come from them.

Here are those of reading data; ``training.settings`` has those of a training.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic.fields import FieldInfo

from labelgap.core.errors import InputError

EVERYWHERE: Final = frozenset({"linear", "end-to-end", "linear-init"})
"""The protocols."""


@dataclass(frozen=True)
class Setting:
    """What a field does not say by itself."""

    group: str  # heading of the options of commands
    default: str | None = None  # text about the default where it is not the neutral value
    protocols: frozenset[str] = EVERYWHERE  # those in which the setting has an effect
    values: Mapping[Any, frozenset[str]] = field(default_factory=dict)  # values with an effect in other protocols
    varies: frozenset[str] = frozenset()  # protocols in which the default depends on data, network or method
    needs: tuple[str, str] | None = None  # another setting and its value without which this one has no effect
    flag: str | None = None  # the name of the option of commands where it differs from that of the field


class SettingsModel(BaseModel):
    """A model whose fields are settings; the docstring below a field is its help text."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


def settings_of(model: type[BaseModel]) -> dict[str, tuple[FieldInfo, Setting]]:
    """Return the settings of a model by their names."""
    return {
        name: (info, setting)
        for name, info in model.model_fields.items()
        for setting in info.metadata
        if isinstance(setting, Setting)
    }


def value_type(info: FieldInfo) -> Any:
    """Return the type of a setting's value as a command takes it: a list for several, text where types are mixed."""
    given = _alternatives(info.annotation)
    kinds = {type(get_args(each)[0]) if get_origin(each) is Literal else get_origin(each) or each for each in given}
    return list[str] if kinds <= {dict, list} else kinds.pop() if len(kinds) == 1 else str


def _alternatives(annotation: Any) -> list[Any]:
    """Return the types of a union without their bounds and without None."""
    parts = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    plain = (each.__origin__ if get_origin(each) is Annotated else each for each in parts)
    return [each for each in plain if each is not NoneType]


def annotation_text(info: FieldInfo) -> str:
    """Return the type of a keyword as Python code; None, or "auto" among names, leaves the setting open."""
    given = _alternatives(info.annotation)
    names = [_plain_name(each) for each in given if get_origin(each) is not Literal]
    values = [f'"{value}"' for each in given if get_origin(each) is Literal for value in (*get_args(each), "auto")]
    literal = [f"Literal[{', '.join(values)}]"] if values else []
    return " | ".join([*names, *literal, "None"])


def _plain_name(kind: Any) -> str:
    if get_origin(kind) is list:
        return f"list[{_alternatives(get_args(kind)[0])[0].__name__}]"
    return str((get_origin(kind) or kind).__name__)


def check_values(model: type[BaseModel], given: Mapping[str, Any]) -> None:
    """Raise one error for all values that are outside of the types and bounds of a model's fields."""
    from labelgap.core.stored import validation_problem  # with numpy, which the help of commands does not need

    own = {name: model.model_fields[name] for name in given}
    fields: dict[str, Any] = {name: (Annotated[info.annotation, *info.metadata], None) for name, info in own.items()}
    try:
        create_model("Given", **fields)(**given)
    except ValidationError as error:
        raise InputError("; ".join(validation_problem(item, model) for item in error.errors()) + ".") from None


DATA: Final = "Data"
PUBLISHED: Final = "Published data sets"
_OWN: Final = Setting(DATA)
_PUBLISHED: Final = Setting(PUBLISHED)
_DETECTED: Final = Setting(DATA, default="detected")


class DataPaths(SettingsModel):
    """Where further files of the data are."""

    images: Annotated[Path | None, Setting(DATA, default="that of the table")] = None
    """Folder that image names are relative to."""
    val: Annotated[Path | None, _OWN] = None
    """Table of val images, in the same layout."""
    test: Annotated[Path | None, _OWN] = None
    """Table of test images, in the same layout."""
    aliases: Annotated[Path | None, _OWN] = None
    """CSV with two columns: synonym, class."""
    parents: Annotated[Path | None, _OWN] = None
    """CSV with two columns: child, parent it implies."""
    prior: Annotated[Path | None, _OWN] = None
    """Labels that models or other people gave, a file or a folder; for inspect, train, audit."""
    annotations: Annotated[Path | None, _PUBLISHED] = None
    """VOC devkit with the boxes of the images of a feature file."""
    xml: Annotated[Path | None, _PUBLISHED] = None
    """Mulan's file of the names of the labels of an ARFF file."""


class DataOptions(DataPaths):
    """How to read data; None for an option that is not given."""

    zeros: Annotated[Literal["absent", "unknown"] | None, Setting(DATA, default="absent")] = None
    """Meaning of a 0 in a wide table: absent or unknown."""
    unlisted: Annotated[Literal["unknown", "absent"] | None, Setting(DATA, default="unknown")] = None
    """State of a class not in the lists: unknown or absent."""
    uncertain: Annotated[Literal["unknown", "present", "absent"] | None, _PUBLISHED] = None
    """What uncertain labels (-1) become: unknown, present or absent."""
    delimiter: Annotated[str | None, _DETECTED] = None
    """Cell separator of a CSV."""
    separator: Annotated[str | None, _DETECTED] = None
    """Separator within a list."""
    encoding: Annotated[str | None, _DETECTED] = None
    """Encoding of a CSV."""
    classes: Annotated[list[str] | None, _OWN] = None
    """Classes to use, e.g. cat,dog; repeatable."""
    ignore_columns: Annotated[list[str] | None, _OWN] = None
    """Columns that are not classes, e.g. width,height; repeatable."""
    rename: Annotated[dict[str, str] | list[str] | None, _OWN] = None
    """Rename a class or column: dog=Dog, file=image; repeatable."""
    on_bad_image: Annotated[Literal["error", "skip"] | None, Setting(DATA, default="error; predict: skip")] = None
    """Unreadable images: error (lists all) or skip."""
    duplicates: Annotated[Literal["near", "exact", "off"] | None, Setting(DATA, default="near")] = None
    """Duplicate images to detect: near, exact or off."""
    certainty: Annotated[Literal["guessing", "probably", "definitely"] | None, _PUBLISHED] = None
    """CUB labels below it are unknown: guessing, probably or definitely."""
    unlabeled: Annotated[Literal["keep", "drop"] | None, _PUBLISHED] = None
    """Images without any of the 81 concepts: keep or drop (nuswide)."""
    machine: Annotated[float | None, _PUBLISHED] = None
    """Confidence from which labels of a network are used (openimages)."""
    boxes: Annotated[bool, Setting(PUBLISHED, flag="boxes")] = False
    """Read boxes, too (openimages)."""
    allow_leaks: Annotated[bool, Setting(DATA, flag="allow_leaks")] = False
    """Allow an image in several splits."""


PATH_OPTIONS: Final = tuple(settings_of(DataPaths))
"""The options that are paths."""
DATA_OPTIONS: Final = tuple(settings_of(DataOptions))
