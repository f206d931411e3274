"""``labelgap apply``: write the labels with the decisions of reviews."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from labelgap.cli.options import Force, RunDataOptions, with_options

if TYPE_CHECKING:
    from labelgap.review.apply import ApplyResult


@with_options(run_data=RunDataOptions)
def apply(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN…", help="Folders of runs and reviews; the table is that of the first.")
    ],
    run_data: RunDataOptions,
    out: Annotated[Path, typer.Option(help="The table to write: .csv or .parquet.")],
    source: Annotated[
        list[str] | None, typer.Option(help="Method whose revisions to apply as well, e.g. ll-cp; repeatable.")
    ] = None,
    force: Force = False,
) -> None:
    """Write the labels with people's decisions applied, in the table's own format; the data are never changed."""
    from labelgap.cli.parsing import parse_names
    from labelgap.core.errors import InputError
    from labelgap.review import open_review_folder
    from labelgap.review.apply import apply_decisions
    from labelgap.review.store import read_decisions

    folders = [open_review_folder(runs[0], run_data.data, **run_data.given()), *map(open_review_folder, runs[1:])]
    decided = [read_decisions(folder.path) for folder in folders]
    if not source and not any(decided):
        raise InputError(f"{runs[0]} has no decisions yet: labelgap review {runs[0]}. Nothing was written.")
    result = apply_decisions(folders, out, parse_names(source, "--source") or (), force=force, decided=decided)
    present, absent, unknown = (
        sum(counts) for counts in zip(*(split.labels.counts().total for split in result.data.splits), strict=True)
    )
    written = ", ".join(map(str, (result.path, *result.others.values())))
    print(f"{'wrote':<10}{written} and {result.provenance}")
    print(f"{'labels':<10}{present:,} present, {absent:,} absent, {unknown:,} unknown")
    changed = ", ".join(f"{count:,} by {name}" for name, count in result.changed.items()) or "none"
    print(f"{'changed':<10}{changed}; {result.decided:,} decisions of people")
    for label, text in _notes(result):
        print(f"{label:<10}{text}")
    if command := _next_command(result):
        print(f"{'next':<10}{command}")


def _notes(result: ApplyResult) -> list[tuple[str, str]]:
    """Return what is special about a result: a word, and a sentence."""
    from labelgap.core.text import pluralize, truncate_text

    notes = []
    if result.added:
        names = truncate_text(", ".join(result.added), 200)
        notes.append(("classes", f"{len(result.added):,} added: {names}; unknown where nobody decided"))
        if result.own_format is None and result.data.recipe.get("options", {}).get("unlisted") == "absent":
            notes.append(("format", "a column per class: lists where an unlisted class is absent cannot say unknown"))
    if result.contradicted:
        labels = pluralize(result.contradicted, "label was", "labels were")
        notes.append(("merged", f"{labels} decided differently in two reviews: the newer decision counts"))
    if result.kept:
        notes.append(("kept", f'{result.kept:,} answered "can\'t tell": these lists cannot say unknown'))
    if result.own_format is not None and result.own_format.absent_added:
        notes.append(("added", "a column 'absent', for the labels that were found to be absent"))
    if result.own_format is not None and result.own_format.zeros_cleared:
        notes.append(("zeros", "0 meant unknown; it is blank now, and 0 means absent: leave out --zeros unknown"))
    if result.soft:
        notes.append(("left out", f"{result.soft:,} soft targets, which are not labels"))
    return notes


def _next_command(result: ApplyResult) -> str:
    """Return the command that trains on the new table; empty when its images are not files."""
    from labelgap.core.files import display_path
    from labelgap.data.images import FileImages
    from labelgap.training.config.rerun import data_arguments

    images, options = result.data.train.images, dict(result.data.recipe.get("options", {}))
    if not isinstance(images, FileImages):
        return ""
    folder = display_path(options.get("images") or images.root)
    words = ["--images", folder, *(["--allow-leaks"] if options.get("allow_leaks") else [])]
    if result.own_format is not None:
        options = {"images": str(images.root), **options}
        options.pop("zeros", None)
        if options.get("classes") and result.added:
            options["classes"] = [*options["classes"], *result.added]
        options |= {name: str(place) for name, place in result.others.items()}
        words = (data_arguments({"name": "", "path": "", "options": options, "steps": []}) or ["", *words])[1:]
    return shlex.join(["labelgap", "train", str(result.path), *words, "--out", "runs/better"])
