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


def test_a_finding_is_a_value_a_sentence_and_json() -> None:
    found, more = RowsSkipped(1200, ("a", "b")), MoreRowsSkipped(3, ("a",))
    assert str(found) == "1,200 rows are skipped: a …" and found != MoreRowsSkipped(1200, ("a", "b"))
    assert str(more) == "3 rows are skipped: a … and more" and more.kind == "more_rows_skipped"
    about = {"kind": "rows_skipped", "topic": "images", "text": str(found)}
    assert json.loads(json.dumps(found.to_json())) == {**about, "count": 1200, "names": ["a", "b"]}
    assert str(Note("braces {stay} as they are")) == "braces {stay} as they are" and more.topic == "images"
