"""The events of a review: decisions, undos, and what the store answers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, NamedTuple

from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN

__all__ = ["ANSWER_TEXT", "Decision", "DecisionEvent", "DecisionOutcome", "LabelKey", "Undo"]

ANSWER_TEXT: Final = {PRESENT: "yes", ABSENT: "no", UNKNOWN: "can't tell"}


class LabelKey(NamedTuple):
    """The label that a decision is about: one class of one image."""

    split: str
    image: str
    class_name: str


@dataclass(frozen=True)
class Decision:
    """What a reviewer answers about a label.

    Attributes:
        key: the label.
        value: PRESENT, ABSENT, or UNKNOWN for "can't tell".
        request_id: unique, so that a decision that is sent twice is stored once.
        base_version: id of the event that was in force when the reviewer decided, as far as the page knew; 0 for none.
        kind: why the label was asked for: missing, wrong or random; "other" when it is not a candidate.
        score: the model's probability at that time.
    """

    key: LabelKey
    value: int
    request_id: str
    base_version: int = 0
    kind: str = "other"
    score: float | None = None


@dataclass(frozen=True)
class Undo:
    """The withdrawal of a decision, given by the id of its event or by its request id."""

    target: int | str
    request_id: str


@dataclass(frozen=True)
class DecisionEvent:
    """A stored decision or undo; see ``Decision``.

    An undo has no value. ``accepted`` is False for a decision that lost a conflict.
    """

    id: int
    time: datetime
    reviewer: str
    key: LabelKey
    value: int | None
    kind: str
    score: float | None
    undoes: int | None
    accepted: bool
    client: str
    request_id: str


@dataclass(frozen=True)
class DecisionOutcome:
    """What the store did with a decision or an undo.

    Attributes:
        request_id: of the decision or undo.
        status: "accepted"; "conflict": stored but not in force, another reviewer decided otherwise in the meantime;
            "nothing_to_undo".
        key: the label, when there is one.
        current: the event that is now in force for the label.
    """

    request_id: str
    status: Literal["accepted", "conflict", "nothing_to_undo"]
    key: LabelKey | None
    current: DecisionEvent | None
