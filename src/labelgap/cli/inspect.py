"""``labelgap inspect``: how DATA is read, and what its labels allow."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import labelgap as lg
from labelgap.cli import options
from labelgap.cli.options import DataSource, data_arguments, format_arguments, option, with_options
from labelgap.cli.printing import Field, print_fields, print_json, print_table, some_names
from labelgap.core.errors import InputError, Problem, ProblemsError, merge_repeated
from labelgap.core.files import display_path, file_stem
from labelgap.core.text import pluralize, truncate_text

if TYPE_CHECKING:
    from labelgap.data.cleaning import FixedTable
    from labelgap.data.summary import ClassSummary, DatasetSummary, SplitSummary

_WIDTH: Final = 13  # width of the column of headings
_STATES: Final = ("present", "absent", "unknown")
_SHOWN: Final = 20
_CHECKS: Final = {"ends": "every file has the start and the end of an image", "no": "not checked"}
"""What is printed of a check of the images that did not decode them."""
_DRY_RUN: Final = "--dry-run says how long it takes"
_CHANGED: Final = {
    **{"left_out": "row", "merged": "row", "images": "name", "unknown": "label", "split": "cell"},
    **{"columns": "column", "classes": "tag", "blanks": "row", "copies": "photo"},
}
"""What is counted of each kind of change of ``--fix``."""


@with_options(source=DataSource)
def inspect(
    data: options.Data,
    source: DataSource,
    as_json: options.AsJson = False,
    per_class: Annotated[bool, option("Print a line for every class as well.")] = False,
    report: Annotated[bool, option("Write a page of images with their labels.")] = False,
    out: Annotated[Path | None, option("File of --report.", "NAME-inspect.html")] = None,
    no_images: options.NoImages = False,
    fix: Annotated[Path | None, option("Write a clean copy of a table, and say every change.", metavar="FILE")] = None,
    accept_suggestions: Annotated[
        bool, option("With --fix: take the only file that a misspelled image can mean.")
    ] = False,
    force: options.Force = False,
    check_images: Annotated[bool, option("Decode all images, and name those that cannot be read.")] = False,
) -> None:
    """Print how DATA is read, what looks wrong, and what its labels allow."""
    from labelgap.data.summary import summarize

    if fix is not None and (source.observe is not None or per_class or report or out is not None or check_images):
        raise InputError(
            f"--fix writes {fix}: inspect that file for a report, or with --observe, --per-class or --check-images."
        )
    if fix is not None:
        return _fix(data, fix, source, as_json, force=force, accept_suggestions=accept_suggestions)
    if accept_suggestions:
        raise InputError("--accept-suggestions belongs to --fix FILE: say where the clean table goes.")
    started = time.perf_counter()
    try:
        opened = source.open(data)
    except ProblemsError as error:
        if check_images and not error.unit:  # the images of a table are decoded, whatever else is wrong
            error.add_note("--check-images decodes the images once these problems are solved")
        raise
    image_check, page = _check_images(opened, check_images), None
    seconds = time.perf_counter() - started
    summary = summarize(opened, format_arguments(data, source))
    if report or out is not None:
        from labelgap.reporting.pages.contact_sheet import write_contact_sheet

        page = out or Path(f"{file_stem(opened.name)}-inspect.html")
        page = write_contact_sheet(opened, page, summary=summary, images=not no_images)
    if as_json:
        found = {"seconds": round(seconds, 3), "report": page, "image_check": image_check}
        return print_json({**summary.to_json(), **found})
    _print(summary, seconds)
    print_fields(
        ("next", [summary.next, "" if image_check is None else _DRY_RUN] if summary.next else None),
        *_further_commands(opened, summary, data, source),
        ("images", f"{_CHECKS[image_check]}; --check-images decodes all of them" if image_check in _CHECKS else None),
        ("report", page),
        width=_WIDTH,
    )
    if per_class:
        rows = [(row.name, *_counts(row), ", ".join(row.measurable) or "–") for row in summary.classes]
        print()
        print_table((summary.class_word, *_STATES, "measurable on"), rows, right=_STATES)


def _further_commands(opened: lg.Dataset, summary: DatasetSummary, data: str, given: DataSource) -> Iterable[Field]:
    """Yield the commands that make an accuracy measurable and clean the table, where they help."""
    from labelgap.data.images import FeatureVectors
    from labelgap.labels.io.classes import fold_case
    from labelgap.training.rerun import RANDOM_IMAGES, review_split

    if summary.cannot and summary.whole.unknown and not isinstance(opened.train.images, FeatureVectors):
        count = min(RANDOM_IMAGES, len(review_split(opened)))
        typed = format_arguments(data, options.without(given, "observe", "label_seed"))
        yield "accuracy", f"labelgap review {typed} --random {count}"
    is_table = opened.recipe.get("name") in ("csv", "parquet")
    if is_table and fold_case({row.name: row.present for row in summary.classes}):
        command = options.fix_command(data, display_path(opened.recipe["path"]), given)
        yield "fix", f"{command}   (one spelling of each tag)"


def _check_images(data: lg.Dataset, decode: bool) -> str | None:
    """Raise one error with all unreadable images; return the check: "decoded", "ends", "no", None without images."""
    from labelgap.data.images import FileImages, StoredImages
    from labelgap.data.scanning import MAX_QUICK_FILES, refuse_unreadable
    from labelgap.data.summary import OWN_FORMATS
    from labelgap.training.progress import Reporter

    images = [split.images for split in data.splits]
    if not all(isinstance(each, StoredImages) for each in images):
        if decode:
            raise InputError(f"{data.name} has no image files: leave --check-images out.")
        return None
    if data.recipe.get("name") in OWN_FORMATS:  # which decode all images when they are read
        return "decoded"
    count, files = sum(map(len, images)), all(isinstance(each, FileImages) for each in images)
    if not decode and (not files or count > MAX_QUICK_FILES):
        return "no"
    reporter = Reporter()
    with reporter.bar("decoding images" if decode else "looking at images", count):
        refuse_unreadable(data, reporter.advance, decode=decode)
    return "decoded" if decode else "ends"


def _print(summary: DatasetSummary, seconds: float) -> None:
    from labelgap.data.summary import RARE_BELOW

    whole, image = summary.whole, summary.image_word
    few = sum(0 < each.present < RARE_BELOW for each in summary.classes)
    print(f"{summary.name}: {whole.images:,} {image}s, {len(summary.classes):,} {summary.class_words}", end="")
    print(f"        read in {seconds:.1f} s")
    header, rows = (f"{image}s", *_STATES), {"all": whole} | {f"  {name}": own for name, own in summary.splits.items()}
    cells = [(name, f"{row.images:,}", *_counts(row)) for name, row in rows.items()]
    print_table(("", *header), cells, right=header)
    share = _percent(whole.unknown, whole.present + whole.absent + whole.unknown)
    given = summary.class_words if summary.present_per_image != 1 else summary.class_word
    rare = summary.rarest(min(few, 8) or 3)
    more = f" and {few - len(rare):,} more" if few > len(rare) else ""
    expect = f"{more}   fewer than {RARE_BELOW} {image}s: expect little from these" if few else ""
    note = [summary.note] if summary.note else []
    warnings = [each for each in summary.warnings if each.kind != "few_present"]
    wrong = [f"{each}: {some_names(each.names)}" if each.names else str(each) for each in warnings]
    shown = [each for each in summary.findings if each.topic != "counts" and not each.warning]
    print_fields(
        ("labels", [f"{summary.present_per_image:.1f} {given} given per {image}, {share} of labels unknown", *note]),
        ("rarest", " · ".join(f"{truncate_text(row.name)} {row.present:,}" for row in rare) + expect),
        ("looks wrong", [*wrong, *(str(each) for each in summary.findings if each.warning)]),
        ("read as", [str(each) for each in shown if each.topic != "split"]),
        ("split", [str(each) for each in shown if each.topic == "split"]),
        ("you can", summary.can),
        ("you cannot", summary.cannot),
        width=_WIDTH,
        wrap=True,
    )


def _counts(row: SplitSummary | ClassSummary) -> tuple[str, str, str]:
    return f"{row.present:,}", f"{row.absent:,}", f"{row.unknown:,}"


def _percent(part: int, whole: int) -> str:
    """Return a share in percent; only nothing is 0 % and only everything is 100 %."""
    if part in (0, whole):
        return "0 %" if part == 0 else "100 %"
    value = round(100 * part / whole)
    return "under 1 %" if value < 1 else "over 99 %" if value > 99 else f"{value} %"


def _fix(data: str, out: Path, given: DataSource, as_json: bool, **how: bool) -> None:
    read_with = data_arguments(options.without(given, "on_bad_image", "val", "test"))
    fixed = lg.clean_table(data, out, read_with.pop("images", None), **how, **read_with)
    if as_json:
        return print_json(fixed.to_json())
    photos, tags = pluralize(sum(map(len, fixed.data.splits)), "photo"), pluralize(len(fixed.data.classes), "tag")
    print(f"{fixed.source}: {pluralize(fixed.rows, 'row')}; {fixed.path}: {photos}, {tags}")
    moved = fixed.source.parent.resolve() != out.parent.resolve()
    kept: dict[str, Any] = {"images": given.images or (fixed.source.parent if moved else None)}
    kept |= {"classes": list(fixed.data.classes) if given.classes else None}
    left = options.without(given, "rename", "aliases", "on_bad_image").model_copy(update=kept)
    perhaps = [*map(str, fixed.proposals), "nothing was done about these: repeat the command with --force and --rename"]
    print_fields(
        *_changes(fixed),
        ("changed", None if fixed.changes else "nothing: it can be used as it is"),
        ("perhaps", perhaps if fixed.proposals else None),
        ("wrote", f"{fixed.path} and {fixed.changes_path}; {fixed.source} is as it was"),
        ("next", f"labelgap train {format_arguments(str(out), left)} --out runs/first"),
        width=_WIDTH,
    )


def _changes(fixed: FixedTable) -> Iterable[Field]:
    for kind, noun in _CHANGED.items():
        heading = "tags" if kind == "classes" else kind.replace("_", " ")
        listed: Sequence[Problem] = [Problem(each.line, each.text) for each in fixed.changes if each.kind == kind]
        note = " named, not changed" if kind == "copies" else ""
        yield heading, f"{pluralize(len(listed), noun)}{note}" if listed else None
        listed = listed if len(listed) <= _SHOWN else merge_repeated(listed)
        yield from ((f"  {fixed.unit} {each.line}", each.message) for each in listed[:_SHOWN])
        if len(listed) > _SHOWN:
            yield "", f"…and {len(listed) - _SHOWN:,} more: {fixed.changes_path}"
