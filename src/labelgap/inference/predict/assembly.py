"""From the chunks of a prediction to its file, and to a CSV of the images that cannot be read."""

from __future__ import annotations

import csv
import filecmp
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray
from scipy.special import expit

from labelgap.core.errors import InputError
from labelgap.core.files import atomic_path
from labelgap.core.text import pluralize, quote_formulas
from labelgap.data.images import ImageSource
from labelgap.inference.predict.chunks import MAX_ENTRIES, Chunk, ChunkStore
from labelgap.inference.predict.columns import CsvWriter, PredictionColumns, csv_schema, labels_from_scores

_MAX_ERRORS: Final = 20


@dataclass(frozen=True)
class PredictionSummary:
    """The result of a prediction.

    Attributes:
        path: the file.
        images: rows of a file of lists.
        absent: labels decided absent, over all classes.
        present: labels decided present.
        unsure: labels decided neither.
        unreadable: images that cannot be read; their rows are blank.
        errors: of the first twenty of them.
        error_file: a CSV of all of them with the errors; None where there are none.
    """

    path: Path
    images: int
    absent: int
    present: int
    unsure: int
    unreadable: int
    errors: tuple[str, ...]
    error_file: Path | None


@dataclass(frozen=True)
class PredictionAssembly:
    """The chunks of a prediction, all of them computed.

    Attributes:
        sources: the images, in the order of the rows.
        chunks: of the images.
        store: where the chunks are.
        columns: of the file.
    """

    sources: Sequence[ImageSource]
    chunks: Sequence[Chunk]
    store: ChunkStore
    columns: PredictionColumns

    def refuse_unreadable(self, path: Path) -> None:
        """Raise an error that names unreadable images, and discard their chunks: they are computed again."""
        unreadable = {chunk: errors for chunk in self.chunks if (errors := self.store.errors(chunk))}
        if not unreadable:
            return
        for chunk in unreadable:
            self.store.discard(chunk)
        messages = [message for errors in unreadable.values() for message in errors.values()]
        shown = "".join(f"\n  {message}" for message in messages[:_MAX_ERRORS])
        more = f"\n  …and {len(messages) - _MAX_ERRORS:,} more" if len(messages) > _MAX_ERRORS else ""
        raise InputError(
            f"{pluralize(len(messages), 'image')} cannot be read, {path} was not written:{shown}{more}\n"
            "Repair them and run the command again, or leave their rows blank with --on-bad-image skip. All other "
            "images are done."
        )

    def write(self, path: Path, force: bool) -> PredictionSummary:
        """Write the file from the chunks, a bounded number of entries at a time.

        An existing file is not replaced without ``force``, unless it is the same: then the command was killed after it
        had written it.
        """
        counts = np.zeros(3, dtype=np.int64)
        with atomic_path(path) as temporary:
            with _open_writer(temporary, self.columns) as writer:
                for names, logits in self._tables():
                    bad = np.isnan(logits[:, 0])
                    writer.write_table(self.columns.table(names, np.nan_to_num(logits), bad))
                    labels = labels_from_scores(expit(logits[~bad]), self.columns.thresholds, self.columns.calibration)
                    counts += np.bincount(labels.ravel(), minlength=3)
            if path.exists() and not force and not filecmp.cmp(path, temporary, shallow=False):
                raise existing_file_error(path)
        absent, present, unsure = counts.tolist()
        return PredictionSummary(path, sum(map(len, self.sources)), absent, present, unsure, *self._write_errors(path))

    def _tables(self) -> Iterator[tuple[list[str], NDArray[np.float32]]]:
        """Yield the names and logits of several chunks at a time."""
        names: list[str] = []
        logits: list[NDArray[np.float32]] = []
        for chunk in self.chunks:
            names += self.sources[chunk.source].names[chunk.start : chunk.stop]
            logits.append(self.store.read(chunk)[0])
            if len(names) * len(self.columns.classes) >= MAX_ENTRIES or chunk is self.chunks[-1]:
                yield names, np.concatenate(logits)
                names, logits = [], []

    def _write_errors(self, path: Path) -> tuple[int, tuple[str, ...], Path | None]:
        """Write a CSV of unreadable images beside the file; return their number, the first errors, and the CSV."""
        unreadable = [chunk for chunk in self.chunks if self.store.errors(chunk)]
        if not unreadable:
            return 0, (), None
        reasons = error_file(path)
        first: list[str] = []
        count = 0
        with atomic_path(reasons) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
            rows = csv.writer(file)
            rows.writerow(["image", "reason"])
            for chunk in unreadable:
                errors = self.store.errors(chunk)
                named = self.sources[chunk.source].names
                rows.writerows(quote_formulas([named[row], error]) for row, error in errors.items())
                count += len(errors)
                first += list(errors.values())[: _MAX_ERRORS - len(first)]
        return count, tuple(first), reasons


def existing_file_error(path: Path) -> InputError:
    """Return the error about a file that is not replaced without being asked to."""
    return InputError(f"{path} exists already: replace it with --force, or choose another --out.")


def error_file(path: Path) -> Path:
    """Return the path of the CSV of unreadable images beside a file of predictions."""
    return path.with_name(f"{path.stem}-unreadable.csv")


def _open_writer(path: Path, columns: PredictionColumns) -> Any:
    """Open a CSV or Parquet file for tables."""
    if path.suffix.lower() == ".csv":
        return CsvWriter(path, csv_schema(columns))
    return pq.ParquetWriter(path, columns.schema)
