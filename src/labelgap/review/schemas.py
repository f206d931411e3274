"""What the page sends, checked: nothing but these fields, of these types, within these bounds."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from labelgap.labels.codes import PRESENT, UNKNOWN

__all__ = ["CandidateId", "DecisionBatch", "DecisionMessage", "MAX_ACTIONS", "Reviewer", "Token", "UndoMessage"]

MAX_ACTIONS: Final = 500
_JOINERS: Final = str.maketrans("", "", "\u200c\u200d")
"""They show nothing themselves, but names in Persian and in many scripts of India are not spelled without them."""


def _printable(text: str) -> str:
    text = " ".join(text.split())
    shown = text.translate(_JOINERS)
    if not shown.strip() or not shown.isprintable():
        raise ValueError("a name has letters that can be shown")
    return text


CandidateId = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
Token = Annotated[str, Field(pattern=r"^[0-9a-zA-Z-]{8,64}$")]
Reviewer = Annotated[str, Field(min_length=1, max_length=80), AfterValidator(_printable)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class DecisionMessage(_Strict):
    """A decision: 1 there, 0 not there, -1 can't tell.

    Attributes:
        request: its own name.
        id: of the candidate.
        value: what was said.
        saw: the event that stood for it when it was made.
    """

    request: Token
    id: CandidateId
    value: int = Field(ge=UNKNOWN, le=PRESENT)
    saw: int = Field(ge=0, le=2**53)


class UndoMessage(_Strict):
    """A decision taken back.

    Attributes:
        request: its own name.
        undoes: the request of the decision.
    """

    request: Token
    undoes: Token


class DecisionBatch(_Strict):
    """Decisions in the order in which they were made.

    Attributes:
        store: of which review; another one may be served at the same address by now.
        client: from which window.
        reviewer: by whom.
        actions: what was done.
    """

    store: Token
    client: Token
    reviewer: Reviewer
    actions: list[DecisionMessage | UndoMessage] = Field(min_length=1, max_length=MAX_ACTIONS)
