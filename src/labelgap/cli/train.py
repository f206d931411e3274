"""``labelgap train``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from labelgap.cli.shared import Data, DataOptions, Device, LabelSeed, Observe, open_dataset, with_data_options

__all__ = ["train"]


@with_data_options
def train(
    data: Data,
    data_options: DataOptions,
    out: Annotated[Path, typer.Option(help="Folder of the run.")],
    method: Annotated[str, typer.Option(help="See `labelgap methods`; auto chooses from the labels.")] = "auto",
    option: Annotated[
        list[str] | None, typer.Option(help="Of the method, e.g. delta_rel=0.2; may be repeated.")
    ] = None,
    backbone: Annotated[str | None, typer.Option(help="See `labelgap backbones`. [default: suits the data]")] = None,
    protocol: Annotated[str | None, typer.Option(help="linear or end-to-end. [default: suits the data]")] = None,
    head: Annotated[str, typer.Option(help="linear, or boostlu (with end-to-end).")] = "linear",
    observe: Observe = None,
    label_seed: LabelSeed = 1200,
    epochs: Annotated[int | None, typer.Option(help="How many. [default: suits the protocol]")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate of the head. [default: suits the protocol]")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Images per step. [default: suits the protocol]")] = None,
    seed: Annotated[int, typer.Option(help="Of initialisation, order and augmentation.")] = 0,
    device: Device = "auto",
    select: Annotated[str, typer.Option(help="How the epoch is chosen: auto, clean, known, observed, last.")] = "auto",
    trace: Annotated[str, typer.Option(help="Training labels to record: auto, all, off or a number.")] = "auto",
    workers: Annotated[int, typer.Option(help="Processes that decode images.")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    no_images: Annotated[bool, typer.Option("--no-images", help="Leave photos out of the report.")] = False,
) -> None:
    """Train a classifier and write a run folder with its report."""
    from labelgap.cli.parsing import parse_options
    from labelgap.cli.printing import print_data, print_run
    from labelgap.core.processes import is_main
    from labelgap.reporting import write_report
    from labelgap.training import fit
    from labelgap.training.devices import choose_device
    from labelgap.training.parallel import join, local_device

    join(local_device(choose_device(device)))
    opened = open_dataset(data, data_options, observe, label_seed)
    if is_main():
        print_data(opened)
    run = fit(
        opened,
        method,
        parse_options(option or ()),
        backbone,
        protocol,
        out,
        head=head,
        epochs=epochs,
        lr=lr,
        batch_size=batch_size,
        seed=seed,
        device=device,
        select=select,
        trace=trace,
        workers=workers,
        resume=resume,
    )
    if run.finished and is_main():
        print_run(run, write_report(run, data=opened, images=not no_images))
