"""``labelgap evaluate`` and ``labelgap report``: what a run came to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from labelgap.cli.shared import Data, DataOptions, Device, open_dataset, with_data_options

__all__ = ["RunFolder", "evaluate", "report"]

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")]


@with_data_options
def evaluate(
    run: RunFolder,
    data: Data,
    data_options: DataOptions,
    split: Annotated[str, typer.Option(help="train, val, test, or all.")] = "test",
    device: Device = "auto",
    workers: Annotated[
        int | None, typer.Option(help="Processes that decode images. [default: what the device can use]")
    ] = None,
    resamples: Annotated[int, typer.Option(help="Of the bootstrap that gives the intervals; 0 for none.")] = 1000,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Measure a run on data, as far as the known labels support: with 95 % intervals, and a row per class."""
    from labelgap.cli.printing import print_evaluation
    from labelgap.training import open_run

    opened_run = open_run(run)
    opened = open_dataset(data, data_options)
    measured = opened_run.evaluate(opened, split, device=device, workers=workers, resamples=resamples)
    if as_json:
        print(json.dumps(measured, ensure_ascii=False))
    else:
        print_evaluation(split, measured)
        if split in ("train", "all") and opened.recipe.get("path") == opened_run.config.data.get("path"):
            print("beware    the run learned from images among these, and knows them better than it will know others")


def report(
    run: RunFolder,
    no_images: Annotated[bool, typer.Option("--no-images", help="Leave photos out.")] = False,
) -> None:
    """Write report.html of a run or a study anew."""
    from labelgap.reporting import write_report

    print(f"report    {write_report(run, images=not no_images)}")
