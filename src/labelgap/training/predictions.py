"""``predictions.parquet``: the scores of the held-out images with the weights of the best epoch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from scipy.special import expit

from labelgap.core.files import atomic_path
from labelgap.core.manifest import check_files
from labelgap.core.stored import damaged, read_table

PREDICTIONS_FILE: Final = "predictions.parquet"
_SCORES_AT_ONCE: Final = 1 << 24
"""Scores that are in memory at once, besides the logits: a row group of the file."""
_REMEDY: Final = "Restore it from a copy, or write it again with `labelgap predict`."


def write_predictions(
    folder: Path, scores: Mapping[str, tuple[Sequence[str], NDArray[np.float32]]], classes: Sequence[str]
) -> None:
    """Write image, split, and a column ``score.CLASS`` of probabilities per class.

    Args:
        folder: of the run.
        scores: split → (names of its images, logits).
        classes: in the order of the columns.
    """
    if not scores:
        return
    with atomic_path(folder / PREDICTIONS_FILE) as temporary, ExitStack() as files:
        writer, step = None, max(1, _SCORES_AT_ONCE // max(len(classes), 1))
        for split, (images, logits) in scores.items():
            for first in range(0, max(len(images), 1), step):
                probability = np.asfortranarray(expit(logits[first : first + step]))
                columns = {"image": pa.array(list(images[first : first + step]), pa.string())}
                columns["split"] = pa.array([split] * len(probability), pa.string())
                columns |= {f"score.{name}": pa.array(probability[:, column]) for column, name in enumerate(classes)}
                table = pa.table(columns)
                writer = writer or files.enter_context(
                    pq.ParquetWriter(temporary, table.schema, write_page_checksum=True)
                )
                writer.write_table(table)


def read_predictions(
    folder: Path, split: str, images: Sequence[str], classes: Sequence[str]
) -> NDArray[np.float32] | None:
    """Read the scores of images of a split, ``(R, K)``; None where the file does not have all of them.

    Args:
        folder: of the run.
        split: of the images.
        images: their names, in the order of the rows.
        classes: of the run.
    """
    path = folder / PREDICTIONS_FILE
    check_files(folder, [PREDICTIONS_FILE])
    if not os.path.lexists(path):
        return None
    names = pa.array(list(images), pa.string())
    scores = {f"score.{name}": pa.float32() for name in classes}
    selected = (pc.field("split") == split) & pc.field("image").isin(names)
    table = read_table(path, {"image": pa.string(), "split": pa.string(), **scores}, where=selected, remedy=_REMEDY)
    place = pc.index_in(names, table["image"].combine_chunks())
    if place.null_count:
        return None
    ordered = table.take(place)
    found = np.stack([ordered[name].to_numpy() for name in scores], axis=1)
    if not ((found >= 0) & (found <= 1)).all():
        raise damaged(path, "a score is not between 0 and 1", _REMEDY)
    return found
