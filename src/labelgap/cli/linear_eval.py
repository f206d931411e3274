"""``labelgap linear-eval``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from labelgap.cli.options import (
    AsJson,
    Data,
    DataOptions,
    Device,
    LabelSeed,
    Observe,
    Workers,
    open_dataset,
    with_options,
)

if TYPE_CHECKING:
    from labelgap.studies.linear_eval import LinearEvaluation


@with_options(data_options=DataOptions)
def linear_eval(
    data: Data,
    data_options: DataOptions,
    task: Annotated[
        str, typer.Option(help="auto, single-label (softmax, accuracy) or multi-label (sigmoids, mAP).")
    ] = "auto",
    penalties: Annotated[
        str | None, typer.Option(help="Values of λ, e.g. 0.1,1,10.", show_default="the paper's 45, 1e-6 … 1e5")
    ] = None,
    backbone: Annotated[
        str | None, typer.Option(help="See `labelgap backbones`.", show_default="depends on the data")
    ] = None,
    weights: Annotated[Path | None, typer.Option(help="File with weights of the backbone.")] = None,
    tolerance: Annotated[float, typer.Option(help="Norm of the gradient per image at which a fit ends.")] = 1e-5,
    precision: Annotated[str, typer.Option(help="float32 or float64.")] = "float32",
    observe: Observe = None,
    label_seed: LabelSeed = 1200,
    device: Device = "auto",
    workers: Workers = None,
    out: Annotated[Path, typer.Option(help="Folder of the results.")] = Path("runs/linear-eval"),
    as_json: AsJson = False,
) -> None:
    """Measure features: logistic regression with 45 L2 penalties at once (L-BFGS), chosen on val."""
    from labelgap.cli.parsing import parse_numbers, parse_observe
    from labelgap.cli.printing import print_data, print_json
    from labelgap.reporting import write_report
    from labelgap.studies.linear_eval import linear_eval as evaluate
    from labelgap.studies.linear_eval.evaluate import check_settings

    values = parse_numbers(penalties, "--penalties", float)
    check_settings(task, values, precision, backbone, tolerance)  # before the images are read
    if observe is not None:
        parse_observe(observe)
    opened = open_dataset(data, data_options, observe, label_seed)
    if not as_json:
        print_data(opened)
    evaluation = evaluate(
        opened,
        task=task,
        penalties=values,
        backbone=backbone,
        weights=None if weights is None else str(weights),
        precision=precision,
        tolerance=tolerance,
        out=out,
        device=device,
        workers=workers,
        quiet=as_json,
    )
    report = write_report(evaluation)
    if as_json:
        print_json(evaluation.as_json())
    else:
        _print(evaluation, report)


def _print(evaluation: LinearEvaluation, report: Path) -> None:
    from labelgap.core.terminal.console import make_console
    from labelgap.reporting.tables.linear_eval import linear_eval_table
    from labelgap.studies.linear_eval.results import TABLE

    console = make_console()
    console.print()
    console.print(linear_eval_table(evaluation))
    make_console(soft_wrap=True).print(f"report    {report}\ntable     {evaluation.path / TABLE}")
