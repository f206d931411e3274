"""The events of a review: decisions, undos, and what the store answers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, NamedTuple

from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN

ANSWER_TEXT: Final = {PRESENT: "yes", ABSENT: "no", UNKNOWN: "can't tell"}
SECOND: Final = "second"
"""The kind of a second opinion."""
PAGE_PLACES: Final = 10_000
"""A page has fewer candidates than this."""
ASKED: Final = ("missing", "classifier", "random", "wrong", "other", SECOND)
"""The kinds: as what a label was asked for."""
_COPY_MARK: Final = "-copy"
_COPY: Final = re.compile(rf"{_COPY_MARK}[0-9]+\Z")


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
        kind: as what the label was asked for: "missing", "classifier" (to make the classifier better), "random" or
            "wrong"; "second", a second opinion, which is stored and never in force; "other" when it was not asked for.
        score: the model's probability at that time.
        copies: the same label of copies of the image, which get the same answer.
        ranking: number of the ranking that showed it; 0 where none did, or before rankings were stored.
        place: a number that rises with the order in which candidates are shown, see ``place_on_page``; 0 for none.
            People often answer all that they say yes to first, so the order of answers depends on the answers.
    """

    key: LabelKey
    value: int
    request_id: str
    base_version: int = 0
    kind: str = "other"
    score: float | None = None
    copies: tuple[LabelKey, ...] = ()
    ranking: int = 0
    place: int = 0


@dataclass(frozen=True)
class Undo:
    """The withdrawal of a decision, given by the id of its event or by its request id; for all copies of the image."""

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
    ranking: int
    place: int

    @property
    def shown(self) -> int:
        """When it was shown: its place, or just before a page that was made after this event."""
        return self.place or self.id * PAGE_PLACES

    @property
    def is_answer(self) -> bool:
        """Whether somebody looked at an image and answered: no undo, and not the copy of an answer."""
        return self.undoes is None and not self.for_copy

    @property
    def for_copy(self) -> bool:
        """Whether it is about a copy of the image that was shown."""
        return own_request(self.request_id) != self.request_id


def place_on_page(last_event: int, index: int) -> int:
    """Return the place of the candidate with an index on a page that was made after an event; as in ``entries.js``."""
    return last_event * PAGE_PLACES + index + 1


def copy_request(request_id: str, number: int) -> str:
    """Return the request id under which a decision, or its undo, is stored for the n-th copy of the image."""
    return f"{request_id}{_COPY_MARK}{number}"


def own_request(request_id: str) -> str:
    """Return the request id of the decision that a stored one belongs to.

    Example:
        >>> own_request(copy_request("3f2a", 2)), own_request("3f2a")
        ('3f2a', '3f2a')
    """
    return _COPY.sub("", request_id)


@dataclass(frozen=True)
class StoredRanking:
    """A ranking of the open candidates.

    Attributes:
        number: from 1 on.
        time: when it was made.
        aim: of its order; see ``audit.live``.
        model: digest of the heads.
        decisions: how many they have learned from.
        last_event: id of the last event that was taken into account.
    """

    number: int
    time: datetime
    aim: str
    model: str
    decisions: int
    last_event: int


@dataclass(frozen=True)
class AddedClass:
    """A class that a person added during a review."""

    name: str
    time: datetime
    reviewer: str


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
