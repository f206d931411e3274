"""Predictions of any number of images in one file, resumable.

Logits are computed in chunks of about 1,024 images, each written completely or not at all to a folder ``FILE.partial``
(``inference.chunks``); when all are there, the output appears by a rename. Chunks start where batches start, so an
interrupted prediction ends with the same bytes. Several processes divide the missing chunks, the first assembles them.
"""

from __future__ import annotations

import csv
import filecmp
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray
from scipy.special import expit

from labelgap.core.distributed import is_main_process, rank, world_size
from labelgap.core.errors import InputError, LabelGapError, RunError
from labelgap.core.files import atomic_path, remove_partials_of
from labelgap.core.text import pluralize, quote_formulas
from labelgap.data.images import ImageSource
from labelgap.inference.chunks import (
    MAX_ENTRIES,
    Chunk,
    ChunkStore,
    adjacent_chunks,
    chunk_folder,
    describe_prediction,
    has_prediction,
    plan_chunks,
)
from labelgap.inference.columns import CsvWriter, PredictionColumns, csv_schema, labels_from_scores
from labelgap.inference.predictor import CachedLogits, Predictor
from labelgap.training.devices import choose_device, choose_workers
from labelgap.training.loop.processes import (
    broadcast_object,
    check_same,
    fail_together,
    init_distributed,
    lock_together,
)
from labelgap.training.progress import Reporter
from labelgap.training.run import Run

SUFFIXES: Final = (".csv", ".parquet")
_MAX_ERRORS: Final = 20


@dataclass(frozen=True)
class PredictionSummary:
    """The result of a prediction; labels are counted over all classes."""

    path: Path
    images: int
    absent: int
    present: int
    unsure: int
    unreadable: int  # images that cannot be read; their rows are blank
    errors: tuple[str, ...]  # why the first twenty of them cannot be read
    error_file: Path | None  # a CSV of all of them with the errors; None where there are none


def predict_to_file(
    run: Run,
    sources: ImageSource | Sequence[ImageSource],
    out: str | os.PathLike[str],
    *,
    layout: str = "lists",
    on_bad_image: str = "skip",
    device: str = "auto",
    workers: int | None = None,
    batch_size: int = 64,
    force: bool = False,
    restart: bool = False,
    quiet: bool = True,
) -> PredictionSummary:
    """Write the predictions of images to a CSV or Parquet file; memory does not grow with their number.

    The same call resumes a prediction that was killed.

    Args:
        run: finished.
        sources: the images, in the order of the rows.
        out: the file, ending in .csv or .parquet; its folder is created where it does not exist.
        layout: "lists", "wide" or "long"; see ``labelgap.inference.columns``.
        on_bad_image: "skip" leaves the row of an unreadable image blank and reports it; "error" names all of them and
            writes no file.
        device: "auto", "cpu", "cuda", "mps".
        workers: processes that decode images; chosen for the device when left out.
        batch_size: images at a time; fewer where they are large.
        force: replace an existing file.
        restart: discard an unfinished prediction instead of resuming it.
        quiet: show no progress.
    """
    path = Path(out)
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"{path}: the file name must end in {' or '.join(SUFFIXES)}, which decides the format.")
    if on_bad_image not in ("error", "skip"):
        raise InputError(f"on_bad_image={on_bad_image!r}: it must be 'error' or 'skip'.")
    if path.is_dir():
        raise InputError(f"{path} is a folder: name a file.")
    source_list = [sources] if isinstance(sources, ImageSource) else list(sources)
    torch_device = choose_device(device)
    init_distributed(torch_device)
    predictor, workers = Predictor(run, device=device, batch_size=batch_size), choose_workers(workers, torch_device)
    try:
        with lock_together(chunk_folder(path), "predicting"):
            with fail_together():
                job = _describe_job(run, predictor, source_list, path, layout, workers)
            return job.run_to(path, Reporter(quiet), skip=on_bad_image == "skip", force=force, restart=restart)
    except LabelGapError:
        raise
    except OSError as error:
        kept = "What was computed is kept: the same command resumes there."
        raise InputError(f"{path} cannot be written ({error.strerror or error}). {kept}") from error
    finally:
        with suppress(OSError):
            if is_main_process():
                chunk_folder(path).rmdir()  # where it is empty


