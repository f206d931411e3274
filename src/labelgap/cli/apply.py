"""``labelgap apply``: write the labels with the decisions of a review."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from labelgap.cli.options import DATA_PANEL, Force, RunData

if TYPE_CHECKING:
    from labelgap.review.apply import ApplyResult

__all__ = ["apply"]


def apply(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run or a review.")],
    out: Annotated[Path, typer.Option(help="The table to write: .csv or .parquet.")],
    source: Annotated[
        list[str] | None, typer.Option(help="Method whose revisions to apply as well, e.g. ll-cp; repeatable.")
    ] = None,
    data: RunData = None,
    images: Annotated[
        Path | None,
        typer.Option(rich_help_panel=DATA_PANEL, help="With --data: folder that image names are relative to."),
    ] = None,
    force: Force = False,
) -> None:
    """Write the labels with people's decisions applied; the data themselves are never changed."""
    from labelgap.cli.parsing import parse_names
    from labelgap.core.errors import InputError
    from labelgap.review import open_review_folder
    from labelgap.review.apply import apply_decisions
    from labelgap.review.store import read_decisions

    if images is not None and data is None:
        raise InputError("--images belongs to --data: say where the table is as well.")
    folder = open_review_folder(run, data, images=images)
    decided = read_decisions(folder.path)
    if not source and not decided:
        raise InputError(f"{run} has no decisions yet: labelgap review {run}. Nothing was written.")
    result = apply_decisions(folder, out, parse_names(source, "--source") or (), force=force, decided=decided)
    present, absent, unknown = (
        sum(counts) for counts in zip(*(split.labels.counts().total for split in result.data.splits), strict=True)
    )
    print(f"{'wrote':<10}{result.path} and {result.provenance}")
    print(f"{'labels':<10}{present:,} present, {absent:,} absent, {unknown:,} unknown")
    changed = ", ".join(f"{count:,} by {name}" for name, count in result.changed.items()) or "none"
    print(f"{'changed':<10}{changed}; {result.decided:,} decisions of people")
    if result.soft:
        print(f"{'left out':<10}{result.soft:,} soft targets, which are not labels")
    if command := _next_command(result):
        print(f"{'next':<10}{command}")


def _next_command(result: ApplyResult) -> str:
    """Return the command that trains on the new table; empty when its images are not files."""
    from labelgap.core.files import display_path
    from labelgap.data.images import FileImages

    data = result.data
    if not isinstance(data.train.images, FileImages):
        return ""
    leaks = " --allow-leaks" if data.recipe.get("options", {}).get("allow_leaks") else ""
    folder = shlex.quote(display_path(data.recipe.get("options", {}).get("images") or data.train.images.root))
    return f"labelgap train {shlex.quote(str(result.path))} --images {folder}{leaks} --out runs/better"
