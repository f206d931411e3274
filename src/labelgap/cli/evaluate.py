"""``labelgap evaluate`` and ``labelgap report``: what a run came to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from labelgap.cli.shared import Data, DataOptions, Device, open_dataset, with_data_options

__all__ = ["evaluate", "report"]

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")]


@with_data_options
def evaluate(
    run: RunFolder,
    data: Data,
    data_options: DataOptions,
    split: Annotated[str, typer.Option(help="train, val or test.")] = "test",
    device: Device = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Measure a run on data, as far as the known labels support."""
    from labelgap.cli.printing import print_measures
    from labelgap.training import open_run

    opened_run = open_run(run)
    measured = opened_run.evaluate(open_dataset(data, data_options), split, device=device)
    if as_json:
        print(json.dumps(measured, ensure_ascii=False))
    else:
        print_measures(split, measured)


def report(
    run: RunFolder,
    no_images: Annotated[bool, typer.Option("--no-images", help="Leave photos out.")] = False,
) -> None:
    """Write report.html of a run or a study anew."""
    from labelgap.reporting import write_report

    print(f"report    {write_report(run, images=not no_images)}")
