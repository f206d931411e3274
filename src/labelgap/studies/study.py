"""The folder of a study: the document of its results, the tables beside it, its lock; and ``study.json``."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, Self, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, create_model

from labelgap.core.errors import RunError
from labelgap.core.files import remove_file, remove_partials, write_json
from labelgap.core.lock import lock_folder
from labelgap.core.manifest import MANIFEST_FILE, check_files, write_manifest
from labelgap.core.stored import read_json, reading
from labelgap.core.text import quote_formulas
from labelgap.core.trust import refuse_links
from labelgap.training.config import CONFIG_FILE

if TYPE_CHECKING:
    from labelgap.training import Run

FILE: Final = "study.json"
FORMAT: Final = 1
STRICT: Final = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
_FOLDER: Final = r"^[^./\\\x00-\x1f\x7f-\x9f][^/\\\x00-\x1f\x7f-\x9f]*$"  # not hidden, not a path, and shown as it is

Count = Annotated[int, Field(ge=0, le=10**12)]
Share = Annotated[float, Field(ge=0, le=1)]
Seconds = Annotated[float, Field(ge=0, le=1e12)]
Text = Annotated[str, StringConstraints(max_length=10_000)]


class Stored:
    """A part of a document: its annotations are checked strictly when it is read."""

    __pydantic_config__ = STRICT


@dataclass(frozen=True)
class Document:
    """The results of a study, which its folder holds as JSON: a frozen dataclass, checked when it is read."""

    FILE: ClassVar[str]
    KIND: ClassVar[str]
    REMEDY: ClassVar[str] = ""
    NOT_STORED: ClassVar[frozenset[str]] = frozenset({"path"})
    DERIVED: ClassVar[frozenset[str]] = frozenset()  # what the document has for its readers beside the fields

    path: Path

    @classmethod
    def is_in(cls, folder: Path) -> bool:
        """Return whether a folder holds such a document."""
        return (folder / cls.FILE).is_file()

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Read the folder; the digest of the document is compared with the manifest."""
        folder, file = Path(path), Path(path) / cls.FILE
        if not cls.is_in(folder):
            raise RunError(f"{folder} is not {cls.KIND}: it has no {cls.FILE}.")
        check_files(folder, [cls.FILE])
        model = _stored_model(cls)  # type: ignore[arg-type]  # a class is hashable
        stored = read_json(file, model, format=FORMAT, remedy=cls.REMEDY)
        names = stored.model_fields_set - cls.DERIVED - {"format"}
        found = cls(folder, **{name: getattr(stored, name) for name in names})
        with reading(file, cls.REMEDY):
            found.check()
        return found

    def check(self) -> None:
        """Raise ``ValueError`` where values that were read do not agree."""

    def as_json(self) -> dict[str, Any]:
        """Return what is stored."""
        return {"format": FORMAT} | {name: each for name, each in asdict(self).items() if name not in self.NOT_STORED}

    def write(self) -> None:
        """Write the document and the manifest; what else a study has beside it, its own class writes."""
        with self.writing():
            pass

    @contextmanager
    def writing(self, names: Iterable[str] = (), *, finished: bool = True) -> Iterator[None]:
        """Write the document, and in the block other files; the manifest that lists them follows, if ``finished``."""
        remove_file(self.path / MANIFEST_FILE)
        write_json(self.path / self.FILE, self.as_json())
        yield
        if finished:
            write_manifest(self.path, [self.FILE, *names])


@cache
def _stored_model(cls: Any) -> type[BaseModel]:
    hints, stored = get_type_hints(cls, include_extras=True), dict[str, Any](format=(Literal[1], ...))
    stored |= dict.fromkeys(cls.DERIVED, (Any, None))
    for each in fields(cls):
        if each.name not in cls.NOT_STORED:
            required = each.default is MISSING and each.default_factory is MISSING
            stored[each.name] = (hints[each.name], ... if required else None)
    return create_model(cls.__name__, __config__=STRICT, **stored)


@contextmanager
def study_folder(folder: Path, purpose: str, what: str, known: Iterable[str]) -> Iterator[None]:
    """Lock the folder of a study for a ``purpose``, after ``check_contents``, and remove what a killed process left."""
    with lock_folder(folder, purpose):
        check_contents(folder, what, known)
        remove_partials(folder)
        yield


def check_contents(folder: Path, what: str, known: Iterable[str]) -> None:
    """Refuse a folder with links out of it, and one that holds something else than ``what``, none of ``known``."""
    other = folder.is_dir() and any(not path.name.startswith(".") for path in folder.iterdir())
    if other and not any(next(folder.glob(name), None) for name in known):
        raise RunError(f"{folder} holds something else than {what}: choose another --out.")
    refuse_links(folder)


def csv_text(header: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    """Return a table as CSV, in which a spreadsheet calculates nothing."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(quote_formulas(row) for row in (header, *rows))
    return text.getvalue()


def csv_cell(value: object) -> object:
    """Return a value as a cell: numbers with six digits, None as blank."""
    if isinstance(value, bool):
        return int(value)
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else value


@dataclass(frozen=True)
class StudyMember(Stored):
    """One run of a study."""

    label: Annotated[str, StringConstraints(min_length=1, max_length=1000)]  # its name in tables and figures
    folder: Annotated[str, StringConstraints(pattern=_FOLDER, max_length=255)]  # a name in the study's folder
    extra_labels: bool = False  # whether it saw labels that the others did not; reports list such a run separately


def check_members(members: Iterable[StudyMember]) -> None:
    """Raise ``ValueError`` where two members have the same name."""
    for names in zip(*((member.label, member.folder) for member in members), strict=True):
        if len(set(names)) < len(names):
            raise ValueError("two members have the same name")


@dataclass(frozen=True)
class Study(Document):
    """Runs that are compared, in the order of the report: a title, which is their question, and the members."""

    FILE = FILE
    KIND = "a study"

    title: Text
    members: Annotated[Sequence[StudyMember], Field(min_length=1, max_length=1000)]

    def check(self) -> None:
        """Refuse two members of one name."""
        check_members(self.members)

    def run(self, member: StudyMember) -> Run:
        """Open the run of a member."""
        from labelgap.training import open_run

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


open_study = Study.open


def study_of_runs(path: str | os.PathLike[str]) -> Study | None:
    """Return the runs of a folder as a study, each named by its folder; None where there are fewer than two."""
    folder = Path(path)
    names = sorted(file.parent.name for file in folder.glob(f"*/{CONFIG_FILE}"))
    members = tuple(StudyMember(name, name) for name in names if re.match(_FOLDER, name))
    return Study(folder, f"The runs of {folder.resolve().name}", members) if len(members) > 1 else None
