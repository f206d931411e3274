"""``labelgap evaluate`` and ``labelgap report``: what a run came to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from labelgap.cli.options import Data, DataOptions, Device, open_dataset, with_data_options
from labelgap.core.errors import LabelGapError

if TYPE_CHECKING:
    from labelgap.data import Dataset
    from labelgap.training import Run

__all__ = ["RunFolder", "evaluate", "report"]

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")]


@with_data_options
def evaluate(
    run: RunFolder,
    data: Data,
    data_options: DataOptions,
    split: Annotated[
        str | None,
        typer.Option(help="train, val, test or all. [default: test, or all where DATA has no splits]"),
    ] = None,
    device: Device = "auto",
    workers: Annotated[
        int | None, typer.Option(help="Processes that decode images. [default: what the device can use]")
    ] = None,
    resamples: Annotated[int, typer.Option(help="Of the bootstrap that gives the intervals; 0 for none.")] = 1000,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Measure a run on data, as far as the known labels support: with 95 % intervals, and a row per class."""
    from labelgap.cli.printing import print_evaluation
    from labelgap.data.split import is_auto_split
    from labelgap.training import open_run

    opened_run = open_run(run)
    opened = open_dataset(data, data_options)
    own = opened.recipe.get("path") == opened_run.config.data.get("path")
    chosen = split or ("all" if not own and is_auto_split(opened) else "test")
    measured = opened_run.evaluate(opened, chosen, device=device, workers=workers, resamples=resamples)
    if as_json:
        print(json.dumps(measured, ensure_ascii=False))
        return
    print_evaluation(chosen, measured)
    if warning := _learned_from(opened_run, opened, chosen, own):
        print(f"beware    {warning}")


def _learned_from(run: Run, data: Dataset, split: str, own: bool) -> str:
    """Say so where images that the run learned from are among those it was measured on; by name, as far as known."""
    from labelgap.data import load_from_recipe

    if own:
        return "" if split in ("val", "test") else "the run learned from images among these, and knows them too well"
    try:
        known = set(load_from_recipe(run.config.data).train.labels.images)
    except (LabelGapError, OSError):
        return ""
    splits = data.splits if split == "all" else [data.split(split)]
    shared = sum(image in known for part in splits for image in part.labels.images)
    return f"{shared:,} of these images, by name, are among those the run learned from" if shared else ""


def report(
    run: RunFolder,
    no_images: Annotated[bool, typer.Option("--no-images", help="Leave photos out.")] = False,
) -> None:
    """Write report.html of a run or a study anew."""
    from labelgap.reporting import write_report

    print(f"report    {write_report(run, images=not no_images)}")
