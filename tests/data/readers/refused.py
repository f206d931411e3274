"""Where the problems of data that cannot be used are."""

from __future__ import annotations

import re
from os import PathLike
from typing import Any

import pytest

from labelgap.core.errors import InputError, ProblemsError
from labelgap.data.registry import load

PLACE = re.compile(r"(\S+?(?:, (?:line|row) [\d,]*\d(?:, column \d+)?)?)(?:: | |$)")


def refused(name: str, path: str | PathLike[str], **options: Any) -> list[str]:
    """Load data that cannot be used, and return the message of every problem."""
    with pytest.raises(InputError) as caught:
        load(name, path, **options)
    error = caught.value
    return [problem.message for problem in error.problems] if isinstance(error, ProblemsError) else [str(error)]


def places(name: str, path: str | PathLike[str], **options: Any) -> list[str]:
    """Load data that cannot be used, and return the file, and the line or row, of every problem, in their order."""
    found = map(PLACE.match, refused(name, path, **options))
    return [match[1] if match else "" for match in found]
