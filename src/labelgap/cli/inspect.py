"""``labelgap inspect``: how DATA is read, and what its labels allow."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from labelgap.cli.options import (
    AsJson,
    Data,
    DataOptions,
    Force,
    LabelSeed,
    Observe,
    fix_command,
    format_arguments,
    open_dataset,
    with_options,
)
from labelgap.cli.printing import print_json
from labelgap.core.errors import InputError, LabelGapError, ProblemsError

if TYPE_CHECKING:
    from rich.console import Console

    from labelgap.data import Dataset
    from labelgap.data.summary import DatasetSummary

_CHECKS: Final = {
    "ends": "every file has the start and the end of an image; --check-images decodes all of them",
    "no": "not checked; --check-images decodes all of them",
}
"""What is printed of a check of the images that did not decode them."""


@with_options(data_options=DataOptions)
def inspect(
    data: Data,
    data_options: DataOptions,
    observe: Observe = None,
    label_seed: LabelSeed = 1200,
    as_json: AsJson = False,
    per_class: Annotated[bool, typer.Option("--per-class", help="Print a line for every class as well.")] = False,
    report: Annotated[bool, typer.Option("--report", help="Write a page of images with their labels.")] = False,
    out: Annotated[Path | None, typer.Option(help="File of --report.", show_default="NAME-inspect.html")] = None,
    no_images: Annotated[bool, typer.Option("--no-images", help="Leave images out of the page.")] = False,
    fix: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a clean copy of a table, and say every change; print nothing else."),
    ] = None,
    force: Force = False,
    check_images: Annotated[
        bool, typer.Option("--check-images", help="Decode all images, and name those that cannot be read.")
    ] = False,
) -> None:
    """Print how DATA is read, what looks wrong, and what its labels allow."""
    from labelgap.data.summary import summarize

    if fix is not None:
        if observe is not None or per_class or report or out is not None or check_images:
            raise InputError(
                f"--fix writes {fix}: inspect that file for a report, or with --observe, --per-class or --check-images."
            )
        _fix(data, fix, data_options, force, as_json)
        return
    started = time.perf_counter()
    with _note_about_images(check_images):
        opened = open_dataset(data, data_options, observe, label_seed)
    image_check = _check_images(opened, check_images)
    seconds = time.perf_counter() - started
    summary = summarize(opened, format_arguments(data, data_options, observe, label_seed))
    page = None
    if report or out is not None:
        from labelgap.reporting.pages.contact_sheet import write_contact_sheet

        page = write_contact_sheet(opened, out or _page_name(opened.name), summary=summary, images=not no_images)
    if as_json:
        written = None if page is None else str(page)
        found = {"seconds": round(seconds, 3), "report": written, "image_check": image_check}
        print_json({**summary.to_json(), **found})
        return
    from labelgap.cli.inspect_screen import LABEL_WIDTH, class_table, inspect_lines
    from labelgap.core.terminal.console import make_console

    console = make_console(soft_wrap=True)
    lines = inspect_lines(summary, seconds, training_time(opened) if summary.next else None, console.width)
    further = _further_commands(opened, summary, data, data_options)
    if image_check in _CHECKS:
        further["images"] = _CHECKS[image_check]
    if page is not None:
        further["report"] = str(page)
    lines += [f"{name:<{LABEL_WIDTH}}{text}" for name, text in further.items()]
    lines += ["", *class_table(summary)] if per_class else []
    _print_lines(lines, console)


def _further_commands(opened: Dataset, summary: DatasetSummary, data: str, options: DataOptions) -> dict[str, str]:
    """Return the commands that make an accuracy measurable and clean the table, where they help."""
    from labelgap.core.files import display_path
    from labelgap.data.feature_vectors import FeatureVectors
    from labelgap.labels.io.similar_names import fold_case
    from labelgap.training.config.review_commands import RANDOM_IMAGES, review_split

    commands = {}
    if summary.cannot and summary.whole.unknown and not isinstance(opened.train.images, FeatureVectors):
        count = min(RANDOM_IMAGES, len(review_split(opened)))
        commands["accuracy"] = f"labelgap review {format_arguments(data, options)} --random {count}"
    is_table = opened.recipe.get("name") in ("csv", "parquet")
    if is_table and fold_case({row.name: row.present for row in summary.classes}):
        command = fix_command(data, display_path(opened.recipe["path"]), options)
        commands["fix"] = f"{command}   (one spelling of each tag)"
    return commands


@contextmanager
def _note_about_images(decode: bool) -> Iterator[None]:
    """Add to an error that images were not decoded, if they should be; those of a table are, whatever else is wrong."""
    try:
        yield
    except ProblemsError as error:
        if decode and not error.unit:
            error.add_note("--check-images decodes the images once these problems are solved")
        raise


def _check_images(data: Dataset, decode: bool) -> str | None:
    """Raise one error with all images that cannot be read; return how they were checked: "decoded", "ends", "no".

    Tables and folders of people's own decode all images when they are read. None for data without stored images.
    """
    from labelgap.data.images import FileImages, StoredImages
    from labelgap.data.scanning.file_check import MAX_QUICK_FILES, refuse_unreadable
    from labelgap.data.summary import OWN_FORMATS
    from labelgap.training.progress import Reporter

    images = [split.images for split in data.splits]
    if not all(isinstance(each, StoredImages) for each in images):
        if decode:
            raise InputError(f"{data.name} has no image files: leave --check-images out.")
        return None
    if data.recipe.get("name") in OWN_FORMATS:
        return "decoded"
    count, files = sum(map(len, images)), all(isinstance(each, FileImages) for each in images)
    if not decode and (not files or count > MAX_QUICK_FILES):
        return "no"
    reporter = Reporter()
    with reporter.bar("decoding images" if decode else "looking at images", count):
        refuse_unreadable(data, reporter.advance, decode=decode)
    return "decoded" if decode else "ends"


def _fix(data: str, out: Path, options: DataOptions, force: bool, as_json: bool) -> None:
    """Write a clean table and print its changes."""
    from labelgap.cli.inspect_fix import fix_lines
    from labelgap.data.cleaning import fix_table

    given = {name: value for name, value in options.given().items() if name not in ("on_bad_image", "val", "test")}
    fixed = fix_table(data, out, given.pop("images", None), force=force, **given)
    if as_json:
        print_json(fixed.to_json())
        return
    images = options.images
    if images is None and fixed.source.parent.resolve() != out.parent.resolve():
        images = fixed.source.parent
    classes = list(fixed.data.classes) if options.classes else None
    left = replace(options, images=images, classes=classes, rename=None, aliases=None, on_bad_image=None)
    print("\n".join(fix_lines(fixed, f"labelgap train {format_arguments(str(out), left)} --out runs/first")))


def training_time(data: Dataset) -> str | None:
    """Return how long a training takes on this machine; None for data without image files, or when it cannot be told.

    An image that cannot be read is reported by the training.
    """
    from labelgap.core.text import format_duration
    from labelgap.data.images import StoredImages
    from labelgap.training.config.request import TrainingRequest
    from labelgap.training.fit import dry_run

    if not isinstance(data.train.images, StoredImages):
        return None
    try:
        cost = dry_run(data, TrainingRequest())
    except (LabelGapError, ImportError, RuntimeError, OSError):
        return None
    return f"about {format_duration(cost.seconds)} on this machine ({cost.protocol}, {data.backbone})"


def _page_name(name: str) -> Path:
    """Return the file name of the page."""
    stem = re.sub(r"[^\w.-]+", "-", Path(name).stem).strip("-.") or "data"
    return Path(f"{stem}-inspect.html")


def _print_lines(lines: Sequence[str], console: Console) -> None:
    """Print lines; color marks only what needs attention."""
    from rich.text import Text

    from labelgap.cli.inspect_screen import LABEL_WIDTH

    styles = {"looks wrong": "yellow", "you cannot": "yellow", "next": "bold"}
    for line in lines:
        style = styles.get(line[:LABEL_WIDTH].strip(), "")
        console.print(Text.assemble((line[:LABEL_WIDTH], style), line[LABEL_WIDTH:]))
