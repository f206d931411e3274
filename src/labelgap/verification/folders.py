"""``verify``: whether every file of a run, a study or another result is as written, and can be read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import starmap
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from labelgap.audit.candidates import FILE as CANDIDATES
from labelgap.audit.candidates import REVIEW_FILE, read_candidates, read_metadata, read_review_file
from labelgap.core.errors import InputError, LabelGapError, RunError, describe_missing_path
from labelgap.core.files import is_partial
from labelgap.core.manifest import MANIFEST_FILE, replacing, verify_folder, write_manifest
from labelgap.core.stored import damaged, read_table
from labelgap.core.tensors import read_shapes
from labelgap.core.trust import (
    is_class_path,
    is_named,
    is_trusted,
    leaves_folder,
    outside_links,
    refuse_links,
    sign_file,
)
from labelgap.data.addresses import is_url
from labelgap.data.parts import DESCRIPTION, PartFolder, check_parts
from labelgap.data.readers.recipe import Recipe
from labelgap.labels import Revisions
from labelgap.models.info import NO_WEIGHTS
from labelgap.models.registry import BACKBONES
from labelgap.review.database import FILE as DECISIONS
from labelgap.review.store import read_decisions
from labelgap.studies.compare.results import HEADS_FOLDER, TABLE, TRIALS, Comparison
from labelgap.studies.study import Study, open_study
from labelgap.training.config import CONFIG_FILE, INITIAL_WEIGHTS, RunConfig, read_config
from labelgap.training.history import METRICS_FILE, read_history
from labelgap.training.run_files import (
    BEST,
    DATA_FILE,
    MAX_FOREIGN_SIZE,
    PREDICTIONS_FILE,
    REVISIONS_FILE,
    RUN_FILES,
    TRACE_FILE,
    read_data_identity,
    read_trace,
)

Kind = str  # of a folder: one of ``_KINDS``
Reader = tuple[str, Callable[[], object]]

_KINDS: Final[dict[Kind, tuple[tuple[str, ...], str]]] = {
    "comparison": ((Comparison.FILE, TABLE, TRIALS), "studies.compare.results.Comparison"),
    "linear evaluation": (
        ("linear_eval.json", "linear_eval.csv", "head.safetensors"),
        "studies.linear_eval.LinearEvaluation",
    ),
    "reproduction": (("reproduce.json", "results.csv"), "studies.reproduce.results.Reproduction"),
    "sweep": (("sweep.json", "trials.csv"), "studies.sweep.results.Sweep"),
    "training shares": (("shares.json", "shares.csv"), "studies.shares.ShareComparison"),
    "data sets": (("datasets.json",), "studies.datasets.DatasetComparison"),
    "study": ((Study.FILE,), "studies.study.Study"),
    "run": (RUN_FILES, "training.config.read_config"),
    "review": ((CANDIDATES,), "audit.candidates.read_review_file"),
    "parts": ((DESCRIPTION,), ""),
}
"""The files that the manifest of a finished folder lists from the beginning, as far as they exist; what opens it.