@dataclass(frozen=True)
class _Prediction:
    """A prediction in progress."""

    run: Run
    predictor: Predictor
    workers: int
    sources: Sequence[ImageSource]
    chunks: Sequence[Chunk]
    store: ChunkStore
    columns: PredictionColumns

    def run_to(self, path: Path, reporter: Reporter, *, skip: bool, force: bool, restart: bool) -> PredictionSummary:
        """Compute what is missing, in all processes, and assemble the file, in the first one."""
        missing: list[Chunk] = []
        with fail_together():
            if is_main_process():
                missing = self.open(path, reporter, force=force, restart=restart)
        check_same({name: str(value) for name, value in self.store.description.items()})
        missing = broadcast_object(missing)
        with fail_together():
            self.compute(missing, reporter)
        summary: PredictionSummary | None = None
        with fail_together():
            if is_main_process():
                if not skip:
                    self.refuse_unreadable(path)
                summary = self.write(path, force)
                self.store.remove()
        return cast(PredictionSummary, broadcast_object(summary))

    def open(self, path: Path, reporter: Reporter, *, force: bool, restart: bool) -> list[Chunk]:
        """Start the prediction, or resume it, and remove what a killed one left; return the chunks to compute."""
        if not (has_prediction(path) and not restart) and path.exists() and not force:
            raise existing_file_error(path)
        self.store.open(restart=restart)
        for written in (path, error_file(path)):
            remove_partials_of(written)
        missing = self.missing_chunks(reporter)
        if path.exists() and not force and missing:
            raise existing_file_error(path)
        return missing

    def missing_chunks(self, reporter: Reporter) -> list[Chunk]:
        """Return the chunks that are not written, or damaged."""
        missing = []
        for chunk in self.chunks:
            try:
                if not self.store.has(chunk):
                    missing.append(chunk)
            except RunError as error:
                reporter.log(f"note: {error}")
                missing.append(chunk)
        return missing

    def compute(self, missing: Sequence[Chunk], reporter: Reporter) -> None:
        """Compute the chunks that are missing, of several processes each its part of them."""
        total, cached = sum(map(len, self.sources)), CachedLogits(self.run, self.predictor.device)
        if done := total - sum(map(len, missing)):
            reporter.log(f"resuming after {done:,} of {total:,} images")
        first, last = (len(missing) * (rank() + end) // world_size() for end in (0, 1))
        missing = missing[first:last]  # in one piece: a loader reads adjacent chunks
        with reporter.bar("predicting", total, done):
            try:
                known = [self._compute_cached(chunk, cached, reporter) for chunk in missing]
                uncached = [chunk for chunk, count in zip(missing, known, strict=True) if not count]
                for group in adjacent_chunks(uncached):
                    self._compute_group(group, reporter)
            except KeyboardInterrupt:
                done = total - sum(map(len, self.missing_chunks(reporter)))
                reporter.log(f"stopped after {done:,} of {total:,} images; the same command resumes there")
                raise
        if sum(known):
            reporter.log(f"features of {sum(known):,} of {total:,} images are from the cache")

    def _compute_cached(self, chunk: Chunk, cached: CachedLogits, reporter: Reporter) -> int:
        """Compute a chunk if some of its images have cached features, and return their number."""
        images = self.sources[chunk.source]
        found, logits = cached.read(images.select(np.arange(chunk.start, chunk.stop)))
        if not found.any():
            return 0
        errors: dict[int, str] = {}
        for batch, values in self.predictor.iterate(images, chunk.start + np.flatnonzero(~found), self.workers):
            logits[batch.rows - chunk.start] = values
            errors |= batch.errors
        reporter.advance(len(chunk))
        self.store.write(chunk, logits, errors)
        return int(np.count_nonzero(found))

    def _compute_group(self, group: Sequence[Chunk], reporter: Reporter) -> None:
        """Compute adjacent chunks of one source."""
        rows = range(group[0].start, group[-1].stop)
        by_stop = {chunk.stop: chunk for chunk in group}
        logits: list[NDArray[np.float32]] = []
        errors: dict[int, str] = {}
        for batch, values in self.predictor.iterate(self.sources[group[0].source], rows, self.workers):
            logits.append(values)
            errors |= batch.errors
            reporter.advance(len(batch.rows))
            if (chunk := by_stop.get(int(batch.rows[-1]) + 1)) is not None:
                self.store.write(chunk, np.concatenate(logits), errors)
                logits, errors = [], {}

    def refuse_unreadable(self, path: Path) -> None:
        """Raise an error that names unreadable images, and discard their chunks: they are computed again."""
        unreadable = {chunk: errors for chunk in self.chunks if (errors := self.store.read(chunk)[1])}
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
        """Write the file from the chunks; without ``force`` only the same one, of a killed command, is replaced."""
        counts = np.zeros(3, dtype=np.int64)
        with atomic_path(path) as temporary:
            is_csv = path.suffix.lower() == ".csv"
            open_writer, schema = (CsvWriter, csv_schema) if is_csv else (pq.ParquetWriter, lambda each: each.schema)
            with open_writer(temporary, schema(self.columns)) as writer:
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
        unreadable = [chunk for chunk in self.chunks if self.store.read(chunk)[1]]
        if not unreadable:
            return 0, (), None
        count, first = 0, list[str]()
        with atomic_path(error_file(path)) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
            rows = csv.writer(file)
            rows.writerow(["image", "reason"])
            for chunk in unreadable:
                errors, named = self.store.read(chunk)[1], self.sources[chunk.source].names
                rows.writerows(quote_formulas([named[row], error]) for row, error in errors.items())
                count += len(errors)
                first += list(errors.values())[: _MAX_ERRORS - len(first)]
        return count, tuple(first), error_file(path)


def _describe_job(
    run: Run, predictor: Predictor, sources: Sequence[ImageSource], path: Path, layout: str, workers: int
) -> _Prediction:
    """Return a prediction that is not opened yet; an error where the data, the run and the file do not match."""
    columns = PredictionColumns(run.config.classes, run.thresholds, run.calibration, layout)
    if path.suffix.lower() == ".csv":
        csv_schema(columns)  # raises where the classes do not fit
    for images in sources:
        predictor.check(images)
    classes, batch_size = len(columns.classes), predictor.batch_size
    store = ChunkStore(path, describe_prediction(run.path, sources, classes, batch_size), classes)
    chunks = plan_chunks(list(map(len, sources)), classes, batch_size)
    return _Prediction(run, predictor, workers, sources, chunks, store, columns)


def existing_file_error(path: Path) -> InputError:
    """Return the error about a file that is not replaced without being asked to."""
    return InputError(f"{path} exists already: replace it with --force, or choose another --out.")


def error_file(path: Path) -> Path:
    """Return the path of the CSV of unreadable images beside a file of predictions."""
    return path.with_name(f"{path.stem}-unreadable.csv")
