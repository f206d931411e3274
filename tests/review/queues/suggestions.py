"""A run of digits with many known labels that look wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tests.review.sample_run import Row, likely_rows, write_candidates

import labelgap as lg
from labelgap.labels.codes import PRESENT, UNKNOWN


def suggest_wrong(folder: Path, count: int) -> None:
    """Write candidates of which ``count`` are known labels that look wrong, the least plausible first."""
    data = lg.load("digits", train=96, val=40, test=40)
    rows: list[Row] = [row for row in likely_rows(data) if row[4] != "wrong"]
    observed, seen = data.train.labels.to_dense(), dict[int, int]()
    known = np.argwhere(observed != UNKNOWN)[:count].tolist()
    for rank, (row, column) in enumerate(known, 1):
        seen[column] = seen.get(column, 0) + 1
        code, chance = int(observed[row, column]), 0.02 + 0.5 * rank / count
        names = (data.train.labels.images[row], "train", data.classes[column])
        score = chance if code == PRESENT else 1 - chance
        rows.append((*names, score, "wrong", code, rank, seen[column]))
    write_candidates(folder / "candidates.parquet", rows, data)
