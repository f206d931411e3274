"""What all mutations share."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

CANARY_VARIABLE: Final = "LABELGAP_FUZZ_CANARY"
"""Environment variable: a file outside of the samples that no reader may open, write, or put something beside."""

Random = np.random.Generator
Mutation = Callable[[Random, bytes], bytes]


def pick(random: Random, values: Any) -> Any:
    """Choose one of several."""
    return values[int(random.integers(len(values)))]


def canary() -> Path:
    """Return the file outside of the samples."""
    return Path(os.environ[CANARY_VARIABLE])


class Payload:
    """Code that a pickle runs where it is loaded: it creates a file beside the canary."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (canary().with_suffix(".executed"),)