It is imported where there is such a folder: a run, an audit and a study are verified without PyTorch.
"""
_TRIALS_DATABASE: Final = "sweep.sqlite"
_DOCUMENTS: Final = {REVIEW_FILE if kind == "review" else files[0]: kind for kind, (files, _) in _KINDS.items()}
_SIGNED: Final[dict[Kind, str]] = {"run": CONFIG_FILE, "review": REVIEW_FILE}
"""The documents that name something, by the kind of the folder."""
_STATES: Final = {
    "changed": "not as it was written: its digest differs from manifest.json",
    "missing": "missing",
    "refused": "larger than a file of its kind can be, full of holes, or not readable",
}
_UNLISTED: Final = "not in manifest.json, which lists it in a finished folder"
_LEFT: Final = "left by a killed process: the next command that writes to the folder removes it"
_NO_MANIFEST: Final = "missing: changes of the other files cannot be noticed (verify --accept writes it)"


@dataclass(frozen=True)
class FileCheck:
    """A file by its name relative to the folder, and what is wrong with it; "" where nothing is."""

    name: str
    problem: str = ""


@dataclass(frozen=True)
class Verification:
    """What became of a folder."""

    path: Path
    kind: Kind
    files: tuple[FileCheck, ...]  # what labelgap wrote, also the runs in it, and what does not belong there
    finished: bool  # whether there are digests to compare with; without them files are only read

    @property
    def problems(self) -> tuple[FileCheck, ...]:
        """The files with which something is wrong."""
        return tuple(file for file in self.files if file.problem)

    @property
    def intact(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def verify_run(path: str | os.PathLike[str]) -> Verification:
    """Compare the files of a run, a study, a review or another result, and of all runs in it, with their digests.

    Each is read as well.
    """
    folder = Path(path)
    if is_url(os.fspath(path)) or (kind := _kind(folder)) == "parts":
        problems, finished = check_parts(PartFolder(os.fspath(path)))
        return Verification(folder, "parts", tuple(starmap(FileCheck, sorted(problems.items()))), finished)
    found = _compare_digests(folder, kind)
    for name, read in _readers(folder, kind):
        try:
            if not found.setdefault(name, ""):
                read()
        except LabelGapError as error:
            found[name] = "" if str(error).startswith(str(folder / MANIFEST_FILE)) else str(error)
    found |= dict(_strays(folder, kind))
    files = [FileCheck(name, problem) for name, problem in sorted(found.items())]
    finished = (folder / MANIFEST_FILE).exists()
    for name, member in _members(folder, kind):
        try:
            part = verify_run(member())
        except RunError as error:
            files.append(FileCheck(name, str(error)))
        else:
            files += [FileCheck(f"{name}/{file.name}", file.problem) for file in part.files]
            finished = finished and part.finished
    return Verification(folder, kind, tuple(files), finished)


def accept_changes(path: str | os.PathLike[str]) -> None:
    """Write the manifest of a finished folder again, and those of the results in it, from the files as they are.

    An unfinished run has none: it is refused, and among the tables of papers left as it is, to be resumed.
    """
    folder = Path(path)
    kind = _kind(folder)
    if kind == "parts":
        raise RunError(f"{folder}: parts are not changed on purpose. Remove them, and run their command again.")
    if _is_unfinished_run(folder, kind):
        raise RunError(f"{folder} is not finished, so it has no {MANIFEST_FILE}. Resume it with --resume.")
    from labelgap.reporting.method_table import FOLDER
    from labelgap.reporting.model_card import MODEL_CARD_FILE
    from labelgap.reporting.page import REPORT_FILE

    added = (REVIEW_FILE, CANDIDATES, REPORT_FILE, MODEL_CARD_FILE, _TRIALS_DATABASE, *_head_files(folder))
    added += tuple(f"{FOLDER}/{path.name}" for path in (folder / FOLDER).glob("*"))
    write_manifest(folder, (*_KINDS[kind][0], *added))
    for member in (member() for _, member in _members(folder, kind)):
        if kind != "reproduction" or not _is_unfinished_run(member, _kind(member)):
            accept_changes(member)


def trust_folder(path: str | os.PathLike[str]) -> list[str]:
    """Sign the documents of a folder that somebody else made, and return what they name, which is used from now on."""
    named, folders = named_by(path), _results(Path(path))
    for folder, _ in folders:
        refuse_links(folder)
    for folder, document in folders:
        if document:
            with replacing(folder, [document]):
                sign_file(folder / document)
    return named


def foreign_names(path: str | os.PathLike[str]) -> list[str]:
    """Return what the documents of a folder name that this user has neither made nor signed."""
    named = []
    for folder, document in _results(Path(path)):
        with suppress(RunError):  # damage, which verify tells
            named += _names(folder, document) if document and not is_trusted(folder / document) else []
    return named


def named_by(path: str | os.PathLike[str]) -> list[str]:
    """Return the data, classes, weights and links that the documents of a folder name."""
    return [each for folder, document in _results(Path(path)) if document for each in _names(folder, document)]


def _results(folder: Path) -> list[tuple[Path, str]]:
    """Return the results in a folder, then itself, each with its document that names something; "" where none does."""
    kind = _kind(folder)
    members = [each for _, member in _members(folder, kind) for each in _results(member())]
    return [*members, (folder, _SIGNED.get(kind, ""))]


def _names(folder: Path, document: str) -> list[str]:
    config = read_config(folder) if document == CONFIG_FILE else None
    recipe = config.data if config is not None else read_review_file(folder).data
    named = [f"the data {each}" for each in (Recipe.checked(recipe).paths if recipe else ())]
    if config is not None:
        named += [f"the class {each}" for each in (config.method, config.backbone) if is_class_path(each)]
        named += [f"the weights {config.weights}"] if config.weights not in (None, NO_WEIGHTS) else []
        large = config.largest_size > MAX_FOREIGN_SIZE
        named += [f"images of {config.largest_size:,} pixels a side"] if large else []
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
    if kind == "sweep":
        parts = (folder / name for name in ("auto", "best"))
        return [(part.name, partial(Path, part)) for part in parts if part.exists()]
    if kind in ("reproduction", "training shares", "data sets"):
        below = "*" if kind == "data sets" else "*/*"
        found = sorted({path.parent for name in _DOCUMENTS for path in folder.glob(f"{below}/{name}")})
        return [(path.relative_to(folder).as_posix(), partial(Path, path)) for path in found]
    if kind == "study":
        with suppress(RunError):
            study = open_study(folder)
            return [(member.folder, partial(study.folder, member)) for member in study.members]
    return []


def _compare_digests(folder: Path, kind: Kind) -> dict[str, str]:
    if not (folder / MANIFEST_FILE).exists():
        finished = kind in ("study", "comparison", "data sets", "linear evaluation", "training shares")
        finished = finished or (kind == "run" and bool(_run_summary(folder)))
        return {MANIFEST_FILE: _NO_MANIFEST} if finished else {}
    try:
        found = {name: _STATES.get(state, "") for name, state in verify_folder(folder).items()}
        unlisted = (name for name in _KINDS[kind][0] if name not in found and (folder / name).exists())
        return found | dict.fromkeys(unlisted, _UNLISTED)
    except RunError as error:
        return {MANIFEST_FILE: str(error)}


def _run_summary(folder: Path) -> Mapping[str, Any]:
    """Return what a finished run has recorded at its end; empty where it is not finished, or damaged."""
    with suppress(RunError):
        return read_history(folder, read_config(folder).classes)[1] or {}
    return {}


def _is_unfinished_run(folder: Path, kind: Kind) -> bool:
    return kind == "run" and not (folder / MANIFEST_FILE).exists() and not _run_summary(folder)


def _strays(folder: Path, kind: Kind) -> Iterator[tuple[str, str]]:
    """Yield what does not belong into a folder: temporary files, and links that lead out of it."""
    summary = _run_summary(folder) if kind == "run" else {"finished": True}
    resumable = not summary or bool(summary.get("interrupted"))  # it keeps what a resumed run needs
    members = [folder / name for name, _ in _members(folder, kind)]
    for path in (path for path in sorted(folder.rglob("*")) if not any(map(path.is_relative_to, members))):
        name = path.relative_to(folder).as_posix()
        if leaves_folder(path, folder) and not is_named(folder):
            yield name, f"a link out of the folder, to {path.readlink()}"
        elif is_partial(path.name) or (".previous." in path.name and not resumable):
            yield name, _LEFT


def _readers(folder: Path, kind: Kind) -> Iterator[Reader]:
    yield next(name for name, each in _DOCUMENTS.items() if each == kind), partial(_open, folder, kind)
    if kind == "run":
        yield from _run_readers(folder)
    elif kind == "comparison":
        yield from ((name, partial(_load_head, folder / name)) for name in _head_files(folder))
    elif kind == "sweep" and (folder / _TRIALS_DATABASE).exists() and find_spec("optuna"):
        yield _TRIALS_DATABASE, partial(_check_trials, folder / _TRIALS_DATABASE)
    elif kind == "linear evaluation":
        yield _KINDS[kind][0][2], partial(read_shapes, folder / _KINDS[kind][0][2])
    if (folder / CANDIDATES).exists():
        yield CANDIDATES, lambda: (read_metadata(folder / CANDIDATES), read_candidates(folder / CANDIDATES))
    if (folder / DECISIONS).exists():
        yield DECISIONS, partial(read_decisions, folder)


def _open(folder: Path, kind: Kind) -> object:
    module, _, name = _KINDS[kind][1].rpartition(".")
    opener = getattr(import_module(f"labelgap.{module}"), name)
    return getattr(opener, "open", opener)(folder)


def _load_head(path: Path) -> object:
    from labelgap.studies.compare.heads import StoredHead

    return StoredHead.load(path)


def _check_trials(path: Path) -> None:
    from labelgap.studies.sweep.trial_queue import check_storage

    check_storage(path)


def _run_readers(folder: Path) -> Iterator[Reader]:
    try:
        config = read_config(folder)
    except RunError:
        return  # the other files are read by what it says
    scores = {f"score.{name}": pa.float32() for name in config.classes}
    predicted = {"image": pa.string(), "split": pa.string(), **scores}
    readers: dict[str, Callable[[], object]] = {
        METRICS_FILE: partial(read_history, folder, config.classes),
        BEST: partial(_check_weights, folder, config),
        INITIAL_WEIGHTS: partial(read_shapes, folder / INITIAL_WEIGHTS),
        TRACE_FILE: partial(read_trace, folder),
        REVISIONS_FILE: partial(Revisions.from_parquet, folder / REVISIONS_FILE),
        PREDICTIONS_FILE: partial(read_table, folder / PREDICTIONS_FILE, predicted),
        DATA_FILE: partial(read_data_identity, folder),
    }
    yield from ((name, read) for name, read in readers.items() if (folder / name).exists())


def _check_weights(folder: Path, config: RunConfig) -> None:
    """Compare the head with the classes and the backbone of the run; PyTorch is imported for other networks alone."""
    shapes, classes = read_shapes(folder / BEST), len(config.classes)
    facts = BACKBONES.get(config.backbone).value.facts if config.backbone in BACKBONES else None
    head = shapes.get("head.weight", (0, 0))
    if head != (classes, facts[1] if facts else head[-1]) or shapes.get("head.bias") != (classes,):
        raise damaged(folder / BEST, f"it has no head of the {classes:,} classes of {CONFIG_FILE}")
    if facts is None and any(name.startswith("backbone.") for name in shapes):
        from labelgap.training.checkpoint import read_weights
        from labelgap.training.network import check_weights

        with suppress(InputError):  # a package that is not installed here
            check_weights(config, None, read_weights(folder), folder / BEST, ())


def _head_files(folder: Path) -> list[str]:
    return [f"{HEADS_FOLDER}/{path.name}" for path in sorted((folder / HEADS_FOLDER).glob("*.safetensors"))]
