"""``labelgap sweep``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import labelgap as lg
from labelgap.cli import options
from labelgap.cli.options import DataSource, option, parse_pairs, training_arguments, with_options
from labelgap.cli.printing import print_data, print_fields, print_metrics, print_rich
from labelgap.training.settings import TrainingSettings

_RANGES = "Range or values of a setting or option: lr=1e-5..1e-2:log, batch_size=8,16; repeatable."
_STORAGE = "Database that several processes share, e.g. postgresql://USER@HOST/NAME."


@with_options(source=DataSource, training=TrainingSettings)
def sweep(
    data: options.Data,
    source: DataSource,
    training: TrainingSettings,
    trials: Annotated[int, option("Settings to try, over all processes.")] = 40,
    search: Annotated[
        list[str] | None, option(_RANGES, "those of the method's paper; of a linear head its weight decay too")
    ] = None,
    storage: Annotated[str | None, option(_STORAGE, "a file in --out", metavar="URL")] = None,
    device: options.Device = "auto",
    workers: options.Workers = None,
    out: Annotated[Path, option("Folder; a sweep that was stopped in it is resumed.")] = Path("runs/sweep"),
) -> None:
    """Search the settings of one method, by val or by cross-validation, and train the best ones."""
    from labelgap.reporting.pages import sweep as page
    from labelgap.studies.sweep.results import TABLE
    from labelgap.studies.sweep.runner import check_optuna
    from labelgap.studies.sweep.search_space import check_sweep, make_request

    arguments = training_arguments(training)
    method = arguments.pop("method", "auto")
    texts = [text.replace("-", "_", text.partition("=")[0].count("-")) for text in search or ()]
    given = parse_pairs(texts, "--search", "lr=1e-5..1e-2:log")
    check_optuna()
    check_sweep(make_request(method, arguments), given, trials)  # before the images are read
    opened = source.open(data)
    print_data(opened)
    where: dict[str, Any] = {"device": device, "workers": workers, "storage": storage, "out": out}
    result = lg.sweep(opened, method, search=given, trials=trials, **where, **arguments)
    run, auto, trained = result.best_run(), result.auto_run(), None
    if run is not None:
        lg.write_report(run, data=opened)
    report = lg.write_report(result)
    print_rich("")
    if result.best is not None:
        print_rich(page.sweep_table(result), "")
    describe = (page.describe_progress, page.describe_auto, page.describe_retraining)
    print("\n".join(text for text in (each(result) for each in describe) if text))
    if run is not None and run.metrics.get("test") is not None:
        print_metrics("test", run.metrics["test"])
    if auto is not None:
        measured = (auto.metrics.get("test") or {}).get("map")
        trained = f"{auto.path}  test mAP {100 * measured:.2f}" if measured else str(auto.path)
    print_fields(
        ("run", None if run is None else run.path),
        *(("auto", trained), ("report", report), ("table", result.path / TABLE)),
        ("again", page.best_command(result)),
    )
