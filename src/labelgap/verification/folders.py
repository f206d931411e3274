"""``verify``: whether every file of a run, a study, a sweep or another result is as written, and can be read.

Nothing is written, no class or file that a folder names is loaded, and nothing is downloaded. ``accept_changes`` is for
files that were changed on purpose, ``trust_folder`` for a folder that somebody else made.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from labelgap.audit.candidates import FILE as CANDIDATES
from labelgap.audit.candidates import REVIEW_FILE
from labelgap.core.class_path import is_class_path
from labelgap.core.errors import LabelGapError, RunError, describe_missing_path
from labelgap.core.files import is_partial
from labelgap.core.manifest import MANIFEST_FILE, replacing, verify_folder, write_manifest
from labelgap.core.trust import is_named, is_trusted, leaves_folder, outside_links, refuse_links, sign_file
from labelgap.data.readers.recipe import Recipe
from labelgap.models.weight_files import NO_WEIGHTS
from labelgap.reporting.model_card import MODEL_CARD_FILE
from labelgap.reporting.page import REPORT_FILE
from labelgap.review.folder import open_review_folder
from labelgap.studies import open_study
from labelgap.studies.compare.results import FILE as COMPARISON
from labelgap.studies.compare.results import TABLE, TRIALS
from labelgap.studies.linear_eval import FILES as LINEAR_EVAL
from labelgap.studies.reproduce.results import FILES as REPRODUCTION
from labelgap.studies.shares import FILES as SHARES
from labelgap.studies.study import FILE as STUDY
from labelgap.studies.sweep.results import AUTO_FOLDER, BEST_FOLDER
from labelgap.studies.sweep.results import FILES as SWEEP
from labelgap.training.config import CONFIG_FILE, read_config
from labelgap.training.history import read_history
from labelgap.training.run_folder import RUN_FILES
from labelgap.verification.readers import Kind, head_files, read_functions

_FILES: Final[dict[Kind, tuple[str, ...]]] = {
    "comparison": (COMPARISON, TABLE, TRIALS),
    "linear evaluation": LINEAR_EVAL,
    "reproduction": REPRODUCTION,
    "sweep": SWEEP,
    "training shares": SHARES,
    "study": (STUDY,),
    "run": RUN_FILES,
    "review": (CANDIDATES,),
}
"""The files that the manifest of a finished folder lists from the beginning, as far as they exist."""
_DOCUMENTS: Final = {REVIEW_FILE if kind == "review" else files[0]: kind for kind, files in _FILES.items()}
_SIGNED: Final[dict[Kind, str]] = {"run": CONFIG_FILE, "review": REVIEW_FILE}
"""The documents that name something, by the kind of the folder."""
_STATES: Final = {"changed": "not as it was written: its digest differs from manifest.json", "missing": "missing"}
_UNLISTED: Final = "not in manifest.json, which lists it in a finished folder"
_LEFT: Final = "left by a killed process: the next command that writes to the folder removes it"
_NO_MANIFEST: Final = "missing: changes of the other files cannot be noticed (verify --accept writes it)"


@dataclass(frozen=True)
class FileCheck:
    """A file of a folder.

    Attributes:
        name: relative to the folder.
        problem: what is wrong with it; "" where nothing is.
    """

    name: str
    problem: str = ""


@dataclass(frozen=True)
class Verification:
    """What became of a folder.

    Attributes:
        path: the folder.
        kind: "run", "study", "comparison", "linear evaluation", "reproduction", "sweep", "training
            shares" or "review".
        files: those that labelgap wrote, also those of the runs in it, and what does not belong there.
        finished: whether there are digests to compare with; without them files are only read.
    """

    path: Path
    kind: Kind
    files: tuple[FileCheck, ...]
    finished: bool

    @property
    def problems(self) -> tuple[FileCheck, ...]:
        """The files with which something is wrong."""
        return tuple(file for file in self.files if file.problem)

    @property
    def intact(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def verify(path: str | os.PathLike[str]) -> Verification:
    """Compare the files of a folder with the digests in ``manifest.json``, and read each.

    Args:
        path: of a run, a study with all its runs, a comparison, a linear evaluation, a sweep with its runs, the
            tables of papers with all that was trained for them, or a review.

    Raises:
        RunError: the folder is nothing of these.
    """
    folder = Path(path)
    kind = _kind(folder)
    found = _compare_digests(folder, kind)
    for name, read in read_functions(folder, kind):
        if not found.get(name):
            found[name] = _problem(folder, read)
    found |= dict(_strays(folder, kind))
    files = [FileCheck(name, problem) for name, problem in sorted(found.items())]
    finished = (folder / MANIFEST_FILE).exists()
    for name, member in _members(folder, kind):
        try:
            part = verify(member())
        except RunError as error:
            files.append(FileCheck(name, str(error)))
        else:
            files += [FileCheck(f"{name}/{file.name}", file.problem) for file in part.files]
            finished = finished and part.finished
    return Verification(folder, kind, tuple(files), finished)


def accept_changes(path: str | os.PathLike[str]) -> None:
    """Write the manifest of a finished folder again, and those of the results in it, from the files as they are.

    An unfinished run has no manifest: among the tables of papers it is left as it is, to be resumed.

    Raises:
        RunError: the folder is an unfinished run, or a study with one; its manifest is as it was.
    """
    folder = Path(path)
    kind = _kind(folder)
    if _is_unfinished_run(folder, kind):
        raise RunError(f"{folder} is not finished, so it has no {MANIFEST_FILE}. Resume it with --resume.")
    added = (REVIEW_FILE, CANDIDATES, REPORT_FILE, MODEL_CARD_FILE, *head_files(folder))
    write_manifest(folder, (*_FILES[kind], *added))
    for member in (member() for _, member in _members(folder, kind)):
        if kind != "reproduction" or not _is_unfinished_run(member, _kind(member)):
            accept_changes(member)


def trust_folder(path: str | os.PathLike[str]) -> list[str]:
    """Sign the documents of a folder that somebody else made, and return what they name, which is used from now on.

    Raises:
        RunError: there are symbolic links that lead out of the folder.
    """
    folder, named = Path(path), named_by(path)
    refuse_links(folder)
    kind = _kind(folder)
    for _, member in _members(folder, kind):
        trust_folder(member())
    if kind in _SIGNED:
        with replacing(folder, [_SIGNED[kind]]):
            sign_file(folder / _SIGNED[kind])
    return named


def foreign_names(path: str | os.PathLike[str]) -> list[str]:
    """Return what the documents of a folder name that this user has neither made nor signed."""
    folder = Path(path)
    kind = _kind(folder)
    named = [each for _, member in _members(folder, kind) for each in foreign_names(member())]
    with suppress(RunError):  # damage, which verify tells
        if kind in _SIGNED and not is_trusted(folder / _SIGNED[kind]):
            named += named_by(folder)
    return named


def named_by(path: str | os.PathLike[str]) -> list[str]:
    """Return the data, classes, weights and links that the documents of a folder name."""
    folder = Path(path)
    kind = _kind(folder)
    named = [each for _, member in _members(folder, kind) for each in named_by(member())]
    if kind not in _SIGNED:
        return named
    config = read_config(folder) if kind == "run" else None
    recipe = config.data if config is not None else open_review_folder(folder).recipe
    named += [f"the data {each}" for each in (Recipe.checked(recipe).paths if recipe else ())]
    if config is not None:
        named += [f"the class {each}" for each in (config.method, config.backbone) if is_class_path(each)]
        named += [f"the weights {config.weights}"] if config.weights not in (None, NO_WEIGHTS) else []
    return [*named, *outside_links(folder)]


def _kind(folder: Path) -> Kind:
    for name, kind in _DOCUMENTS.items():
        if (folder / name).is_file():
            return kind
    if not folder.is_dir():
        raise RunError(f"{folder} is not a folder." if folder.exists() else describe_missing_path(folder))
    if any(folder.glob("*.tar")):
        raise RunError(f"{folder} holds shards: `labelgap shard` again, as they were written, verifies them.")
    raise RunError(f"{folder} is not a run, a study or a review: it has none of {', '.join(_DOCUMENTS)}.")


def _members(folder: Path, kind: Kind) -> list[tuple[str, Callable[[], Path]]]:
    """Return the names of the results that a folder has in it, and functions that return their folders."""
    if kind == "sweep":
        return [(name, partial(Path, folder / name)) for name in (AUTO_FOLDER, BEST_FOLDER) if (folder / name).exists()]
    if kind in ("reproduction", "training shares"):
        found = sorted({path.parent for name in _DOCUMENTS for path in folder.glob(f"*/*/{name}")})
        return [(path.relative_to(folder).as_posix(), partial(Path, path)) for path in found]
    if kind == "study":
        with suppress(RunError):
            study = open_study(folder)
            return [(member.folder, partial(study.folder, member)) for member in study.members]
    return []


def _compare_digests(folder: Path, kind: Kind) -> dict[str, str]:
    """Return every file of the manifest, and what is wrong with it."""
    if not (folder / MANIFEST_FILE).exists():
        finished = kind in ("study", "comparison", "linear evaluation", "training shares") or (
            kind == "run" and _is_finished_run(folder)
        )
        return {MANIFEST_FILE: _NO_MANIFEST} if finished else {}
    try:
        found = {file.name: _STATES.get(file.state, "") for file in verify_folder(folder)}
        unlisted = (name for name in _FILES[kind] if name not in found and (folder / name).exists())
        return found | dict.fromkeys(unlisted, _UNLISTED)
    except RunError as error:
        return {MANIFEST_FILE: str(error)}


def _is_finished_run(folder: Path) -> bool:
    with suppress(RunError):
        return bool(read_history(folder, read_config(folder).classes)[1])
    return False


def _is_unfinished_run(folder: Path, kind: Kind) -> bool:
    return kind == "run" and not (folder / MANIFEST_FILE).exists() and not _is_finished_run(folder)


def _problem(folder: Path, read: Callable[[], object]) -> str:
    """Return why a file cannot be read; "" where it can."""
    try:
        read()
    except LabelGapError as error:
        return "" if str(error).startswith(str(folder / MANIFEST_FILE)) else str(error)
    return ""


def _strays(folder: Path, kind: Kind) -> Iterator[tuple[str, str]]:
    """Yield what does not belong into a folder: temporary files, and links that lead out of it."""
    resumable = kind == "run" and not _is_complete(folder)
    members = [folder / name for name, _ in _members(folder, kind)]
    paths = [path for path in sorted(folder.rglob("*")) if not any(map(path.is_relative_to, members))]
    trusted = is_named(folder)
    for path in paths:
        name = path.relative_to(folder).as_posix()
        if not trusted and leaves_folder(path, folder):
            yield name, f"a link out of the folder, to {path.readlink()}"
        elif is_partial(path.name) or (".previous." in path.name and not resumable):
            yield name, _LEFT


def _is_complete(folder: Path) -> bool:
    """Whether a run is finished and was not interrupted: it keeps nothing that a resumed one needs."""
    with suppress(RunError):
        summary = read_history(folder, read_config(folder).classes)[1]
        return bool(summary) and not summary.get("interrupted")
    return False
