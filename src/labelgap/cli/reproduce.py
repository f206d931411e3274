"""``labelgap reproduce``: our numbers beside those of a paper's table."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from typer import Argument, Exit

import labelgap as lg
from labelgap.cli.options import AsJson, Device, Workers, option, parse_pairs, setting_options, with_options
from labelgap.cli.printing import print_fields, print_json, print_rich, print_table
from labelgap.core.text import pluralize

if TYPE_CHECKING:
    from labelgap.studies.reproduce.results import CellResult
    from labelgap.studies.reproduce.runner import Plan
    from labelgap.studies.reproduce.tables import Cell

_GRIDS: Final = "paper: val chooses from all that was searched. preset: one setting."
_CHANGED: Final = "Not as in the paper"
_NAMES: Final = ("backbone", "weights", "epochs", "size", "lr", "batch_size")


@with_options(changed=setting_options(*_NAMES, group=_CHANGED, **dict.fromkeys(_NAMES, "the paper's")))
def reproduce(
    changed: Any,
    table: Annotated[str | None, Argument(metavar="TABLE", help="A table; without it, all are listed.")] = None,
    data: Annotated[list[str] | None, option("Images, or a file of features; repeatable.", metavar="NAME=PATH")] = None,
    cells: Annotated[list[str] | None, option("Rows, columns or ROW/COLUMN, e.g. 'role/*;linear:*'.")] = None,
    seeds: Annotated[int, option("Number of seeds.")] = 3,
    jobs: Annotated[int, option("Networks to train at a time; heads are trained together anyway.")] = 1,
    pretrained: Annotated[
        list[str] | None, option("Networks of two-way-transfer; repeatable.", metavar="LOSS=RUN")
    ] = None,
    dry_run: Annotated[bool, option("Tell the cells and the cost, and train nothing.")] = False,
    grid: Annotated[str, option(_GRIDS, rich_help_panel=_CHANGED)] = "stated",
    device: Device = "auto",
    workers: Workers = None,
    as_json: AsJson = False,
    out: Annotated[Path, option("Folder of all tables; what it has is not trained again.")] = Path("runs/reproduce"),
) -> None:
    """Fill the cells of a paper's table whose data are given, and print our numbers beside the paper's."""
    from labelgap.reporting import reproduction_table
    from labelgap.reporting.method_table import FOLDER
    from labelgap.studies.reproduce import runner
    from labelgap.studies.reproduce.results import FILE, TABLE

    if table is None:
        return _list(as_json)
    settings: dict[str, Any] = {"seeds": seeds, "jobs": jobs, "grid": grid, **vars(changed)}
    settings["pretrained"] = parse_pairs(pretrained, "--pretrained", "two-way=runs/two-way")
    if cells is not None:  # separated by ";": the name of a row may have a comma
        settings["cells"] = [part.strip() for text in cells for part in text.split(";") if part.strip()]
    plan = runner.plan_reproduction(table, data or [], out=out, **settings)
    if not as_json:
        _print_plan(plan)
        for line in runner.describe_cost(plan, device=device, workers=workers, tolerate_missing=dry_run):
            print(line, flush=True)
    if dry_run:
        return None
    made = runner.fill_cells(plan, device=device, workers=workers, quiet=as_json)
    report = lg.write_report(made)
    failed = {name: reason for name, reason in made.missing.items() if name not in plan.missing}
    if as_json:
        rows = [_cell_json(*each) for each in made.results(table)]
        print_json({"table": table, "cells": rows, "missing": dict(made.missing)}, indent=2)
    else:
        print_rich("", reproduction_table(made, table), "")
        reasons = (("failed", text) for text in runner.describe_missing(failed))
        print_fields(*reasons, ("report", report), ("results", f"{made.path / TABLE}, {made.path / FILE}"))
        print_fields(("tables", f"{made.path / FOLDER / table}.csv, .md, .tex"))
    if not plan.done and len(failed) == sum(map(len, plan.cells.values())):
        raise Exit(2)  # no cell was filled
    return None


def _cell_json(cell: Cell, result: CellResult) -> dict[str, Any]:
    paper = {"paper": cell.published and cell.published.value, "source": cell.published and cell.published.source}
    return {**asdict(result), "mean": result.mean, "std": result.deviation, **paper}


def _list(as_json: bool) -> None:
    from labelgap.studies.reproduce import paper_tables

    tables = list(paper_tables().values())
    if as_json:
        about = lambda each: {"table": each.name, "title": each.title, "paper": each.paper, "data": each.datasets}  # noqa: E731
        return print_json([*map(about, tables)], indent=2)
    table = []
    for each in tables:
        published = sum(cell.published is not None for cell in each.cells)
        table.append((each.name, str(len(each.cells)), str(published), " ".join(each.datasets), each.paper))
    print_table(("table", "cells", "published", "data", "paper"), table)
    print("\nlabelgap reproduce TABLE --data NAME=PATH --dry-run    what there is to train, and how long it takes")
    print("labelgap datasets NAME                                 how the files of a data set must lie")


def _print_plan(plan: Plan) -> None:
    from labelgap.studies.reproduce.runner import describe_missing

    count = sum(map(len, plan.cells.values()))
    print(f"{plan.table.name}: {plan.table.title} ({plan.table.paper})")
    again = "trained again where a cell to fill uses it, with the seeds that it has"
    print_fields(
        ("to fill", f"{pluralize(count, 'cell')}, with {pluralize(plan.seeds, 'seed')}"),
        ("done", pluralize(plan.done, "cell") if plan.done else None),
        *(("left out", text) for text in describe_missing(plan.missing)),
        *(("damaged", f"{plan.reproduction.path / name}: {again}") for name in plan.damaged),
    )
