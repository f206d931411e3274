"""``labelgap report``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from labelgap.cli.options import RunData, RunFolder
from labelgap.core.errors import LabelGapError

if TYPE_CHECKING:
    from labelgap.data.dataset import Dataset

__all__ = ["report"]


def report(
    run: RunFolder,
    data: RunData = None,
    no_images: Annotated[bool, typer.Option("--no-images", help="Leave images out.")] = False,
) -> None:
    """Write report.html of a run or a study again; of a run with its data, where they can still be loaded."""
    from labelgap.reporting import write_report

    print(f"report    {write_report(run, data=_load_data(run, data), images=not no_images)}")


def _load_data(run: Path, source: str | None) -> Dataset | None:
    """Return the data that a run was trained on; None for a study, or with a note where they cannot be loaded."""
    from labelgap.data import load_moved
    from labelgap.training import open_run
    from labelgap.training.config.schema import CONFIG_FILE

    if not (run / CONFIG_FILE).is_file():
        return None
    opened = open_run(run)
    if source is not None:
        return load_moved(opened.config.data, source)
    try:
        data = opened.load_data()
    except (LabelGapError, OSError) as error:
        print(f"note      without label counts and example images: {error}")
        return None
    return data if data.classes == opened.config.classes else None
