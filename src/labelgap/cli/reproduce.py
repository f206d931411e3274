"""``labelgap reproduce``: our numbers beside those of a paper's table."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from labelgap.cli.options import AsJson, Device, Workers

if TYPE_CHECKING:
    from labelgap.studies.reproduce import Reproduction
    from labelgap.studies.reproduce.runner import Plan

_changed_option = partial(typer.Option, rich_help_panel="Not as in the paper")


def reproduce(
    table: Annotated[str | None, typer.Argument(metavar="TABLE", help="A table; without it, all are listed.")] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=PATH", help="A data set, as images or as a file of features; repeatable."),
    ] = None,
    cells: Annotated[
        list[str] | None, typer.Option(help="Rows, columns or ROW/COLUMN, * for any text, e.g. 'role/*;linear:*'.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Number of seeds.")] = 3,
    jobs: Annotated[int, typer.Option(help="Networks to train at a time; heads are trained together anyway.")] = 1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Tell the cells and the cost, and train nothing.")] = False,
    grid: Annotated[
        str, _changed_option(help="paper: val chooses from what the paper searched. preset: one setting.")
    ] = "paper",
    backbone: Annotated[
        str | None, _changed_option(help="See `labelgap backbones`.", show_default="the paper's")
    ] = None,
    weights: Annotated[Path | None, _changed_option(help="File with weights of the backbone.")] = None,
    epochs: Annotated[int | None, _changed_option(help="Epochs.", show_default="the paper's")] = None,
    size: Annotated[int | None, _changed_option(help="Image size.", show_default="the paper's")] = None,
    lr: Annotated[float | None, _changed_option(help="Of networks.", show_default="the paper's")] = None,
    batch_size: Annotated[int | None, _changed_option(help="Of networks.", show_default="the paper's")] = None,
    device: Device = "auto",
    workers: Workers = None,
    as_json: AsJson = False,
    out: Annotated[Path, typer.Option(help="Folder of all tables; what it has is not trained again.")] = Path(
        "runs/reproduce"
    ),
) -> None:
    """Fill the cells of a paper's table whose data are given, and print our numbers beside the paper's."""
    if table is None:
        return _list(as_json)
    from labelgap.core.terminal.console import make_console
    from labelgap.reporting import write_report
    from labelgap.studies.reproduce.cost import describe_cost
    from labelgap.studies.reproduce.runner import check_jobs, fill_cells, plan_reproduction

    check_jobs(jobs)
    changed = {"grid": grid, "backbone": backbone, "epochs": epochs, "size": size, "lr": lr, "batch_size": batch_size}
    settings: dict[str, Any] = {"seeds": seeds, "cells": _cells(cells), **changed}
    settings["weights"] = None if weights is None else str(weights)
    plan = plan_reproduction(table, data or [], out=out, **settings)
    if not as_json:
        _print_plan(plan)
        for line in describe_cost(plan, device=device, workers=workers, tolerate_missing=dry_run):
            make_console(soft_wrap=True).print(line)
    if dry_run:
        return None
    execution: dict[str, Any] = {"device": device, "workers": workers, "jobs": jobs, "quiet": as_json}
    made = fill_cells(plan, **execution)
    report = write_report(made)
    failed = {name: reason for name, reason in made.missing.items() if name not in plan.missing}
    if as_json:
        _print_json(made, table)
    else:
        _print(made, table, report, failed)
    if not plan.done and len(failed) == sum(map(len, plan.cells.values())):
        raise typer.Exit(2)  # no cell was filled
    return None


def _cells(texts: list[str] | None) -> list[str] | None:
    """Return the patterns of cells, separated by ";": the name of a row may have a comma."""
    return None if texts is None else [part.strip() for text in texts for part in text.split(";") if part.strip()]


def _list(as_json: bool) -> None:
    """List the tables, and the data that each needs."""
    import json

    from labelgap.cli.printing import print_table
    from labelgap.studies.reproduce import paper_tables

    tables = list(paper_tables().values())
    if as_json:
        rows = [
            {"table": each.name, "title": each.title, "paper": each.paper, "data": each.datasets} for each in tables
        ]
        print(json.dumps(rows, indent=2))
        return
    print_table(
        ("table", "cells", "published", "data", "paper"),
        [
            (
                each.name,
                str(len(each.cells)),
                str(sum(cell.published is not None for cell in each.cells)),
                " ".join(each.datasets),
                each.paper,
            )
            for each in tables
        ],
    )
    print("\nlabelgap reproduce TABLE --data NAME=PATH --dry-run    what there is to train, and how long it takes")
    print("labelgap datasets NAME                                 how the files of a data set must lie")


def _print_plan(plan: Plan) -> None:
    from labelgap.core.terminal.console import make_console
    from labelgap.core.text import pluralize
    from labelgap.studies.reproduce.runner import describe_missing

    console = make_console(soft_wrap=True)
    count = sum(map(len, plan.cells.values()))
    console.print(f"{plan.table.name}: {plan.table.title} ({plan.table.paper})")
    console.print(f"to fill   {pluralize(count, 'cell')}, with {pluralize(plan.seeds, 'seed')}")
    if plan.done:
        console.print(f"done      {pluralize(plan.done, 'cell')}")
    for text in describe_missing(plan.missing):
        console.print(f"left out  {text}")
    for name in plan.damaged:
        file = plan.reproduction.path / name
        console.print(f"damaged   {file}: trained again where a cell to fill uses it, with the seeds that it has")


def _print(made: Reproduction, table: str, report: Path, failed: Mapping[str, str]) -> None:
    """Print the table, the cells that could not be filled, and the written files."""
    from labelgap.core.terminal.console import make_console
    from labelgap.reporting import reproduction_table
    from labelgap.studies.reproduce.results import FILE, TABLE
    from labelgap.studies.reproduce.runner import describe_missing

    console = make_console()
    console.print()
    console.print(reproduction_table(made, table))
    console.print()
    unwrapped = make_console(soft_wrap=True)
    for text in describe_missing(failed):
        unwrapped.print(f"failed    {text}")
    unwrapped.print(f"report    {report}")
    unwrapped.print(f"results   {made.path / TABLE}, {made.path / FILE}")


def _print_json(made: Reproduction, table: str) -> None:
    import json
    from dataclasses import asdict

    cells = [
        {
            **asdict(result),
            "mean": result.mean,
            "std": result.deviation,
            "paper": None if cell.published is None else cell.published.value,
            "source": None if cell.published is None else cell.published.source,
        }
        for cell, result in made.results(table)
    ]
    print(json.dumps({"table": table, "cells": cells, "missing": dict(made.missing)}, indent=2))
