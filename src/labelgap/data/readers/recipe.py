"""How data were loaded: the part of ``config.json`` and ``review.json`` that a run loads its data by.

Anybody may have written it: it can name local paths and registered data sets, but no code, nor an address but of
shards.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from labelgap.core.errors import InputError
from labelgap.core.settings import PATH_OPTIONS
from labelgap.core.stored import validation_reason
from labelgap.core.text import truncate_text
from labelgap.data.readers.image_paths import refuse_url
from labelgap.data.readers.shards import is_shard_url
from labelgap.labels.masking import check_draw

_MAX_SHOWN: Final = 5


def _check_path(path: str) -> str:
    if "\0" in path:
        raise ValueError("a path has no NUL character")
    refuse_url(path)
    return path


def _check_options(options: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """Raise an error for addresses, and what is no option; the reader's own types are checked where it is called."""
    if "name" in options or "path" in options:
        raise ValueError("'name' and 'path' are no options")
    for name in PATH_OPTIONS:
        if isinstance(path := options.get(name), str):
            _check_path(path)
    return options


SHARDS: Final = "shards"
"""The name of the only data whose path may be a URL; ``load_stored`` opens it for those who made or trust the file."""
_Name = Annotated[str, StringConstraints(max_length=100, pattern=r"^[A-Za-z][\w-]*$")]
_OptionName = Annotated[str, StringConstraints(max_length=100, pattern=r"^[A-Za-z_]\w*$")]
_Loader = Annotated[str, StringConstraints(max_length=300, pattern=r"^[\w.<>]+:[\w.<>]+$")]
_Splits = Annotated[list[Literal["train", "val", "test"]], Field(max_length=3)]
_Amount = Annotated[int, Field(ge=0, lt=2**31)] | Literal["all"]
_Number = Annotated[int, Field(ge=0, lt=2**31)] | Annotated[float, Field(ge=0, lt=2**31)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class DrawArguments(BaseModel):
    """Which labels ``Dataset.observe`` keeps; further fields are the options of a rule of ``labels.masking``."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)
    __pydantic_extra__: dict[_OptionName, _Number] = Field(init=False)

    positives: _Amount | Annotated[str, StringConstraints(max_length=100)] = 1
    negatives: _Amount = 0

    @model_validator(mode="after")
    def _check_rule(self) -> Self:
        check_draw(self.positives, self.__pydantic_extra__, self.negatives)
        return self


class ObserveArguments(DrawArguments):
    """The arguments of ``Dataset.observe``."""

    positives: _Amount | Annotated[str, StringConstraints(max_length=100)]
    negatives: _Amount
    seed: int = Field(ge=0, lt=2**32)
    splits: _Splits


class RevealArguments(_Strict):
    """The arguments of ``Dataset.reveal``."""

    splits: _Splits


class SampleArguments(_Strict):
    """The arguments of ``Dataset.sample``."""

    share: float = Field(gt=0, le=1)
    seed: int = Field(ge=0, lt=2**32)


class Step(_Strict):
    """Labels were hidden by ``Dataset.observe``, or shown by ``Dataset.reveal``, or images left out by ``sample``."""

    observe: ObserveArguments | None = None
    reveal: RevealArguments | None = None
    sample: SampleArguments | None = None

    @model_validator(mode="after")
    def _check_verb(self) -> Self:
        if sum(each is not None for each in (self.observe, self.reveal, self.sample)) != 1:
            raise ValueError("a step is 'observe', 'reveal' or 'sample' with its arguments")
        return self


class Recipe(_Strict):
    """How a data set was loaded, and what was hidden or shown since; ``loader`` is for a message alone."""

    name: _Name
    path: Annotated[str, StringConstraints(min_length=1, max_length=4096)] | None
    options: Annotated[dict[_OptionName, JsonValue], Field(max_length=64), AfterValidator(_check_options)]
    steps: Annotated[list[Step], Field(max_length=64)]
    loader: _Loader | None = None
    license: Annotated[str, StringConstraints(max_length=200)] | None = None

    @field_validator("path")
    @classmethod
    def _check_path(cls, path: str | None, info: ValidationInfo) -> str | None:
        """Refuse a URL, unless it is one of shards."""
        if path is None or (info.data.get("name") == SHARDS and is_shard_url(path)):
            return path
        return _check_path(path)

    @classmethod
    def checked(cls, recipe: Mapping[str, Any]) -> Recipe:
        """Return the recipe of a mapping that anybody may have written; all problems are in one ``InputError``."""
        try:
            return cls.model_validate(dict(recipe))
        except ValidationError as error:
            problems = list(dict.fromkeys(map(_problem, error.errors(include_url=False))))
        shown = "; ".join(problems[:_MAX_SHOWN])
        more = f" … and {len(problems) - _MAX_SHOWN} more" if len(problems) > _MAX_SHOWN else ""
        raise InputError(f"the data's recipe cannot be used: {shown}{more}.")

    @property
    def paths(self) -> tuple[str, ...]:
        """Every path that it names."""
        named = (self.path, *map(self.options.get, PATH_OPTIONS))
        return tuple(path for path in named if isinstance(path, str))


def _problem(item: Any) -> str:
    parts = [str(part) for part in item["loc"]]
    place = truncate_text(".".join(part for part, before in zip(parts, ["", *parts], strict=False) if part != before))
    return f"{place}: {validation_reason(item)}"


def _check_stored(recipe: dict[str, Any]) -> dict[str, Any]:
    if recipe:
        Recipe.checked(recipe)
    return recipe


StoredRecipe = Annotated[dict[str, Any], AfterValidator(_check_stored)]
"""The type of a recipe in a stored file: a plain dictionary that ``Recipe`` accepts, or an empty one (data by hand)."""


def to_stored_path(path: str | os.PathLike[str]) -> str:
    """Return a path as a recipe holds it, absolute: a run is opened from other folders than it was trained in."""
    if is_shard_url(text := os.fspath(path)):
        return text
    return os.fspath(Path(os.path.normpath(Path(path).expanduser().absolute())))


def to_stored_option(value: Any) -> Any:
    """Return an option as JSON can hold it, so that it comes back from a run's folder as it was."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {str(key): to_stored_option(each) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [to_stored_option(each) for each in value]
    return value
