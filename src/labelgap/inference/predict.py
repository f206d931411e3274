"""Predictions of any number of images in one file, resumable.

Logits are computed in chunks of about 1,024 images into parts of a folder ``FILE.partial``; when all are there, the
output appears by a rename. Several processes divide the missing chunks, the first assembles them.
"""

from __future__ import annotations

import csv
import filecmp
import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Final, NamedTuple, cast

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from labelgap.core.distributed import is_main_process, rank, world_size
from labelgap.core.errors import InputError, LabelGapError, RunError
from labelgap.core.files import atomic_path, remove_partials, remove_partials_of
from labelgap.core.text import pluralize, quote_formulas
from labelgap.core.trust import outside_links
from labelgap.data.images import FileImages, ImageSource
from labelgap.data.parts import DESCRIPTION, PartFolder, PartsDescription, PartSummary, part_name
from labelgap.inference.columns import CsvWriter, PredictionColumns, csv_schema
from labelgap.inference.parts import part_table
from labelgap.inference.predictor import Prediction, Predictor
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
MAX_IMAGES: Final = 1024
MAX_ENTRIES: Final = 1 << 20
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
    torch_device, folder = choose_device(device), path.with_name(f"{path.name}.partial")
    init_distributed(torch_device)
    predictor, workers = Predictor(run, device=device, batch_size=batch_size), choose_workers(workers, torch_device)
    try:
        with lock_together(folder, "predicting"):
            with fail_together():
                columns = PredictionColumns(run.config.classes, run.thresholds, run.calibration, layout)
                if path.suffix.lower() == ".csv":
                    csv_schema(columns)  # raises where the classes do not fit
                for images in source_list:
                    predictor.check(images)
                chunks, about = _plan(predictor, source_list)
                parts = PartFolder(os.fspath(folder))
                job = _Prediction(predictor, workers, chunks, parts, about, columns, Reporter(quiet))
            return job.run_to(path, skip=on_bad_image == "skip", force=force, restart=restart)
    except LabelGapError:
        raise
    except OSError as error:
        kept = "What was computed is kept: the same command resumes there."
        raise InputError(f"{path} cannot be written ({error.strerror or error}). {kept}") from error
    finally:
        with suppress(OSError):
            if is_main_process():
                folder.rmdir()  # where it is empty


class _Chunk(NamedTuple):
    """Rows of a source that are computed, or computed again, as a whole."""

    number: int
    images: ImageSource
    rows: range


