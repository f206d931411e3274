"""A row of a table that is being cleaned: its image, its split and its known labels."""

from __future__ import annotations

from dataclasses import dataclass, field

from labelgap.labels.io.cells import Cell


@dataclass
class TableRow:
    """One row.

    Attributes:
        line: in the file.
        cells: as the file has them.
        image: the name of the image.
        labels: class → PRESENT or ABSENT, of the known labels.
        conflicts: classes that are present and absent: they are unknown, whatever other rows say.
    """

    line: int
    cells: list[Cell]
    image: str
    labels: dict[str, int] = field(default_factory=dict)
    conflicts: set[str] = field(default_factory=set)

    def add_label(self, name: str, state: int) -> bool:
        """Add a known label; return whether it agrees with what is known. If not, the label becomes unknown."""
        if name in self.conflicts or self.labels.setdefault(name, state) == state:
            return True
        del self.labels[name]
        self.conflicts.add(name)
        return False
