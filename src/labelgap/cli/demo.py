"""``labelgap demo``: training with missing labels, on data that comes with labelgap."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from labelgap.cli.options import Device

if TYPE_CHECKING:
    from labelgap.studies.demo import FoundLabels
    from labelgap.training import Run


def demo(
    out: Annotated[
        Path | None, typer.Option(help="Folder of the study.", show_default="a new folder runs/demo")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Few scenes, 2 epochs, fewer pages: to see that it works.")
    ] = False,
    epochs: Annotated[int | None, typer.Option(help="Epochs of every run.", show_default="5")] = None,
    seed: Annotated[int, typer.Option(help="Seed of every run.")] = 0,
    device: Device = "auto",
    processes: Annotated[
        int | None, typer.Option(help="Parallel trainings.", show_default="all; one on a GPU or if quick")
    ] = None,
) -> None:
    """Train on handwritten digits with all labels and with one per image, by two methods, and write a report."""
    from labelgap.core.terminal.console import make_console
    from labelgap.reporting import study_table, write_report
    from labelgap.studies import run_demo
    from labelgap.studies.demo import EPOCHS, METHODS, QUICK_SIZES, SIZES, count_found

    started = time.perf_counter()
    console = make_console(soft_wrap=True)
    console.print(
        "Scenes of handwritten digits: which digits does a scene show? One label of every training scene is known.\n"
        "Three trainings of the same length: with all labels, to show what the missing ones cost; an, which takes\n"
        "every unknown label as absent; ll-r, which rejects those with a large loss. A line appears as each one ends.\n"
    )

    def log(label: str, run: Run) -> None:
        test = run.metrics.get("test", {})
        score = f"test mAP {100 * test['map']:.1f}" if test.get("map") is not None else "stopped"
        console.print(f"  {label:<12} {score}   {run.metrics.get('seconds', 0.0):.0f} s")
        run.load_data()  # the scenes are generated for the study's report while others are trained

    folder = out or _new_folder(Path("runs/demo"))
    study = run_demo(
        folder,
        epochs=epochs if epochs is not None else 2 if quick else EPOCHS,
        seed=seed,
        device=device,
        processes=processes or (1 if quick else None),
        sizes=QUICK_SIZES if quick else SIZES,
        callback=log,
        report=None if quick else _write_report,
    )
    if quick:
        _write_report(study.runs[-1][1])
    report = write_report(study, data=study.runs[-1][1].load_data())
    console.print()
    console.print(study_table(study))
    if len(study.members) <= len(METHODS) or any(run.metrics["interrupted"] for _, run in study.runs):
        console.print(f"\nreport    {report}        {time.perf_counter() - started:.0f} s in all")
        raise typer.Exit(130)  # stopped by Ctrl-C
    runs = [run for member, run in study.runs if not member.extra_labels]
    console.print(f"\nmissing   {_describe_found({run.config.method: count_found(run) for run in runs})}")
    console.print(f"report    {report}        {time.perf_counter() - started:.0f} s in all")
    if quick:
        console.print("quick     so few scenes teach little: without --quick the numbers mean something")
    console.print(f"next      labelgap audit {runs[-1].path} && labelgap review {runs[-1].path}")
    console.print("own data  labelgap train tags.csv --images photos/ --out runs/first")


def _write_report(run: Run) -> None:
    """Write the report of a run, in the process that trained it and has its data in memory."""
    from labelgap.reporting import write_report

    write_report(run, data=run.load_data())


def _describe_found(found: dict[str, FoundLabels]) -> str:
    """Say how many labels are missing, and how many of them the scores of each method find."""
    first = next(iter(found.values()))
    right = ", ".join(f"{labels.right:,} ({method})" for method, labels in found.items())
    return (
        f"{first.missing:,} of the {first.unknown:,} unknown labels are truly present; "
        f"among the {first.missing:,} highest scores are {right}"
    )


def _new_folder(folder: Path) -> Path:
    """Return the folder, or the first of folder-2, folder-3 … that does not exist."""
    number, candidate = 1, folder
    while candidate.exists():
        number += 1
        candidate = folder.with_name(f"{folder.name}-{number}")
    return candidate