def _plan(predictor: Predictor, sources: Sequence[ImageSource]) -> tuple[list[_Chunk], PartsDescription]:
    """Divide sources into chunks of whole batches, and say what identifies the prediction: names of files."""
    size = predictor.batch_size
    length = max(1, min(MAX_IMAGES, MAX_ENTRIES // max(len(predictor.classes), 1)) // size) * size
    spans = [
        (images, range(len(images))[at : at + length]) for images in sources for at in range(0, len(images), length)
    ]
    digest = hashlib.blake2b(f"{size} {length}".encode(), digest_size=16)
    for source in sources:
        named = (str(source.root), *source.files) if isinstance(source, FileImages) else (source.fingerprint(),)
        for name in named:
            digest.update(b"\0" + name.encode("utf-8", "surrogateescape"))
    chunks = [_Chunk(number, *span) for number, span in enumerate(spans)]
    return chunks, predictor.parts_description(digest.hexdigest(), len(chunks))


@dataclass(frozen=True)
class _Prediction:
    """A prediction in progress."""

    predictor: Predictor
    workers: int
    chunks: Sequence[_Chunk]
    folder: PartFolder
    about: PartsDescription
    columns: PredictionColumns
    reporter: Reporter

    def run_to(self, path: Path, *, skip: bool, force: bool, restart: bool) -> PredictionSummary:
        """Compute what is missing, in all processes, and assemble the file, in the first one."""
        missing: list[int] = []
        with fail_together():
            if is_main_process():
                missing = self.open(path, force=force, restart=restart)
        check_same({name: str(value) for name, value in self.about})
        missing = broadcast_object(missing)
        with fail_together():
            self.compute([self.chunks[number] for number in missing])
        summary: PredictionSummary | None = None
        with fail_together():
            if is_main_process():
                summary = self.write(path, force, skip)
                self.folder.clear()
        return cast(PredictionSummary, broadcast_object(summary))

    def open(self, path: Path, *, force: bool, restart: bool) -> list[int]:
        """Start the prediction, or resume it, and remove what a killed one left; return the chunks to compute."""
        local = Path(self.folder.address)
        if outside := outside_links(local):
            raise RunError(f"{local} has {outside[0]}, which leads out of it: choose another --out.")
        names = self.folder.sizes()
        if DESCRIPTION not in names:
            self.folder.clear()  # what is left of a finished prediction
        if path.exists() and not force and (restart or DESCRIPTION not in names):
            raise existing_file_error(path)
        self.folder.start(self.about, restart=restart)
        remove_partials(local)
        for written in (path, error_file(path)):
            remove_partials_of(written)
        done = {part.shard for part in self.finished() if not self.folder.problem(part)}
        missing = [chunk.number for chunk in self.chunks if chunk.number not in done]
        for name in {*map(part_name, missing)}.intersection(self.folder.sizes()):
            self.reporter.log(f"note: {name} is damaged or incomplete, and computed again")
        if path.exists() and not force and missing:
            raise existing_file_error(path)
        return missing

    def finished(self) -> list[PartSummary]:
        return self.folder.finished(dict.fromkeys(range(len(self.chunks)), self.about.source), self.about.predictor)

    def compute(self, missing: Sequence[_Chunk]) -> None:
        total, known, uncached = self.count(self.chunks), 0, list[_Chunk]()
        if done := total - self.count(missing):
            self.reporter.log(f"resuming after {done:,} of {total:,} images")
        first, last = (len(missing) * (rank() + end) // world_size() for end in (0, 1))
        with self.reporter.bar("predicting", total, done):
            try:
                for chunk in missing[first:last]:
                    found, logits = self.predictor.read_cached(chunk.images.select(np.array(chunk.rows)))
                    if found.any():
                        others = np.array(chunk.rows)[~found]
                        self._write_chunk(chunk, logits, self.predictor.iterate(chunk.images, others, self.workers))
                        self.reporter.advance(int(found.sum()))
                        known += int(found.sum())
                    else:
                        uncached.append(chunk)
                for _, chunks in groupby(uncached, key=lambda chunk: id(chunk.images)):
                    of_source = list(chunks)  # one loader reads them: all but the last consist of whole batches
                    rows = np.concatenate([chunk.rows for chunk in of_source])
                    batches = self.predictor.iterate(of_source[0].images, rows, self.workers)
                    for chunk in of_source:
                        logits = np.empty((len(chunk.rows), len(self.columns.classes)), dtype=np.float32)
                        count = -(-len(chunk.rows) // self.predictor.batch_size)
                        self._write_chunk(chunk, logits, islice(batches, count))
            except KeyboardInterrupt:
                done = sum(part.rows for part in self.finished())
                self.reporter.log(f"stopped after {done:,} of {total:,} images; the same command resumes there")
                raise
        if known:
            self.reporter.log(f"features of {known:,} of {total:,} images are from the cache")

    @staticmethod
    def count(chunks: Iterable[_Chunk]) -> int:
        return sum(len(chunk.rows) for chunk in chunks)

    def _write_chunk(self, chunk: _Chunk, logits: NDArray[np.float32], batches: Iterable[Prediction]) -> None:
        errors, start = np.full(len(logits), "", dtype=object), chunk.rows.start
        for batch, values, _ in batches:
            logits[batch.rows - start] = values
            errors[[row - start for row in batch.errors]] = list(map(str, batch.errors.values()))
            self.reporter.advance(len(batch.rows))
        table = part_table({}, {"logit": logits, "error": errors}, self.predictor)
        self.folder.write_part(chunk.number, self.about.source, self.about.predictor, [table])

    def write(self, path: Path, force: bool, skip: bool) -> PredictionSummary:
        """Write the file from the chunks; without ``force`` only the same one, of a killed command, is replaced."""
        counts, errors = np.zeros(3, dtype=np.int64), list[tuple[str, str]]()
        with atomic_path(path) as temporary:
            is_csv = path.suffix.lower() == ".csv"
            open_writer, schema = (CsvWriter, csv_schema) if is_csv else (pq.ParquetWriter, lambda each: each.schema)
            with open_writer(temporary, schema(self.columns)) as writer:
                for names, logits, reasons in self._tables():
                    bad = np.array([reason is not None for reason in reasons], dtype=bool)
                    found = self.columns.describe(logits)
                    writer.write_table(self.columns.table(names, found, bad))
                    counts += np.bincount(found["label"][~bad].ravel(), minlength=3)
                    errors += [
                        (name, reason) for name, reason in zip(names, reasons, strict=True) if reason is not None
                    ]
            if errors and not skip:
                for part in self.finished():
                    if part.unreadable:
                        Path(self.folder.address, part_name(part.shard)).unlink()
                raise _unreadable_error(path, [reason for _, reason in errors])
            if path.exists() and not force and not filecmp.cmp(path, temporary, shallow=False):
                raise existing_file_error(path)
        if errors:
            with atomic_path(error_file(path)) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows([("image", "reason"), *map(quote_formulas, errors)])
        absent, present, unsure = counts.tolist()
        unreadable = len(errors), tuple(reason for _, reason in errors[:_MAX_ERRORS])
        named = error_file(path) if errors else None
        return PredictionSummary(path, self.count(self.chunks), absent, present, unsure, *unreadable, named)

    def _tables(self) -> Iterator[tuple[list[str], NDArray[np.float32], list[str | None]]]:
        """Yield the names and logits of several chunks at a time, and why images of them cannot be read."""
        names, logits, reasons = list[str](), list[NDArray[np.float32]](), list[str | None]()
        for chunk in self.chunks:
            with self.folder.open(part_name(chunk.number)) as file:
                table = pq.read_table(file)
            names += chunk.images.names[chunk.rows.start : chunk.rows.stop]
            values = table["logit"].combine_chunks().values.to_numpy(zero_copy_only=False)
            logits.append(values.reshape(len(chunk.rows), -1))
            reasons += table["error"].to_pylist()
            if len(names) * len(self.columns.classes) >= MAX_ENTRIES or chunk is self.chunks[-1]:
                yield names, np.concatenate(logits), reasons
                names, logits, reasons = [], [], []


def _unreadable_error(path: Path, messages: Sequence[str]) -> InputError:
    shown = "".join(f"\n  {message}" for message in messages[:_MAX_ERRORS])
    more = f"\n  …and {len(messages) - _MAX_ERRORS:,} more" if len(messages) > _MAX_ERRORS else ""
    return InputError(
        f"{pluralize(len(messages), 'image')} cannot be read, {path} was not written:{shown}{more}\n"
        "Repair them and run the command again, or leave their rows blank with --on-bad-image skip. All other "
        "images are done."
    )


def existing_file_error(path: Path) -> InputError:
    """Return the error about a file that is not replaced without being asked to."""
    return InputError(f"{path} exists already: replace it with --force, or choose another --out.")


def error_file(path: Path) -> Path:
    """Return the path of the CSV of unreadable images beside a file of predictions."""
    return path.with_name(f"{path.stem}-unreadable.csv")
