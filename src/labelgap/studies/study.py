"""A study: a folder of runs that are compared, listed in ``study.json``."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from labelgap.core.errors import RunError
from labelgap.core.files import write_json
from labelgap.training import Run, open_run

__all__ = ["Study", "StudyMember", "open_study"]

FILE = "study.json"
FORMAT = 1


@dataclass(frozen=True)
class StudyMember:
    """One run of a study.

    Attributes:
        label: its name in tables and figures.
        folder: of the run, relative to the study's.
        extra_labels: whether it saw labels that the others did not; reports list such a run separately.
    """

    label: str
    folder: str
    extra_labels: bool = False


class Study:
    """Runs that are compared, in the order of the report.

    Attributes:
        path: the folder.
        title: the question of the study.
        members: its runs.
    """

    def __init__(self, path: str | os.PathLike[str], title: str, members: Iterable[StudyMember]) -> None:
        self.path = Path(path)
        self.title = title
        self.members = tuple(members)

    def run(self, member: StudyMember) -> Run:
        """Open the run of a member."""
        return open_run(self.path / member.folder)

    @property
    def runs(self) -> list[tuple[StudyMember, Run]]:
        """Every member with its run."""
        return [(member, self.run(member)) for member in self.members]

    def write(self) -> None:
        """Write ``study.json``."""
        members = [asdict(member) for member in self.members]
        write_json(self.path / FILE, {"format": FORMAT, "title": self.title, "members": members})


def open_study(path: str | os.PathLike[str]) -> Study:
    """Open the folder of a study."""
    folder = Path(path)
    try:
        stored = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(f"{folder} is not a study: it has no {FILE}.") from None
    except json.JSONDecodeError as error:
        raise RunError(f"{folder / FILE} is damaged ({error}).") from None
    if stored.get("format") != FORMAT:
        raise RunError(f"{folder} is a study of format {stored.get('format')}; this version reads format {FORMAT}.")
    return Study(folder, stored["title"], [StudyMember(**member) for member in stored["members"]])
