"""TensorBoard: event files in ``tensorboard/`` of the run folder."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from labelgap.training.loggers.base import EpochLogger, Row, Scalars

TENSORBOARD_FOLDER: Final = "tensorboard"


class TensorBoardLogger(EpochLogger):
    """Writes scalars with the epoch as their step, and the hyper-parameters for the HPARAMS tab.

    The hyper-parameters are on disk before the run's id is stored, and every epoch is flushed. A resumed run adds an
    event file, which discards the epochs that it repeats.
    """

    package = "tensorboard"

    def __init__(self, folder: Path, settings: Mapping[str, Any], *, id: str, start: int) -> None:
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        super().__init__(folder, settings, id=id or folder.name, start=start)
        if id:
            _wait_for_next_second(folder / TENSORBOARD_FOLDER)
        writer: Any = SummaryWriter  # its types are incomplete
        self._writer = writer(str(folder / TENSORBOARD_FOLDER), purge_step=start if id else None)
        if not id:
            for summary in hparams(dict(settings), {"val/score": 0.0, "best/test/map": 0.0})[:2]:  # type: ignore[no-untyped-call]
                self._writer.file_writer.add_summary(summary)
            self._writer.flush()

    def log(self, rows: Sequence[Row], new: Sequence[Row]) -> None:
        """Add the scalars of the new epochs."""
        for epoch, scalars in new:
            for name, value in scalars.items():
                self._writer.add_scalar(name, value, epoch)
        self._writer.flush()

    def finish(self, rows: Sequence[Row], measured: Scalars) -> None:
        """Add the measures at the last epoch."""
        self.log(rows, [(rows[-1][0], measured)])

    def close(self, *, finished: bool) -> None:
        """Close the file."""
        self._writer.close()


def _wait_for_next_second(folder: Path) -> None:
    """Let a new event file have a later second in its name than the last one: TensorBoard reads them in that order."""
    seconds = [path.name.split(".")[3] for path in folder.glob("events.out.tfevents.*")]
    last = max((int(second) for second in seconds if second.isdigit()), default=0)
    time.sleep(min(max(last + 1 - time.time(), 0.0), 1.0))
