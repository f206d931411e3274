"""The messages of the page: only these fields, of these types, within these bounds."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from labelgap.core.text import fold_name
from labelgap.labels.codes import PRESENT, UNKNOWN

MAX_ACTIONS: Final = 500
MAX_LEASED: Final = 2000
# zero-width joiners: not printable, but required to spell names in Persian and many scripts of India
_JOINERS: Final = str.maketrans("", "", "\u200c\u200d")


def printable_name(text: str) -> str:
    """Return a name with single blanks; a ``ValueError`` where it has other than printable characters, or none."""
    text = " ".join(text.split())
    visible = text.translate(_JOINERS)
    if not fold_name(text) or not visible.isprintable():
        raise ValueError("a name consists of printable characters")
    return text


CandidateId = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
Token = Annotated[str, Field(pattern=r"^[0-9a-zA-Z-]{8,64}$")]
Reviewer = Annotated[str, Field(min_length=1, max_length=80), AfterValidator(printable_name)]


class _StrictModel(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ClassMessage(_StrictModel):
    """A class to add; ``review.additions`` says which names it may have."""

    store: Token
    reviewer: Reviewer
    name: str = Field(min_length=1, max_length=200)


class PhotosMessage(_StrictModel):
    """New photos to add to the run: the path of a table or a folder on the machine of the server."""

    store: Token
    reviewer: Reviewer
    path: str = Field(pattern=r"^[^\x00]+$", max_length=4096)


class DecisionMessage(_StrictModel):
    """A decision; see ``events.Decision``."""

    request_id: Token
    id: CandidateId
    value: int = Field(ge=UNKNOWN, le=PRESENT)
    base_version: int = Field(ge=0, le=2**53)
    asked: Literal["missing", "classifier", "random", "wrong", "other", "second"] | None = None
    ranking: int = Field(default=0, ge=0, le=2**53)
    place: int = Field(default=0, ge=0, le=2**53)


class LeaseMessage(_StrictModel):
    """The candidates that an open page shows; none when it is left."""

    store: Token
    lease: Token  # the page
    reviewer: Reviewer  # who looks at it
    class_number: int | None = Field(ge=0, le=10**7)  # the class that it is about
    ids: list[CandidateId] = Field(max_length=MAX_LEASED)


class UndoMessage(_StrictModel):
    """The withdrawal of a decision, given by its request id."""

    request_id: Token
    undoes: Token


class DecisionBatch(_StrictModel):
    """Decisions in the order in which they were made."""

    store: Token  # another review may be served at the same address by now
    client: Token  # the browser window
    reviewer: Reviewer
    actions: list[DecisionMessage | UndoMessage] = Field(min_length=1, max_length=MAX_ACTIONS)
