"""What happens in a review, one thing at a time: decisions, what is taken back, and what becomes of them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from labelgap.review.label_key import LabelKey

__all__ = ["Decision", "DecisionEvent", "DecisionOutcome", "Undo"]


@dataclass(frozen=True)
class Decision:
    """What somebody says of a label.

    Attributes:
        entry: which label.
        value: PRESENT, ABSENT, or UNKNOWN for "can't tell".
        request: a name of its own, so that the same decision sent twice is one.
        saw: the event that stood for the label when it was made, as far as its maker knew; 0 for none.
        kind: why it was asked for: missing, wrong or random; "other" where nobody asked.
        score: the model's probability at that time.
    """

    entry: LabelKey
    value: int
    request: str
    saw: int = 0
    kind: str = "other"
    score: float | None = None


@dataclass(frozen=True)
class Undo:
    """Taking a decision back: the number of its event, or its request."""

    of: int | str
    request: str


@dataclass(frozen=True)
class DecisionEvent:
    """A row of the list; see ``Decision``. An undo has no value; ``counts`` is False for a decision made unaware."""

    id: int
    time: datetime
    reviewer: str
    entry: LabelKey
    value: int | None
    kind: str
    score: float | None
    undoes: int | None
    counts: bool
    client: str
    request: str


@dataclass(frozen=True)
class DecisionOutcome:
    """What became of a decision or an undo.

    Attributes:
        request: whose answer this is.
        status: "kept"; "conflict" (kept, but somebody decided otherwise since); "nothing" (there was nothing to undo).
        entry: the label, where there is one.
        standing: what stands for it now.
    """

    request: str
    status: Literal["kept", "conflict", "nothing"]
    entry: LabelKey | None
    standing: DecisionEvent | None
