"""One tree of errors, of the root ``LabelGapError``. Each message says what is wrong, where, and the remedy."""

from __future__ import annotations

import difflib
import itertools
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from labelgap.core.text import join_names, pluralize

_MAX_LISTED: Final = 40  # names that a message lists when none is near; a table may have thousands of classes
_MAX_COMPARED: Final = 200  # letters of a name that is compared: the time grows with their square
_MAX_CANDIDATES: Final = 50_000  # names that are compared for the nearest
_MIN_SIMILARITY: Final = 0.7  # of the name of a file, without its suffix, to one that is suggested
_VARIABLE: Final = re.compile(r"'[^']*'|\"[^\"]*\"|\S*[0-9/\\._]\S*")


class LabelGapError(Exception):
    """The root of every error that labelgap raises on purpose."""

    exit_code: ClassVar[int] = 2


class InputError(LabelGapError, ValueError):
    """The user's input cannot be used: a value, a shape, a file."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self.args, self.__dict__)


class RunError(LabelGapError):
    """A run folder cannot be used as asked: it exists already, is of another configuration, or is damaged."""


class UnknownNameError(InputError):
    """An unknown name of some kind; suggests the nearest one with what is said ``about`` it, and ends with ``hint``."""

    def __init__(
        self, kind: str, name: str, known: Iterable[str], hint: str = "", *, about: Mapping[str, str] | None = None
    ) -> None:
        names = sorted(known)
        self.kind, self.name, self.nearest = kind, name, nearest(name, names)
        description = (about or {}).get(self.nearest or "")
        if self.nearest is not None:
            suggestion = f"Did you mean '{self.nearest}'{f' ({description})' if description else ''}?"
        else:
            suggestion = f"There is: {join_names(names, _MAX_LISTED)}." if names else ""
        sentences = [f"there is no {kind} '{name}'.", suggestion, hint]
        super().__init__(" ".join(sentence for sentence in sentences if sentence))


@dataclass(frozen=True, order=True)
class Problem:
    """One problem of a file: its line, and what is wrong there."""

    line: int
    message: str


def merge_repeated(problems: Sequence[Problem]) -> list[Problem]:
    """Return one problem of each message, the first, which says how many more there are."""
    lines: dict[str, list[int]] = {}
    for problem in problems:
        lines.setdefault(problem.message, []).append(problem.line)
    notes = {text: f" (and {len(at) - 1:,} more like it)" if len(at) > 1 else "" for text, at in lines.items()}
    return [Problem(at[0], text + notes[text]) for text, at in lines.items()]


class ProblemsError(InputError):
    """All problems of one file in one error.

    Of more problems than ``shown`` the message lists equal ones once, and some of every kind. ``outcome`` is what was
    not done because of them, ``unit`` what ``Problem.line`` counts ("" leaves it out), ``notes`` what looks wrong as
    well. ``fixable``: whether the file is a table that ``labelgap inspect --fix`` can clean.
    """

    def __init__(
        self,
        path: object,
        problems: Sequence[Problem],
        outcome: str = "nothing was trained",
        shown: int = 20,
        unit: str = "line",
        fixable: bool = False,
        notes: Sequence[str] = (),
    ) -> None:
        self.path, self.fixable, self.problems, self.unit = path, fixable, tuple(sorted(problems)), unit
        count = len(self.problems)
        every = self.problems if count <= shown else merge_repeated(self.problems)
        listed = _some_of_each_kind(every, shown)
        positions = [f"{unit} {problem.line}  " if unit else "" for problem in listed]
        width = max(map(len, positions), default=0)
        lines = [f"{path} cannot be used yet: {pluralize(count, 'problem')}, {outcome}"]
        lines += [f"  {at:<{width}}{problem.message}" for at, problem in zip(positions, listed, strict=True)]
        lines[-1] += _left_out(every, shown)
        lines += [f"  note: {note}" for note in notes[:shown]]
        lines[-1] += _left_out(notes, shown)
        super().__init__("\n".join(lines))


def _left_out(every: Sequence[object], shown: int) -> str:
    return f"          …and {len(every) - shown:,} more" if len(every) > shown else ""


def _some_of_each_kind(problems: Sequence[Problem], count: int) -> list[Problem]:
    """Return ``count`` problems: the first of every kind, then the second; kinds differ beyond names and numbers."""
    seen: Counter[str] = Counter()
    ranks = []
    for number, problem in enumerate(problems):
        seen[kind := _VARIABLE.sub("…", problem.message)] += 1
        ranks.append((seen[kind], number))
    return [problems[number] for number in sorted(number for _, number in sorted(ranks)[:count])]


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name most similar to ``name``, ignoring case, the same letters first; None if none is close."""
    if len(name) > _MAX_COMPARED:
        return None
    spelling: dict[str, str] = {}
    for candidate in itertools.islice(known, _MAX_CANDIDATES):
        if len(candidate) <= _MAX_COMPARED:
            spelling.setdefault(candidate.lower(), candidate)
    lower, letters = name.lower(), sorted(name.lower())
    matches = difflib.get_close_matches(lower, spelling, n=5, cutoff=0.5)
    ranks = [(-difflib.SequenceMatcher(a=near, b=lower).ratio(), sorted(near) != letters, near) for near in matches]
    return spelling[min(ranks)[2]] if ranks else None


def similarity(one: str, other: str) -> float:
    """Return how similar two names are, ignoring case: from 0 to 1, which is equal."""
    return difflib.SequenceMatcher(a=one.lower(), b=other.lower()).ratio()


def nearest_path(path: str | os.PathLike[str]) -> Path | None:
    """Return the existing path most similar to one that does not exist, but hidden ones; None if none is close."""
    parts, names = Path(path).parts, list[str]()
    for count in range(1, len(parts) + 1):
        if os.path.lexists(Path(*parts[:count])):
            continue
        folder = Path(*parts[: count - 1])
        with suppress(OSError), os.scandir(folder) as entries:
            visible = (entry.name for entry in entries if not entry.name.startswith("."))
            names = sorted(itertools.islice(visible, _MAX_CANDIDATES))
        near = nearest(parts[count - 1], names)
        if near is None or similarity(Path(parts[count - 1]).stem, Path(near).stem) < _MIN_SIMILARITY:
            return None
        found = Path(folder, near, *parts[count:])
        return found if os.path.lexists(found) else nearest_path(found)
    return None


def describe_missing_path(path: str | os.PathLike[str]) -> str:
    """Return that a path does not exist, and the nearest one that does; of a link, that it leads nowhere."""
    if Path(path).is_symlink():
        return f"{os.fspath(path)} is a link that leads to nothing, or to itself: {Path(path).readlink()}."
    return f"{os.fspath(path)} does not exist.{suggest_path(path)}"


def suggest_path(path: str | os.PathLike[str]) -> str:
    """Return the nearest path that exists as the last sentence of a message; empty when none is close."""
    near = nearest_path(path)
    return "" if near is None else f" Did you mean {near}?"


def _restored(kind: type[Exception], args: tuple[Any, ...], state: dict[str, Any]) -> Exception:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error
