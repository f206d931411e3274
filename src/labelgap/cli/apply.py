"""``labelgap apply``: write the labels with the decisions of reviews."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument

from labelgap.cli.options import Force, RunDataOptions, option, parse_names, with_options
from labelgap.cli.printing import Field, print_fields
from labelgap.core.errors import InputError
from labelgap.core.files import display_path
from labelgap.core.text import pluralize, truncate_text

if TYPE_CHECKING:
    from labelgap.review.apply import ApplyResult


@with_options(run_data=RunDataOptions)
def apply(
    runs: Annotated[list[Path], Argument(metavar="RUN…", help="Runs and reviews; the table is that of the first.")],
    run_data: RunDataOptions,
    out: Annotated[Path, option("The table to write: .csv or .parquet.")],
    source: Annotated[list[str] | None, option("Apply revisions of this method too, e.g. ll-cp; repeatable.")] = None,
    force: Force = False,
) -> None:
    """Write the labels with people's decisions applied, in the table's own format; the data are never changed."""
    from labelgap.review import open_review_folder
    from labelgap.review.apply import apply_decisions
    from labelgap.review.store import read_decisions

    folders = [open_review_folder(runs[0], run_data.data, **run_data.given()), *map(open_review_folder, runs[1:])]
    decided = [read_decisions(folder.path) for folder in folders]
    if not source and not any(decided):
        raise InputError(f"{runs[0]} has no decisions yet: labelgap review {runs[0]}. Nothing was written.")
    result = apply_decisions(folders, out, parse_names(source, "--source"), force=force, decided=decided)
    counts = [split.labels.counts().total for split in result.data.splits]
    present, absent, unknown = map(sum, zip(*counts, strict=True))
    changed = ", ".join(f"{count:,} by {name}" for name, count in result.changed.items()) or "none"
    print_fields(
        ("wrote", f"{', '.join(map(str, (result.path, *result.others.values())))} and {result.provenance}"),
        ("labels", f"{present:,} present, {absent:,} absent, {unknown:,} unknown"),
        ("changed", f"{changed}; {result.decided:,} decisions of people"),
        *_notes(result),
        ("next", _next_command(result)),
    )


def _notes(result: ApplyResult) -> Iterator[Field]:
    """Yield what is special about a result."""
    own, added, lists = (
        result.own_format,
        result.added,
        result.data.recipe.get("options", {}).get("unlisted") == "absent",
    )
    if added:
        yield "classes", f"{len(added):,} added: {truncate_text(', '.join(added), 200)}; unknown where nobody decided"
    if added and own is None and lists:
        yield "format", "a column per class: lists where an unlisted class is absent cannot say unknown"
    if result.contradicted:
        labels = pluralize(result.contradicted, "label was", "labels were")
        yield "merged", f"{labels} decided differently in two reviews: the newer decision counts"
    if result.kept:
        yield "kept", f'{result.kept:,} answered "can\'t tell": these lists cannot say unknown'
    if own is not None and own.absent_added:
        yield "added", "a column 'absent', for the labels that were found to be absent"
    if own is not None and own.zeros_cleared:
        yield "zeros", "0 meant unknown; it is blank now, and 0 means absent: leave out --zeros unknown"
    if result.soft:
        yield "left out", f"{result.soft:,} soft targets, which are not labels"


def _next_command(result: ApplyResult) -> str:
    """Return the command that trains on the new table; empty when its images are not files."""
    from labelgap.data.images import FileImages
    from labelgap.training.rerun import data_arguments

    images, options = result.data.train.images, dict(result.data.recipe.get("options", {}))
    if not isinstance(images, FileImages):
        return ""
    folder = display_path(options.get("images") or images.root)
    words = ["--images", folder, *(["--allow-leaks"] if options.get("allow_leaks") else [])]
    if result.own_format is not None:
        options = {"images": str(images.root), **options, **{name: str(at) for name, at in result.others.items()}}
        options.pop("zeros", None)
        if options.get("classes") and result.added:
            options["classes"] = [*options["classes"], *result.added]
        words = (data_arguments({"name": "", "path": "", "options": options, "steps": []}) or ["", *words])[1:]
    return shlex.join(["labelgap", "train", str(result.path), *words, "--out", "runs/better"])
