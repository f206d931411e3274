"""``labelgap predict``: write tags and scores of images."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, get_args

from typer import Argument

import labelgap as lg
from labelgap.cli import options
from labelgap.cli.options import data_arguments, joined_processes, open_dataset, option, parse_count, with_options
from labelgap.cli.printing import print_fields, print_parts, print_skipped, some_names
from labelgap.core.errors import InputError
from labelgap.core.settings import DataOptions
from labelgap.core.text import pluralize

if TYPE_CHECKING:
    from labelgap.data import ImageSource
    from labelgap.inference.predict import PredictionSummary

_IMAGES: Final = "Images, folders, a pattern, a text file with a path per line; or DATA: a CSV, features …"
_LAYOUT: Final = (
    "lists: image,present,unsure,absent, as `train` reads them; wide: scores, probabilities and labels, a row per "
    "image; long: the same, a row per image and class."
)


@dataclass(frozen=True)
class PredictOptions:
    """How to predict and what to write: arguments of ``predict_to_file``."""

    out: Annotated[str, option("File to write, .csv or .parquet; or folder or URL of parts.")] = "predictions.csv"
    layout: Annotated[str, option(_LAYOUT)] = "lists"
    device: options.Device = "auto"
    workers: Annotated[str | None, option(options.WORKERS, "depends on the device")] = None
    batch_size: Annotated[int, option("Images per batch.")] = 64
    force: options.Force = False
    restart: Annotated[bool, option("Do not resume an unfinished prediction.")] = False

    @property
    def given(self) -> set[str]:
        """The names of the options that are not the defaults."""
        return {name for name, value in vars(self).items() if value != getattr(PredictOptions, name)}


@with_options(data_options=DataOptions, writing=PredictOptions, parts=options.PartOptions)
def predict(
    run: options.RunFolder,
    images_or_data: Annotated[list[str], Argument(metavar="IMAGES|DATA", help=_IMAGES)],
    data_options: DataOptions,
    writing: PredictOptions,
    parts: options.PartOptions,
    split: Annotated[str, option("Split of DATA: train, val, test or all.")] = "all",
    features: Annotated[bool, option("Write features too.", rich_help_panel=options.PARTS)] = False,
) -> None:
    """Write the tags of images, or their scores and probabilities. Called again after a kill, it resumes."""
    from labelgap.inference.predict import predict_to_file

    if parts.asked:
        if unused := [*data_arguments(data_options), *(name for name in ("layout", "force") if name in writing.given)]:
            raise InputError(f"--{unused[0].replace('_', '-')} does not apply to a prediction in parts: leave it out.")
        return _predict_parts(run, images_or_data, writing, parts, features)
    with joined_processes(writing.device):
        opened = lg.open_run(run)
        _ = opened.thresholds  # an error when the run is not finished
        sources = _sources(images_or_data, data_options, split)
    bad = data_options.on_bad_image or "skip"
    workers = None if writing.workers is None else parse_count(writing.workers, "--workers")
    given = {**vars(writing), "workers": workers}
    result = predict_to_file(opened, sources, on_bad_image=bad, quiet=False, **given)
    _print(opened, result)


def _predict_parts(
    run: Path, sources: Sequence[str], writing: PredictOptions, parts: options.PartOptions, features: bool
) -> None:
    if writing.out.endswith((".csv", ".parquet")):
        raise InputError(f"{writing.out}: parts are written to a folder or its URL, e.g. --out found.")
    if len(sources) > 1:
        raise InputError(
            f"{sources[1]}: --engine and --shards take one source: a folder, a bucket, a file or a quoted pattern."
        )
    predictor = lg.Predictor(run, device=writing.device, batch_size=writing.batch_size, features=features)
    result = parts.predict(predictor, sources[0], writing.out, writing.workers, restart=writing.restart)
    present, absent = (sum(each.labels[state] for each in result.summaries) for state in (0, 1))
    print_fields(("labels", f"{present:,} present, {absent:,} absent"))
    audit = f"labelgap audit {shlex.quote(str(run))} --predictions {shlex.quote(writing.out)} --out candidates"
    print_parts(result, parts.part, audit)


def _sources(texts: Sequence[str], options: DataOptions, split: str) -> list[ImageSource]:
    from labelgap.inference.sources import find_images, is_dataset_argument

    tables = [text for text in texts if is_dataset_argument(text)]
    if tables and len(texts) > 1:
        raise InputError(f"{tables[0]} is DATA, not an image: predict it in a command of its own.")
    if tables:
        data = open_dataset(texts[0], options)
        chosen = data.splits if split == "all" else (data.split(split),)
        print_fields(("data", f"{data.name}: {', '.join(f'{len(each):,} {each.name}' for each in chosen)}"))
        print_skipped(data)
        return [each.images for each in chosen]
    if unused := data_arguments(options).keys() - {"images", "on_bad_image"}:
        raise InputError(f"--{sorted(unused)[0].replace('_', '-')} applies to DATA, and these are images.")
    found = find_images(texts, options.images)
    to_last = f" to {found.names[-1]}" if len(found) > 1 else ""
    print_fields(("images", f"{len(found):,}, from {found.names[0]}{to_last}"))
    return [found]


def _print(run: lg.Run, result: PredictionSummary) -> None:
    from labelgap.metrics.validation import ThresholdMark

    marks, calibration = Counter(run.thresholds.marks), run.calibration
    sources = ", ".join(f"{marks[mark]:,} {mark}" for mark in get_args(ThresholdMark) if marks[mark])
    states = f"{result.present:,} present, {result.absent:,} absent, {result.unsure:,} unsure"
    undecided, unsure = marks["default"] * (result.images - result.unreadable), []
    if near := result.unsure - undecided:
        share = 100 * near / (result.present + result.absent + result.unsure)
        unsure.append(f"{pluralize(near, 'label')} ({share:.1f} %) too near the threshold to decide")
    if undecided:
        names = [name for name, mark in zip(run.config.classes, run.thresholds.marks, strict=True) if mark == "default"]
        of_these = f"{pluralize(undecided, 'label')} of {some_names(names)}"
        unsure.append(f"{of_these}: the known labels support no threshold")
    scores = "scores", "rank images, and are not probabilities: the run has no calibration"
    if calibration is not None:
        estimated = f" (estimated: {100 * calibration.known:.0f} % of their labels are known)"
        where = "out of fold" if run.config.folds else "on held-out images"
        about = f"{where}: a probability for {pluralize(sum(calibration.classes), 'class')}"
        scores = "calibrated", about + ("" if calibration.known == 1 else estimated)
    print_fields(("labels", f"{states}; thresholds: {sources}"), ("unsure", unsure), scores)
    if result.unreadable:
        more = result.unreadable - len(result.errors)
        rest = f"{f'…and {more:,} more; ' if more else ''}all of them: {result.error_file}"
        about = f"{pluralize(result.unreadable, 'image')} could not be read, the rows are blank:"
        print_fields(("labelgap:", about), *(("", line) for line in (*result.errors, rest)), width=2, stderr=True)
    print_fields(("wrote", f"{result.path}: {pluralize(result.images, 'image')}"))
