"""``NAME.provenance.csv``: beside a table that ``labelgap apply`` wrote, who decided which of its labels, and when.

An audit reads it: a label that a person decided does not look wrong, whatever a model says.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from labelgap.core.errors import InputError
from labelgap.core.files import atomic_path
from labelgap.core.text import quote_formulas, truncate_text, unquote_formula
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.labels.revisions import HUMAN_SOURCES, Revision

_COLUMNS: Final = ("image", "split", "class", "before", "after", "source", "author", "time", "epoch", "run")
_STATES: Final = {PRESENT: "present", ABSENT: "absent", UNKNOWN: "unknown"}
_CODES: Final = {text: code for code, text in _STATES.items()}


@dataclass(frozen=True)
class ProvenanceEntry:
    """A label that was decided by a person, or changed by a model.

    Attributes:
        split: of the image.
        revision: image, class, new value, source, author and time or epoch.
        before: code of the observed label.
        run: the folder of the run or review.
    """

    split: str
    revision: Revision
    before: int
    run: str = ""

    @property
    def by_person(self) -> bool:
        """Whether a person decided the label."""
        return self.revision.source in HUMAN_SOURCES


def provenance_path(path: Path) -> Path:
    """Return the path of the list that belongs to a table.

    Example:
        >>> provenance_path(Path("better.csv")).name
        'better.provenance.csv'
    """
    return path.with_name(f"{path.stem}.provenance.csv")


def write_provenance(path: Path, entries: Iterable[ProvenanceEntry]) -> None:
    """Write the list, atomically."""
    with atomic_path(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_COLUMNS)
        for entry in entries:
            revision = entry.revision
            time = "" if revision.time is None else revision.time.isoformat(timespec="seconds")
            epoch = "" if revision.epoch is None else revision.epoch
            states = (_STATES[entry.before], _STATES[revision.value])
            label = (revision.image, entry.split, revision.class_name, *states)
            origin = (revision.source, revision.author or "", time, epoch, entry.run)
            writer.writerow(quote_formulas([*label, *origin]))


def read_provenance(path: Path) -> list[ProvenanceEntry]:
    """Return the entries of a list; none where the file does not exist.

    Raises:
        InputError: it is not a list that labelgap wrote.
    """
    if not path.is_file():
        return []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file, restval="")
            return [_entry(row, path, reader.line_num) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise _unreadable(path, str(error)) from None


def _entry(row: dict[str, str], path: Path, line: int) -> ProvenanceEntry:
    cells = {name: unquote_formula(row.get(name) or "") for name in _COLUMNS}
    try:
        time = datetime.fromisoformat(cells["time"]) if cells["time"] else None
        epoch = int(cells["epoch"]) if cells["epoch"] else None
        value, before = _CODES[cells["after"]], _CODES[cells["before"]]
    except (KeyError, ValueError) as error:
        raise _unreadable(path, f"line {line}: {truncate_text(str(error))}") from None
    author = cells["author"] or None
    revision = Revision(cells["image"], cells["class"], value, cells["source"], epoch=epoch, time=time, author=author)
    return ProvenanceEntry(cells["split"], revision, before, cells["run"])


def _unreadable(path: Path, reason: str) -> InputError:
    return InputError(
        f"{path} is not a list that `labelgap apply` wrote ({reason}). Restore it, or move it away: without it nothing "
        "is known of which labels people decided."
    )
