"""Predictions of a million images into one file: a part at a time, and a killed command goes on where it was.

What is computed lies in a folder ``FILE.partial`` beside the file to be: the logits of 1,024 images or so in each part,
written whole or not at all. When all parts are there they are put together, the file appears by a rename, and the
folder goes. Parts begin where batches begin, so on one machine a broken prediction ends with the bytes of an
unbroken one.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from scipy.special import expit

from labelgap.core.errors import InputError, LabelGapError
from labelgap.core.files import atomic_path
from labelgap.data.images import ImageSource
from labelgap.inference.predict.batches import ReadBatch, read_batches
from labelgap.inference.predict.chunks import MAX_ENTRIES, Chunk, ChunkStore, describe_prediction, plan_chunks
from labelgap.inference.predict.columns import PredictionColumns, labels_from_scores
from labelgap.training.devices import choose_device, choose_workers
from labelgap.training.features.precomputed import feature_inputs
from labelgap.training.loop.inputs import ImageInputs
from labelgap.training.progress import Reporter
from labelgap.training.run import Run

__all__ = ["PredictionSummary", "predict_to_file"]

SUFFIXES: Final = (".csv", ".parquet")
_SHOWN: Final = 20


@dataclass(frozen=True)
class PredictionSummary:
    """What a prediction came to.

    Attributes:
        path: the file.
        images: rows of a wide file.
        absent: labels called so, over all classes.
        present: likewise.
        unsure: likewise.
        unreadable: images that could not be read; their rows are blank.
        reasons: of the first twenty of them.
        listed: a CSV of all of them with the reasons, or None where there are none.
    """

    path: Path
    images: int
    absent: int
    present: int
    unsure: int
    unreadable: int
    reasons: tuple[str, ...]
    listed: Path | None


def predict_to_file(
    run: Run,
    sources: ImageSource | Sequence[ImageSource],
    out: str | os.PathLike[str],
    *,
    layout: str = "wide",
    on_bad_image: str = "skip",
    device: str = "auto",
    workers: int | None = None,
    batch_size: int = 64,
    force: bool = False,
    restart: bool = False,
    quiet: bool = True,
) -> PredictionSummary:
    """Predict images into a CSV or Parquet file; memory does not grow with their number.

    A call that was killed goes on by itself when it is made again.

    Args:
        run: finished.
        sources: the images, in the order of the rows.
        out: the file, ending in .csv or .parquet.
        layout: "wide" or "long"; see ``labelgap.inference.predict.columns``.
        on_bad_image: "skip" leaves the row of an image blank that cannot be read, and reports it; "error" names all of
            them and writes no file.
        device: "auto", "cpu", "cuda", "mps".
        workers: processes that decode images; as many as are of use when not given.
        batch_size: images at a time.
        force: replace a file that is there.
        restart: throw away what an unfinished prediction left, instead of going on with it.
        quiet: show no progress.
    """
    given = [sources] if isinstance(sources, ImageSource) else list(sources)
    path = _checked(Path(out), on_bad_image, batch_size, force)
    columns = PredictionColumns(run.config.classes, run.thresholds, run.calibration, layout)
    where = choose_device(device)
    for images in given:
        feature_inputs(images.select([]), run.model, where)  # says what does not fit
    reporter = Reporter(quiet)
    plan = plan_chunks([len(images) for images in given], len(columns.classes), batch_size)
    try:
        parts = ChunkStore(
            path, describe_prediction(run.path, given, len(columns.classes), batch_size), restart=restart
        )
        _compute(run, given, plan, parts, where, choose_workers(workers, where), batch_size, reporter)
        if on_bad_image == "error":
            _refuse_unreadable(parts, plan, path)
        made = _assemble(given, plan, parts, columns, path)
    except LabelGapError:
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(
            f"{path} cannot be written ({reason}). What was computed is kept: the same command goes on from there."
        ) from error
    parts.remove()
    return made


def _checked(path: Path, on_bad_image: str, batch_size: int, force: bool) -> Path:
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"{path}: the name of the file ends in {' or '.join(SUFFIXES)}, which says how it is written.")
    if on_bad_image not in ("error", "skip"):
        raise InputError(f"on_bad_image={on_bad_image!r}: it is 'error' or 'skip'.")
    if batch_size < 1:
        raise InputError(f"batch_size={batch_size}: it is 1 at least.")
    if path.is_dir():
        raise InputError(f"{path} is a folder: name a file.")
    if path.exists() and not force:
        raise InputError(f"{path} is there already: --force replaces it, or choose another --out.")
    if not path.absolute().parent.is_dir():
        raise InputError(f"{path} cannot be written: the folder {path.absolute().parent} does not exist.")
    return path


def _compute(
    run: Run,
    sources: Sequence[ImageSource],
    plan: Sequence[Chunk],
    parts: ChunkStore,
    device: torch.device,
    workers: int,
    batch_size: int,
    reporter: Reporter,
) -> None:
    """Compute the parts that are not there yet."""
    total = sum(map(len, sources))
    missing = [part for part in plan if not parts.has(part)]
    before = total - sum(part.stop - part.start for part in missing)
    if before:
        reporter.log(f"going on after {before:,} of {total:,} images")
    with reporter.bar("predicting", total, before):
        try:
            for together in _runs_of(missing):
                images = sources[together[0].source]
                for part, logits, wrong in _logits(run, images, together, device, workers, batch_size, reporter):
                    parts.write(part, logits, wrong)
        except KeyboardInterrupt:
            done = total - sum(part.stop - part.start for part in plan if not parts.has(part))
            reporter.log(f"stopped after {done:,} of {total:,} images; the same command goes on from there")
            raise


def _runs_of(missing: Sequence[Chunk]) -> Iterator[list[Chunk]]:
    """Yield missing parts that follow each other in one source."""
    together: list[Chunk] = []
    for part in missing:
        if together and (part.source != together[-1].source or part.start != together[-1].stop):
            yield together
            together = []
        together.append(part)
    if together:
        yield together


def _logits(
    run: Run,
    images: ImageSource,
    together: Sequence[Chunk],
    device: torch.device,
    workers: int,
    batch_size: int,
    reporter: Reporter,
) -> Iterator[tuple[Chunk, NDArray[np.float32], dict[int, str]]]:
    """Yield parts that follow each other: their logits, and row → why it could not be read."""
    network = run.model.to(device)
    transform = ImageInputs(images, network.backbone, device, transform=run.config.transform).transform_of(None)
    rows, channels = range(together[0].start, together[-1].stop), network.backbone.input_spec.channels
    stops = {part.stop: part for part in together}
    waiting: list[NDArray[np.float32]] = []
    wrong: dict[int, str] = {}
    for batch in read_batches(images, rows, transform, channels=channels, batch_size=batch_size, workers=workers):
        waiting.append(_forward(network, batch, device))
        wrong |= {int(batch.rows[place]): reason for place, reason in batch.wrong.items()}
        reporter.advance(len(batch.rows))
        if (part := stops.get(int(batch.rows[-1]) + 1)) is not None:
            yield part, np.concatenate(waiting), wrong
            waiting, wrong = [], {}


def _forward(network: Any, batch: ReadBatch, device: torch.device) -> NDArray[np.float32]:
    """Return the logits of a batch, NaN for what could not be read."""
    values = batch.values.to(device)
    with torch.inference_mode():
        inputs = network.normalize(values) if values.dtype == torch.uint8 else values
        logits: NDArray[np.float32] = network(inputs).float().cpu().numpy().copy()
    if not np.isfinite(logits).all():
        raise InputError("the run gives scores that are no numbers: its training has diverged.")
    logits[list(batch.wrong)] = np.nan
    return logits


def _refuse_unreadable(parts: ChunkStore, plan: Sequence[Chunk], path: Path) -> None:
    """Name what could not be read, and forget the parts it is in: they are computed again once it is mended."""
    spoiled = {part: wrong for part in plan if (wrong := parts.reasons(part))}
    reasons = [reason for wrong in spoiled.values() for reason in wrong.values()]
    if not reasons:
        return
    for part in spoiled:
        parts.forget(part)
    shown = "".join(f"\n  {reason}" for reason in reasons[:_SHOWN])
    more = f"\n  …and {len(reasons) - _SHOWN:,} more" if len(reasons) > _SHOWN else ""
    raise InputError(
        f"{_count(len(reasons))} cannot be read, {path} was not written:{shown}{more}\n"
        "Mend them and call the command again, or have their rows left blank: --on-bad-image skip. The others are done."
    )


def _assemble(
    sources: Sequence[ImageSource], plan: Sequence[Chunk], parts: ChunkStore, columns: PredictionColumns, path: Path
) -> PredictionSummary:
    """Put the parts together into the file, a bounded number of entries at a time."""
    totals = np.zeros(3, dtype=np.int64)
    with atomic_path(path) as temporary, _writer(temporary, columns) as writer:
        for names, logits in _groups(sources, plan, parts, len(columns.classes)):
            bad = np.isnan(logits[:, 0])
            writer.write_table(columns.table(names, np.nan_to_num(logits), bad))
            labels = labels_from_scores(expit(logits[~bad]), columns.thresholds, columns.calibration)
            totals += np.bincount(labels.ravel(), minlength=3)
    absent, present, unsure = totals.tolist()
    return PredictionSummary(
        path, sum(map(len, sources)), absent, present, unsure, *_list_unreadable(sources, plan, parts, path)
    )


def _list_unreadable(
    sources: Sequence[ImageSource], plan: Sequence[Chunk], parts: ChunkStore, path: Path
) -> tuple[int, tuple[str, ...], Path | None]:
    """Write what could not be read into a CSV beside the file; return how many, a few reasons, and the CSV."""
    spoiled = [part for part in plan if parts.reasons(part)]
    if not spoiled:
        return 0, (), None
    listed = path.with_name(f"{path.stem}-unreadable.csv")
    shown: list[str] = []
    count = 0
    with atomic_path(listed) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["image", "reason"])
        for part in spoiled:
            wrong = parts.reasons(part)
            rows.writerows([sources[part.source].names[row], reason] for row, reason in wrong.items())
            count += len(wrong)
            shown += list(wrong.values())[: _SHOWN - len(shown)]
    return count, tuple(shown), listed


def _writer(path: Path, columns: PredictionColumns) -> Any:
    """Open a CSV or Parquet file for tables."""
    if path.suffix.lower() == ".csv":
        return pa.csv.CSVWriter(path, columns.schema)
    return pq.ParquetWriter(path, columns.schema)


def _groups(
    sources: Sequence[ImageSource], plan: Sequence[Chunk], parts: ChunkStore, classes: int
) -> Iterator[tuple[list[str], NDArray[np.float32]]]:
    """Yield the names and logits of several parts at a time."""
    names: list[str] = []
    logits: list[NDArray[np.float32]] = []
    for part in plan:
        names += sources[part.source].names[part.start : part.stop]
        logits.append(parts.read(part))
        if len(names) * classes >= MAX_ENTRIES or part is plan[-1]:
            yield names, np.concatenate(logits)
            names, logits = [], []


def _count(number: int) -> str:
    return f"{number:,} image{'s' if number != 1 else ''}"
