"""The image file that a misspelled name probably means: the suggestion in the problem of a name without a file."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Final

from labelgap.core.errors import similarity
from labelgap.data.readers.image_names import normalize_name, without_suffix

_DIGIT: Final = re.compile("[0-9]")
_MAX_COMPARED: Final = 200
_MAX_LENGTH: Final = 100
"""Files that a misspelled name is compared with, and its length."""
_MAX_COMPARISONS: Final = 10_000
"""Of all names of a table together, which takes a second or two: a table may have thousands of such names."""
_MIN_SIMILARITY: Final = 0.8
_LOOKALIKES: Final = str.maketrans("oil", "011")
_MIN_DIGITS: Final = 4
"""Digits of a name in which one may be missing, or one too many: short numbers are counted, and 100 comes after 99."""


class SimilarFiles:
    """Image files by their names, to find the one that is most like a name without a file.

    Args:
        files: their paths, below one folder.
    """

    def __init__(self, files: Iterable[str]) -> None:
        self._files = sorted(files)
        self._comparisons = 0

    def nearest(self, inside: str) -> str | None:
        """Return the file whose name is most like one that does not exist; None where none is close, or many may be.

        Folders in the name must be close as well. Another number is another photo, so numbers must be the same; but see
        ``_with_near_number``. Only the first names of a table are compared, up to ``_MAX_COMPARISONS``.
        """
        wanted = without_suffix(normalize_name(inside)).split("/")
        files = self._by_number.get(_number_of(wanted[-1]), [])
        too_many = len(files) > min(_MAX_COMPARED, _MAX_COMPARISONS - self._comparisons)
        if too_many or len(inside) > _MAX_LENGTH:
            return None
        files = files or self._with_near_number(wanted[-1])
        self._comparisons += len(files)
        best, nearest = _MIN_SIMILARITY, None
        for file in files:
            parts = without_suffix(normalize_name(file)).split("/")[-len(wanted) :]
            pairs = zip(reversed(wanted), reversed(parts), strict=False)
            if (near := min(similarity(one, other) for one, other in pairs)) >= best:
                best, nearest = near, file
        return nearest

    def _with_near_number(self, name: str) -> list[str]:
        """Return the file whose name differs by letters that look like digits; else by a digit too many or too few.

        Empty where several do. Where other files have as many digits as the name, none is missing in it.
        """
        files, shapes = self._by_lookalike
        name = name.translate(_LOOKALIKES)
        found = files.get(name, [])
        if not found and len(_number_of(name)) >= _MIN_DIGITS and _DIGIT.sub("0", name) not in shapes:
            self._comparisons += len(name)  # it takes as long as so many comparisons
            found = [file for each in sorted(_with_a_digit_changed(name)) for file in files.get(each, [])]
        return found if len(found) == 1 else []

    @cached_property
    def _by_number(self) -> dict[str, list[str]]:
        """The files by the digits in their names."""
        found: dict[str, list[str]] = {}
        for file in self._files:
            found.setdefault(_number_of(without_suffix(normalize_name(Path(file).name))), []).append(file)
        return found

    @cached_property
    def _by_lookalike(self) -> tuple[dict[str, list[str]], set[str]]:
        """The files by their names, with digits for the letters that look like them; and these names' shapes."""
        found: dict[str, list[str]] = {}
        for file in self._files:
            found.setdefault(without_suffix(normalize_name(Path(file).name)).translate(_LOOKALIKES), []).append(file)
        return found, {_DIGIT.sub("0", name) for name in found}


def _number_of(name: str) -> str:
    """Return the digits in a name."""
    return "".join(filter(str.isdigit, name))


def _with_a_digit_changed(name: str) -> set[str]:
    """Return the names with one digit less, or one more beside a digit.

    Example:
        >>> sorted(_with_a_digit_changed("a1"))[:4]
        ['a', 'a01', 'a10', 'a11']
    """
    digits = [place for place, letter in enumerate(name) if _DIGIT.match(letter)]
    beside = {place + after for place in digits for after in (0, 1)}
    shorter = {name[:place] + name[place + 1 :] for place in digits}
    return shorter | {f"{name[:place]}{digit}{name[place:]}" for place in beside for digit in "0123456789"}
