"""The changes that make a table usable: each with its line, and in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ChangeKind = Literal["left_out", "merged", "unknown", "split", "columns", "classes", "copies"]


@dataclass(frozen=True, order=True)
class Change:
    """One change of a table.

    Attributes:
        line: the line of the original file; its row, in files without lines.
        kind: "left_out" (a row), "merged" (rows of one image), "unknown" (a label that is now), "split" (a spelling),
            "columns" (left out or merged), "classes" (renamed), or "copies": images with the same content, which are
            only named.
        text: what was done and why.
    """

    line: int
    kind: ChangeKind
    text: str
