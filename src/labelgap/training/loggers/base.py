"""The contract of a logger."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Scalars = Mapping[str, float]
Row = tuple[int, Scalars]
"""An epoch and its scalars."""


class EpochLogger(ABC):
    """Writes the scalars of epochs to one kind of log; it is opened when the first epoch ends.

    What a method raises ends this log, never the training.

    Args:
        folder: of the run.
        settings: the hyper-parameters of the run.
        id: of the log that a resumed run continues, as ``id`` was; "" for a new one.
        start: the first epoch that is not in the log yet.
    """

    package = ""
    """The library that must be installed; "" for none."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], *, id: str, start: int) -> None:
        self.folder, self.settings, self.id, self.start = folder, settings, id, start

    @abstractmethod
    def log(self, rows: Sequence[Row], new: Sequence[Row]) -> None:
        """Write the new epochs; ``rows`` are all epochs of the run, with the new ones at their end."""

    def finish(self, rows: Sequence[Row], measured: Scalars) -> None:  # noqa: B027 (optional)
        """Write the measures of the finished run."""

    def close(self, *, finished: bool) -> None:  # noqa: B027 (optional)
        """Close the log; a run that is not finished can be resumed."""
