"""Facts that are established while data is read: typed values, which become sentences only where they are shown."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Final, Literal

Topic = Literal["source", "labels", "images", "split", "counts"]
_WORD: Final = re.compile(r"(?<!^)(?=[A-Z])")


class Finding:
    """One fact about data. A subclass is a frozen dataclass whose fields are the names and numbers of the fact.

    A subclass gives ``text``, the sentence with its fields in braces, or defines ``__str__``.

    Example:
        >>> @dataclass(frozen=True)
        ... class RowsSkipped(Finding, topic="labels", text="{count:,} rows are skipped"):
        ...     count: int
        >>> RowsSkipped(3).to_json()
        {'kind': 'rows_skipped', 'topic': 'labels', 'text': '3 rows are skipped', 'count': 3}
    """

    topic: ClassVar[Topic] = "labels"  # what the fact is about; ``labelgap inspect`` groups its lines by it
    text: ClassVar[str] = ""
    warning: ClassVar[bool] = False  # whether it looks wrong, so that a person should see to it

    def __init_subclass__(cls, topic: Topic | None = None, text: str | None = None, warning: bool = False) -> None:
        cls.topic = topic or cls.topic
        cls.text = text or cls.text
        cls.warning = warning or cls.warning

    @property
    def kind(self) -> str:
        """The name of the class in lower case, for machines."""
        return _WORD.sub("_", type(self).__name__).lower()

    def __str__(self) -> str:
        return self.text.format_map(vars(self))

    def to_json(self) -> dict[str, Any]:
        """Return the kind, the topic, the sentence and all fields as plain values."""
        return {"kind": self.kind, "topic": self.topic, "text": str(self), **asdict(self)}  # type: ignore[call-overload]


@dataclass(frozen=True)
class Note(Finding, text="{sentence}"):
    """A fact without names and numbers that code could act on, e.g. how the labels of a format are read."""

    sentence: str
    topic: Topic = "labels"  # type: ignore[misc]


@dataclass(frozen=True)
class Caution(Note, warning=True):
    """A note about something that looks wrong, so that a person should see to it."""
