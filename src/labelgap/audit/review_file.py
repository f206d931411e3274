"""``review.json``: what the candidates of a folder that is no run were taken from; signed, since it names data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from labelgap.audit.candidates import FILE, FORMAT
from labelgap.core.manifest import write_manifest
from labelgap.core.stored import damaged, read_json, validate
from labelgap.core.trust import write_signed_json
from labelgap.data.readers.recipe import StoredRecipe

REVIEW_FILE: Final = "review.json"
_MAX_CLASSES: Final = 1_000_000
_MAX_NAME: Final = 32_000
_Name = Annotated[str, StringConstraints(min_length=1, max_length=_MAX_NAME)]


class StoredReview(BaseModel):
    """The data of a review without a run of its own: of random images, or of the audit of several runs.

    Attributes:
        format: 1.
        data: how the data are loaded.
        classes: names of the classes in order.
        split: that random images were drawn from; None for an audit.
        images: how many were asked for.
        seed: of the draw.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1]
    data: Annotated[StoredRecipe, Field(min_length=1)]
    classes: Annotated[list[_Name], Field(min_length=1, max_length=_MAX_CLASSES)]
    split: Literal["train", "val", "test"] | None = None
    images: int | None = Field(default=None, ge=1, lt=2**63)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)


def describe_review(
    folder: Path, data: Mapping[str, Any], classes: tuple[str, ...], **drawn: str | int
) -> StoredReview:
    """Return the content of the file of a folder; ``drawn`` are split, images and seed of random images."""
    stored = {"format": FORMAT, "data": dict(data), "classes": list(classes), **drawn}
    return validate(stored, StoredReview, folder / REVIEW_FILE)


def write_review_file(folder: Path, about: StoredReview) -> None:
    """Write the file, and the manifest of the folder."""
    write_signed_json(folder / REVIEW_FILE, about.model_dump(mode="json", exclude_none=True))
    write_manifest(folder, [FILE])


def read_review_file(folder: Path) -> StoredReview:
    """Read the file of a folder; ``RunError`` where it is damaged."""
    remedy = (
        f"Restore it from a copy; `labelgap review DATA --random N --out {folder}` writes it again if it is deleted, "
        "and so does an audit."
    )
    about = read_json(folder / REVIEW_FILE, StoredReview, format=FORMAT, remedy=remedy)
    if len(set(about.classes)) != len(about.classes):
        raise damaged(folder / REVIEW_FILE, "a class is listed twice", remedy)
    return about
