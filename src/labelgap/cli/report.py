"""``labelgap report``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from labelgap.cli.options import RunDataOptions, with_options
from labelgap.core.errors import LabelGapError

if TYPE_CHECKING:
    from labelgap.data.dataset import Dataset
    from labelgap.training import Run


@with_options(run_data=RunDataOptions)
def report(
    run: Annotated[
        Path, typer.Argument(metavar="RUN|STUDY", help="Folder of a run, a study, a comparison or another result.")
    ],
    run_data: RunDataOptions,
    no_images: Annotated[bool, typer.Option("--no-images", help="Leave images out.")] = False,
    figures: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Write every figure into DIR too: SVG, PNG and PDF for a paper, its numbers as CSV."
        ),
    ] = None,
) -> None:
    """Write report.html of a run, a study or another result again, with its data, where they can still be loaded."""
    from labelgap.reporting import write_report

    print(f"report    {write_report(run, data=_load_data(run, run_data), images=not no_images, figures=figures)}")
    if figures is not None:
        print(f"figures   {figures}")
    _print_decisions(run)


def _load_data(folder: Path, source: RunDataOptions) -> Dataset | None:
    """Return the data that a run or a study was trained on; None, with a note, where they cannot be loaded."""
    from labelgap.data import load_moved

    given, run = source.given(), _trained(folder)
    if run is None:
        return None
    if source.data is not None:
        return load_moved(run.config.data, source.data, **given)
    try:
        data = run.load_data()
    except (LabelGapError, OSError) as error:
        print(f"note      without label counts and example images: {error}")
        return None
    return data if data.classes == run.config.classes else None


def _print_decisions(folder: Path) -> None:
    """Print how many labels of a run people have decided since, and the command that uses them."""
    import shlex

    from labelgap.core.text import pluralize
    from labelgap.review.store import read_decisions
    from labelgap.training.config.schema import CONFIG_FILE

    if not (folder / CONFIG_FILE).is_file():
        return
    random = Path(f"{folder}-review")
    commands = {folder: ["apply", str(folder), "--out", "better.csv"], random: ["evaluate", str(folder), str(random)]}
    for place, words in commands.items():
        try:
            count = len(read_decisions(place)) if place.is_dir() else 0
        except LabelGapError as error:
            print(f"note      {error}")
            continue
        if count:
            decided = f"{pluralize(count, 'label')} decided in the review {place}"
            print(f"note      {decided}: not in this report, which shows the labels that the run was trained on")
            print(f"          {shlex.join(['labelgap', *words])}")


def _trained(folder: Path) -> Run | None:
    """Return the run whose data a page shows: of a study one that competes, if all of them have the same data."""
    from labelgap.studies import open_study
    from labelgap.studies.study import FILE, study_of_runs
    from labelgap.training import open_run
    from labelgap.training.config.schema import CONFIG_FILE

    if (folder / CONFIG_FILE).is_file():
        return open_run(folder)
    study = open_study(folder) if (folder / FILE).is_file() else study_of_runs(folder)
    if study is None:
        return None
    runs = study.runs
    competing = [run for member, run in runs if not member.extra_labels]
    same = all(run.config.data == competing[0].config.data for run in competing)
    return competing[0] if competing and same and len({run.config.classes for _, run in runs}) == 1 else None
