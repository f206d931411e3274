"""``labelgap report``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument

import labelgap as lg
from labelgap.cli.options import NoImages, RunDataPaths, option, with_options
from labelgap.cli.printing import print_fields
from labelgap.core.errors import LabelGapError
from labelgap.core.text import pluralize

if TYPE_CHECKING:
    from labelgap.reporting.report import Result


@with_options(run_data=RunDataPaths)
def report(
    run: Annotated[Path, Argument(metavar="RUN|STUDY", help="Folder of a run, a study or another result.")],
    run_data: RunDataPaths,
    no_images: NoImages = False,
    figures: Annotated[Path | None, option("Write figures into DIR too: SVG, PNG, PDF, CSV.", metavar="DIR")] = None,
    label_changes: Annotated[list[str] | None, option("Show how a run changed this image; repeatable.")] = None,
) -> None:
    """Write report.html of a run, a study or another result again, with its data, where they can still be loaded."""
    from labelgap.reporting.report import open_result

    opened = open_result(run)
    data, shown = _load_data(opened, run_data), label_changes or ()
    page = lg.write_report(opened, data=data, images=not no_images, figures=figures, label_changes=shown)
    print_fields(("report", page), ("figures", figures))
    if isinstance(opened, lg.Run):
        _print_decisions(run)


def _load_data(result: Result, source: RunDataPaths) -> lg.Dataset | None:
    """Return the data that a run, or all of a study, was trained on; None, with a note, where they cannot be loaded."""
    from labelgap.data import load_moved
    from labelgap.studies import Study

    given, runs = source.given(), [result] if isinstance(result, lg.Run) else []
    if isinstance(result, Study) and len({run.config.classes for _, run in result.runs}) == 1:
        runs = [run for member, run in result.runs if not member.extra_labels]
    if not runs or any(run.config.data != runs[0].config.data for run in runs):
        return None
    config = runs[0].config
    if source.data is not None:
        return load_moved(config.data, source.data, **given)
    try:
        data = runs[0].load_data()
    except (LabelGapError, OSError) as error:
        print_fields(("note", f"without label counts and example images: {error}"))
        return None
    return data if data.classes == config.classes else None


def _print_decisions(run: Path) -> None:
    from labelgap.review.store import read_decisions

    random = Path(f"{run}-review")
    commands = {run: ["apply", str(run), "--out", "better.csv"], random: ["evaluate", str(run), str(random)]}
    for place, words in commands.items():
        try:
            count = len(read_decisions(place)) if place.is_dir() else 0
        except LabelGapError as error:
            print_fields(("note", str(error)))
            continue
        decided = f"{pluralize(count, 'label')} decided in the review {place}"
        note = f"{decided}: not in this report, which shows the labels that the run was trained on"
        print_fields(("note", [note, shlex.join(["labelgap", *words])] if count else None))
