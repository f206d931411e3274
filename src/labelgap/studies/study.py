"""A study: a folder of runs that are compared, listed in ``study.json``."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from labelgap.core.errors import RunError
from labelgap.core.files import write_json
from labelgap.core.manifest import check_files, write_manifest
from labelgap.core.stored import read_json
from labelgap.training import Run, open_run
from labelgap.training.config import CONFIG_FILE

FILE: Final = "study.json"
FORMAT: Final = 1
_FOLDER: Final = r"^[^./\\\x00-\x1f\x7f-\x9f][^/\\\x00-\x1f\x7f-\x9f]*$"
"""Not hidden, not a path, and shown as it is."""
_STRICT: Final = ConfigDict(extra="forbid", strict=True)


@dataclass(frozen=True)
class StudyMember:
    """One run of a study.

    Attributes:
        label: its name in tables and figures.
        folder: of the run: a name in the study's folder.
        extra_labels: whether it saw labels that the others did not; reports list such a run separately.
    """

    __pydantic_config__ = _STRICT

    label: Annotated[str, StringConstraints(min_length=1, max_length=1000)]
    folder: Annotated[str, StringConstraints(pattern=_FOLDER, max_length=255)]
    extra_labels: bool = False


class _StoredStudy(BaseModel):
    """``study.json``."""

    model_config = _STRICT

    format: Literal[1]
    title: Annotated[str, StringConstraints(max_length=10_000)]
    members: Annotated[tuple[StudyMember, ...], Field(min_length=1, max_length=1000)]

    @model_validator(mode="after")
    def _different(self) -> _StoredStudy:
        for names in ([member.label for member in self.members], [member.folder for member in self.members]):
            if len(set(names)) < len(names):
                raise ValueError("two members have the same name")
        return self


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
        return open_run(self.folder(member))

    def folder(self, member: StudyMember) -> Path:
        """Return the folder of a member; ``RunError`` where it is a link out of the study."""
        folder = self.path / member.folder
        if not Path(os.path.realpath(folder)).is_relative_to(self.path.resolve()):  # resolve raises on a loop
            raise RunError(f"{folder} leads out of the study: {FILE} names runs inside its folder only.")
        return folder

    @property
    def runs(self) -> list[tuple[StudyMember, Run]]:
        """Every member with its run."""
        return [(member, self.run(member)) for member in self.members]

    def write(self) -> None:
        """Write ``study.json`` and the manifest; every run has its own."""
        members = [asdict(member) for member in self.members]
        write_json(self.path / FILE, {"format": FORMAT, "title": self.title, "members": members})
        write_manifest(self.path, [FILE])


def open_study(path: str | os.PathLike[str]) -> Study:
    """Open the folder of a study."""
    folder = Path(path)
    if not (folder / FILE).is_file():
        raise RunError(f"{folder} is not a study: it has no {FILE}.")
    check_files(folder, [FILE])
    stored = read_json(folder / FILE, _StoredStudy, format=FORMAT)
    return Study(folder, stored.title, stored.members)


def study_of_runs(path: str | os.PathLike[str]) -> Study | None:
    """Return the runs of a folder as a study, each named by its folder; None where there are fewer than two.

    Nothing is written. The runs of a series are compared so: ``labelgap train … --out runs/delta/0.2``, and so on.
    """
    folder = Path(path)
    names = sorted(file.parent.name for file in folder.glob(f"*/{CONFIG_FILE}"))
    members = [StudyMember(name, name) for name in names if re.match(_FOLDER, name)]
    return Study(folder, f"The runs of {folder.resolve().name}", members) if len(members) > 1 else None
