"""``log.csv`` in the run folder: a row for every epoch."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Final

from labelgap.core.files import write_text
from labelgap.training.loggers.base import EpochLogger, Row, Scalars

CSV_LOG: Final = "log.csv"


class CsvLogger(EpochLogger):
    """Replaces the whole file after every epoch, so that it is complete at every moment.

    The measures of the finished run are in the row of the last epoch.
    """

    def log(self, rows: Sequence[Row], new: Sequence[Row]) -> None:
        """Write all epochs."""
        names = sorted({name for _, scalars in rows for name in scalars})
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["epoch", *names])
        writer.writerows([epoch, *(scalars.get(name, "") for name in names)] for epoch, scalars in rows)
        write_text(self.folder / CSV_LOG, text.getvalue())

    def finish(self, rows: Sequence[Row], measured: Scalars) -> None:
        """Write all epochs with the measures in the last row."""
        epoch, scalars = rows[-1]
        self.log([*rows[:-1], (epoch, {**scalars, **measured})], ())
