"""Findings: typed facts that become sentences where they are shown."""

from __future__ import annotations

import json
from dataclasses import dataclass

from labelgap.core.findings import Finding, Note


@dataclass(frozen=True)
class RowsSkipped(Finding, topic="images", text="{count:,} rows are skipped: {names[0]} …"):
    count: int
    names: tuple[str, ...]


@dataclass(frozen=True)
class MoreRowsSkipped(RowsSkipped):
    def __str__(self) -> str:
        return f"{super().__str__()} and more"


def test_the_sentence_is_made_of_the_fields() -> None:
    found = RowsSkipped(1200, ("a", "b"))
    assert str(found) == "1,200 rows are skipped: a …" and found.topic == "images"
    assert found == RowsSkipped(1200, ("a", "b")) and found != MoreRowsSkipped(1200, ("a", "b"))


def test_a_subclass_inherits_the_topic_and_the_sentence() -> None:
    found = MoreRowsSkipped(3, ("a",))
    assert str(found) == "3 rows are skipped: a … and more" and found.topic == "images"
    assert found.kind == "more_rows_skipped"


def test_json_has_the_fields_and_the_sentence() -> None:
    assert json.loads(json.dumps(RowsSkipped(1, ("a",)).to_json())) == {
        "kind": "rows_skipped",
        "topic": "images",
        "text": "1 rows are skipped: a …",
        "count": 1,
        "names": ["a"],
    }


def test_a_note_is_shown_as_it_is() -> None:
    assert str(Note("braces {stay} as they are")) == "braces {stay} as they are"
