"""``labelgap demo``: training with missing labels, on data that comes with labelgap."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Final

from typer import Exit

import labelgap as lg
from labelgap.cli.options import Device, option
from labelgap.cli.printing import print_fields, print_rich

_STORY: Final = """\
Scenes of handwritten digits: which digits does a scene show? One label of every training scene is known.
Three trainings of the same length: with all labels, to show what the missing ones cost; an, which takes
every unknown label as absent; ll-r, which rejects those with a large loss. A line appears as each one ends.
"""


def demo(
    out: Annotated[Path | None, option("Folder of the study.", "a new folder runs/demo")] = None,
    quick: Annotated[bool, option("Few scenes, 2 epochs, fewer pages: to see that it works.")] = False,
    epochs: Annotated[int | None, option("Epochs of every run.", "5")] = None,
    seed: Annotated[int, option("Seed of every run.")] = 0,
    device: Device = "auto",
    processes: Annotated[int | None, option("Parallel trainings.", "all; one on a GPU or if quick")] = None,
) -> None:
    """Train on handwritten digits with all labels and with one per image, by two methods, and write a report."""
    from labelgap.reporting import study_table
    from labelgap.studies.demo import EPOCHS, METHODS, QUICK_SIZES, SIZES, count_found, run_demo

    started = time.perf_counter()
    print(_STORY, flush=True)
    numbered = (Path(f"runs/demo-{number}" if number > 1 else "runs/demo") for number in range(1, 1_000_000))
    study = run_demo(
        out or next(folder for folder in numbered if not folder.exists()),
        epochs=epochs if epochs is not None else 2 if quick else EPOCHS,
        seed=seed,
        device=device,
        processes=processes or (1 if quick else None),
        sizes=QUICK_SIZES if quick else SIZES,
        callback=_print_run,
        report=None if quick else _write_report,
    )
    if quick:
        _write_report(study.runs[-1][1])
    report = lg.write_report(study, data=study.runs[-1][1].load_data())
    print_rich("", study_table(study), "")
    written = f"{report}        {time.perf_counter() - started:.0f} s in all"
    if len(study.members) <= len(METHODS) or any(run.metrics["interrupted"] for _, run in study.runs):
        print_fields(("report", written))
        raise Exit(130)  # stopped by Ctrl-C
    runs = [run for member, run in study.runs if not member.extra_labels]
    found = {run.config.method: count_found(run) for run in runs}
    first = found[runs[0].config.method]
    right = ", ".join(f"{labels.right:,} ({method})" for method, labels in found.items())
    truly = f"{first.missing:,} of the {first.unknown:,} unknown labels are truly present"
    print_fields(
        ("missing", f"{truly}; among the {first.missing:,} highest scores are {right}"),
        ("report", written),
        ("quick", "so few scenes teach little: without --quick the numbers mean something" if quick else None),
        ("next", f"labelgap audit {runs[-1].path} && labelgap review {runs[-1].path}"),
        ("own data", "labelgap train tags.csv --images photos/ --out runs/first"),
    )


def _print_run(label: str, run: lg.Run) -> None:
    score = (run.metrics.get("test") or {}).get("map")
    shown = f"test mAP {100 * score:.1f}" if score is not None else "stopped"
    print(f"  {label:<12} {shown}   {run.metrics.get('seconds', 0.0):.0f} s", flush=True)
    run.load_data()  # the scenes are generated for the study's report while others are trained


def _write_report(run: lg.Run) -> None:
    lg.write_report(run, data=run.load_data())
