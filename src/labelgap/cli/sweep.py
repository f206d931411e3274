"""``labelgap sweep``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from labelgap.cli.options import Data, DataOptions, Device, LabelSeed, Observe, Workers, open_dataset, with_options
from labelgap.cli.train import ModelOptions, TrainingOptions

if TYPE_CHECKING:
    from labelgap.studies.sweep import Sweep


@with_options(model=ModelOptions, training=TrainingOptions, data_options=DataOptions)
def sweep(
    data: Data,
    data_options: DataOptions,
    model: ModelOptions,
    training: TrainingOptions,
    trials: Annotated[int, typer.Option(help="Settings to try, over all processes.")] = 40,
    search: Annotated[
        list[str] | None,
        typer.Option(
            help="Range or values of a setting or option: lr=1e-5..1e-2:log, batch_size=8,16; repeatable.",
            show_default="those of the method's paper; of a linear head its weight decay too",
        ),
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Database that several processes share, e.g. postgresql://USER@HOST/NAME.",
            show_default="a file in --out",
        ),
    ] = None,
    observe: Observe = None,
    label_seed: LabelSeed = 1200,
    device: Device = "auto",
    workers: Workers = None,
    out: Annotated[Path, typer.Option(help="Folder; a sweep that was stopped in it is resumed.")] = Path("runs/sweep"),
) -> None:
    """Search the settings of one method, by val or by cross-validation, and train the best ones."""
    from labelgap.cli.parsing import parse_pairs
    from labelgap.cli.printing import print_data
    from labelgap.reporting import write_report
    from labelgap.studies.sweep import sweep as run_sweep
    from labelgap.studies.sweep.plan import check_sweep, make_request
    from labelgap.studies.sweep.storage import check_optuna

    arguments = {**model.arguments(), **asdict(training)}
    method = arguments.pop("method")
    texts = [text.replace("-", "_", text.partition("=")[0].count("-")) for text in search or ()]
    given = parse_pairs(texts, "--search", "lr=1e-5..1e-2:log") or {}
    check_optuna()
    check_sweep(make_request(method, arguments), given, trials)  # before the images are read
    opened = open_dataset(data, data_options, observe, label_seed)
    print_data(opened)
    where: dict[str, Any] = {"device": device, "workers": workers, "storage": storage, "out": out}
    result = run_sweep(opened, method, search=given, trials=trials, **where, **arguments)
    if (run := result.best_run()) is not None:
        write_report(run, data=opened)
    _print(result, write_report(result))


def _print(result: Sweep, report: Path) -> None:
    """Print the best trials, what test says about the first, and the command that repeats it."""
    from labelgap.cli.printing import print_metrics
    from labelgap.core.terminal.console import make_console
    from labelgap.reporting.sweep_summary import best_command, describe_auto, describe_progress, describe_retraining
    from labelgap.reporting.tables.sweep import sweep_table
    from labelgap.studies.sweep.results import TABLE

    console = make_console(soft_wrap=True)
    console.print()
    if result.best is not None:
        make_console().print(sweep_table(result))
        console.print()
    for text in (describe_progress(result), describe_auto(result), describe_retraining(result)):
        if text:
            console.print(text)
    run = result.best_run()
    if run is not None and run.metrics.get("test") is not None:
        print_metrics("test", run.metrics["test"])
    if run is not None:
        console.print(f"run       {run.path}")
    if (auto := result.auto_run()) is not None:
        measured = (auto.metrics.get("test") or {}).get("map")
        console.print(f"auto      {auto.path}" + (f"  test mAP {100 * measured:.2f}" if measured else ""))
    console.print(f"report    {report}")
    console.print(f"table     {result.path / TABLE}")
    if command := best_command(result):
        console.print(f"again     {command}")
