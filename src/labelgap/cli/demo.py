"""``labelgap demo``: training with missing labels, on data that comes with labelgap."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from labelgap.cli.options import Device

if TYPE_CHECKING:
    from labelgap.training import Run

__all__ = ["demo"]


def demo(
    out: Annotated[
        Path | None, typer.Option(help="Folder of the study.", show_default="a new folder runs/demo")
    ] = None,
    epochs: Annotated[int, typer.Option(help="Epochs of every run.")] = 8,
    seed: Annotated[int, typer.Option(help="Seed of every run.")] = 0,
    device: Device = "auto",
    processes: Annotated[
        int | None, typer.Option(help="Parallel trainings.", show_default="one per core, one on a GPU")
    ] = None,
) -> None:
    """Train four methods on handwritten digits with one known label per image, and write a report."""
    from labelgap.core.terminal.console import make_console
    from labelgap.reporting import study_table, write_report
    from labelgap.studies import run_demo
    from labelgap.studies.demo import METHODS

    started = time.perf_counter()
    console = make_console(soft_wrap=True)
    console.print(
        "Scenes of handwritten digits: which digits does a scene show? One label of every training scene is known.\n"
        "Four trainings with the same budget; one of them has all labels, to show what the missing ones cost.\n"
        "Each prints a line when it ends; on two cores the first one takes half of the time."
    )

    def log(label: str, run: Run) -> None:
        test = run.metrics.get("test", {})
        score = f"test mAP {100 * test['map']:.1f}" if test.get("map") is not None else "stopped"
        console.print(f"  {label:<12} {score}   {run.metrics.get('seconds', 0.0):.0f} s")

    folder = out or _new_folder(Path("runs/demo"))
    study = run_demo(folder, epochs=epochs, seed=seed, device=device, processes=processes, callback=log)
    for _, run in study.runs:
        write_report(run, data=run.load_data())
    report = write_report(study, data=study.runs[-1][1].load_data())
    console.print()
    console.print(study_table(study))
    console.print(f"\nreport    {report}        {time.perf_counter() - started:.0f} s in all")
    if len(study.members) <= len(METHODS) or any(run.metrics["interrupted"] for _, run in study.runs):
        raise typer.Exit(130)  # stopped by Ctrl-C
    best = [run.path for member, run in study.runs if not member.extra_labels][-1]
    console.print(f"next      labelgap audit {best} && labelgap review {best}")
    console.print("own data  labelgap train tags.csv --images photos/ --out runs/first")


def _new_folder(folder: Path) -> Path:
    """Return the folder, or the first of folder-2, folder-3 … that does not exist."""
    number, candidate = 1, folder
    while candidate.exists():
        number += 1
        candidate = folder.with_name(f"{folder.name}-{number}")
    return candidate
