"""``labelgap apply``: the better table."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from labelgap.review.apply import ApplyResult

__all__ = ["apply"]


def apply(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run or a review.")],
    out: Annotated[Path, typer.Option(help="The table to write: .csv or .parquet.")],
    source: Annotated[
        list[str] | None, typer.Option(help="Methods whose revisions to apply as well, e.g. ll-cp; may be repeated.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
) -> None:
    """Write the labels with people's decisions laid over them; the data themselves are never touched."""
    from labelgap.cli.parsing import parse_names
    from labelgap.core.errors import InputError
    from labelgap.review import decisions, open_review_folder
    from labelgap.review.apply import apply_decisions

    folder = open_review_folder(run)
    if not source and not len(decisions(folder.path)):
        raise InputError(f"nobody has decided anything yet: labelgap review {run}. Nothing was written.")
    written = apply_decisions(folder, out, parse_names(source, "--source") or (), force=force)
    present, absent, unknown = (
        sum(counts) for counts in zip(*(split.labels.counts().total for split in written.data.splits), strict=True)
    )
    print(f"{'wrote':<10}{written.path} and {written.provenance}")
    print(f"{'labels':<10}{present:,} present, {absent:,} absent, {unknown:,} unknown")
    changed = ", ".join(f"{count:,} by {name}" for name, count in written.changed.items()) or "none"
    print(f"{'changed':<10}{changed}; {written.decided:,} decisions of people stand")
    if written.soft:
        print(f"{'left':<10}{written.soft:,} soft targets are no labels and are not in it")
    command = _next(written)
    if command:
        print(f"{'next':<10}{command}")


def _next(written: ApplyResult) -> str:
    """Return the command that trains on the new table, where its images are files."""
    from labelgap.core.files import display_path
    from labelgap.data.images import FileImages

    data = written.data
    if not isinstance(data.train.images, FileImages):
        return ""
    leaks = " --allow-leaks" if data.recipe.get("options", {}).get("allow_leaks") else ""
    folder = shlex.quote(display_path(data.recipe.get("options", {}).get("images") or data.train.images.root))
    return f"labelgap train {shlex.quote(str(written.path))} --images {folder}{leaks} --out runs/better"
