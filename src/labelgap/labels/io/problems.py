"""The problems of a file of labels, collected while it is read and reported in one error."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from labelgap.core.errors import Problem, ProblemsError

MAX_PROBLEMS: Final = 10_000
"""From so many problems on a file is not read further: nobody reads them, and a file may have one per byte."""


class ProblemList:
    """Collects the problems of a file, and raises them.

    Args:
        path: the file.
        unit: what lines count: "line", or "row" in files without lines.

    Attributes:
        fixable: whether ``labelgap inspect --fix`` can clean the file; a problem that prevents it sets this to False.
    """

    def __init__(self, path: Path, unit: str = "line") -> None:
        self.path = path
        self.unit = unit
        self.fixable = unit != ""
        self._found: list[Problem] = []

    def __len__(self) -> int:
        return len(self._found)

    def add(self, line: int, message: str) -> None:
        """Add a problem; all are raised when there are too many."""
        self._found.append(Problem(line, message))
        if len(self) >= MAX_PROBLEMS:
            self._found.append(Problem(line, "reading stopped here, after too many problems"))
            self.refuse()

    def append(self, message: str) -> None:
        """Add a problem after those before it, where no lines are counted."""
        self.add(len(self), message)

    def add_all(self, problems: Iterable[Problem]) -> None:
        """Add problems that are known already, however many."""
        self._found.extend(problems)

    def extend(self, number: int, text: str) -> None:
        """Add a text to the message of a problem; ``number`` is how many were there before it."""
        problem = self._found[number]
        self._found[number] = Problem(problem.line, problem.message + text)

    def merge(self, numbers: Sequence[int], text: str) -> None:
        """Replace some problems by one with a text, in the place of the first; ``numbers`` are as in ``extend``."""
        self._found[numbers[0]] = Problem(self._found[numbers[0]].line, text)
        others = {*numbers[1:]}
        self._found = [each for number, each in enumerate(self._found) if number not in others]

    @property
    def found(self) -> tuple[Problem, ...]:
        """The problems so far."""
        return tuple(self._found)

    def refuse(self, outcome: str = "nothing was trained", notes: Sequence[str] = ()) -> None:
        """Raise one error with all problems, which says the outcome and the notes; nothing when there are no problems.

        Without a unit a message names its place: the same one again is of a file that was read again.
        """
        if self._found:
            found = self._found if self.unit else {each.message: each for each in reversed(self._found)}.values()
            raise ProblemsError(self.path, list(found), outcome, unit=self.unit, fixable=self.fixable, notes=notes)
