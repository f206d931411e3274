"""``labelgap report``."""

from __future__ import annotations

from typing import Annotated

import typer

from labelgap.cli.options import RunFolder

__all__ = ["report"]


def report(
    run: RunFolder,
    no_images: Annotated[bool, typer.Option("--no-images", help="Leave images out.")] = False,
) -> None:
    """Write report.html of a run or a study again."""
    from labelgap.reporting import write_report

    print(f"report    {write_report(run, images=not no_images)}")
