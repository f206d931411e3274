"""``labelgap linear-eval``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import labelgap as lg
from labelgap.cli import options
from labelgap.cli.options import DataSource, option, parse_numbers, setting_options, with_options
from labelgap.cli.printing import print_data, print_fields, print_json, print_rich


@dataclass(frozen=True)
class LinearOptions:
    """Arguments of the study."""

    task: Annotated[str, option("auto, single-label (softmax, accuracy) or multi-label (sigmoids, mAP).")] = "auto"
    penalties: Annotated[str | None, option("Values of λ, e.g. 0.1,1,10.", "the paper's 45, 1e-6 … 1e5")] = None
    tolerance: Annotated[float, option("Norm of the gradient per image at which a fit ends.")] = 1e-5
    precision: Annotated[str, option("float32 or float64.")] = "float32"
    device: options.Device = "auto"
    workers: options.Workers = None
    out: Annotated[Path, option("Folder of the results.")] = Path("runs/linear-eval")


@with_options(source=DataSource, asked=LinearOptions, network=setting_options("backbone", "weights"))
def linear_eval(
    data: options.Data, source: DataSource, asked: LinearOptions, network: Any, as_json: options.AsJson = False
) -> None:
    """Measure features: logistic regression with 45 L2 penalties at once (L-BFGS), chosen on val."""
    from labelgap.reporting.pages.linear_eval import linear_eval_table
    from labelgap.studies import linear_eval as study
    from labelgap.studies.linear_eval import TABLE, check_settings

    penalties = parse_numbers(asked.penalties, "--penalties", float)
    check_settings(asked.task, penalties, asked.precision, network.backbone, asked.tolerance)
    opened = source.open(data)
    if not as_json:
        print_data(opened)
    evaluation = study.linear_eval(opened, quiet=as_json, **{**vars(asked), **vars(network), "penalties": penalties})
    report = lg.write_report(evaluation)
    if as_json:
        return print_json(evaluation.as_json())
    print_rich("", linear_eval_table(evaluation))
    print_fields(("report", report), ("table", evaluation.path / TABLE))
