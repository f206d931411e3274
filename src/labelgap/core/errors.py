"""One tree of errors. Each says what is wrong, where, and the way out.

``LabelGapError`` is the root: catching it catches everything that labelgap raises on purpose. The command line
prints the message without a traceback and leaves with ``exit_code``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

__all__ = ["InputError", "LabelGapError", "Problem", "ProblemsError", "RunError", "UnknownNameError", "nearest"]

_LISTED: Final = 40
"""So many names are written out when none is near; a table may have thousands of classes."""


class LabelGapError(Exception):
    """The root of every error that labelgap raises on purpose."""

    exit_code: ClassVar[int] = 2


class InputError(LabelGapError, ValueError):
    """Something the user gave cannot be used: a value, a shape, a file."""


class RunError(LabelGapError):
    """A run folder cannot be used as asked: it exists already, is of another configuration, or is damaged."""


class UnknownNameError(InputError):
    """A name that nothing bears; the message names the nearest one that exists.

    Args:
        kind: what was looked for, e.g. ``"method"``.
        name: what the user wrote.
        known: the names that exist.
        hint: a closing sentence, e.g. which command lists them all.
        about: a few words about each name, shown with the nearest.

    Example:
        >>> print(UnknownNameError("method", "ll-tc", ["an", "ll-ct"], about={"ll-ct": "temporary correction"}))
        there is no method 'll-tc'. Did you mean 'll-ct' (temporary correction)?
    """

    def __init__(
        self, kind: str, name: str, known: Iterable[str], hint: str = "", *, about: Mapping[str, str] | None = None
    ) -> None:
        names = sorted(known)
        self.kind = kind
        self.name = name
        self.nearest = nearest(name, names)
        sentences = [f"there is no {kind} '{name}'.", _suggestion(self.nearest, names, about or {}), hint]
        super().__init__(" ".join(sentence for sentence in sentences if sentence))

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self.args, self.__dict__)


@dataclass(frozen=True, order=True)
class Problem:
    """One thing that is wrong in a file: where it is, and what it is."""

    line: int
    message: str


class ProblemsError(InputError):
    """Everything that is wrong with one file, told at once.

    Args:
        path: the file.
        problems: all of them, in any order.
        outcome: what did not happen because of them.
        shown: how many lines of problems the message holds; ``problems`` has all.
        unit: what the number of a problem counts: lines, or the rows of a file without lines; "" leaves it out.
    """

    def __init__(
        self,
        path: object,
        problems: Sequence[Problem],
        outcome: str = "nothing was trained",
        shown: int = 20,
        unit: str = "line",
    ) -> None:
        self.path = path
        self.problems = tuple(sorted(problems))
        self.unit = unit
        count = len(self.problems)
        lines = [f"{path} cannot be used yet: {count:,} problem{'s' if count != 1 else ''}, {outcome}"]
        places = [f"{unit} {problem.line}" if unit else "" for problem in self.problems[:shown]]
        width = max(map(len, places), default=0)
        for place, problem in zip(places, self.problems, strict=False):
            lines.append(f"  {place.ljust(width) + '  ' if unit else ''}{problem.message}")
        if count > shown:
            lines[-1] += f"          …and {count - shown:,} more"
        super().__init__("\n".join(lines))

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self.args, self.__dict__)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that looks most like ``name``, whatever its case, or None when none is close.

    Of several that are equally close it is one of the same letters, else the first in alphabetical order.

    Example:
        >>> nearest("ll-tc", ["an", "ll-ct", "role"])
        'll-ct'
        >>> nearest("DOG", ["dot", "Dog"])
        'Dog'
    """
    spelled: dict[str, str] = {}
    for candidate in known:
        spelled.setdefault(candidate.lower(), candidate)
    asked = difflib.SequenceMatcher(b=name.lower())
    matches = difflib.get_close_matches(name.lower(), spelled, n=5, cutoff=0.5)
    letters = sorted(name.lower())
    order = sorted(matches, key=lambda match: (-_likeness(asked, match), sorted(match) != letters, match))
    return spelled[order[0]] if order else None


def _likeness(asked: difflib.SequenceMatcher[str], candidate: str) -> float:
    asked.set_seq1(candidate)
    return asked.ratio()


def _suggestion(close: str | None, names: Sequence[str], about: Mapping[str, str]) -> str:
    if close is not None:
        words = about.get(close)
        return f"Did you mean '{close}'{f' ({words})' if words else ''}?"
    more = f" and {len(names) - _LISTED:,} more" if len(names) > _LISTED else ""
    return f"There is: {', '.join(names[:_LISTED])}{more}." if names else ""


def _restored(kind: type[Exception], args: tuple[Any, ...], state: dict[str, Any]) -> Exception:
    """Build an error again from its message, in another process; its own arguments are not kept."""
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error
