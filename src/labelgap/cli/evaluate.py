"""``labelgap evaluate``."""

from __future__ import annotations

from typing import Annotated

import typer

from labelgap.cli.options import AsJson, Data, DataOptions, Device, RunFolder, Workers, open_dataset, with_options

__all__ = ["evaluate"]


@with_options(data_options=DataOptions)
def evaluate(
    run: RunFolder,
    data: Data,
    data_options: DataOptions,
    split: Annotated[
        str | None,
        typer.Option(help="train, val, test or all.", show_default="test, or all when DATA has no splits"),
    ] = None,
    device: Device = "auto",
    workers: Workers = None,
    resamples: Annotated[int, typer.Option(help="Bootstrap resamples of the intervals; 0 for none.")] = 1000,
    as_json: AsJson = False,
) -> None:
    """Measure a run on data, as far as the known labels allow: with 95 % intervals, and a row per class."""
    from labelgap.cli.printing import print_evaluation, print_json
    from labelgap.data.split import is_auto_split
    from labelgap.training import open_run

    opened_run = open_run(run)
    opened = open_dataset(data, data_options)
    chosen = split or ("all" if not opened_run.uses_data(opened) and is_auto_split(opened) else "test")
    measured = opened_run.evaluate(opened, chosen, device=device, workers=workers, resamples=resamples)
    if as_json:
        print_json(measured)
        return
    print_evaluation(chosen, measured)
    if shared := measured["trained_images"]:
        print(f"warning   the run was trained on {shared:,} of these images: the numbers are too high")
