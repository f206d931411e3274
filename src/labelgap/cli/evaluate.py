"""``labelgap evaluate``."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

from typer import Argument

import labelgap as lg
from labelgap.cli import options, printing
from labelgap.cli.options import (
    data_arguments,
    format_arguments,
    joined_processes,
    open_dataset,
    option,
    setting_options,
    with_options,
)
from labelgap.cli.printing import interval, percent, print_fields, some_names
from labelgap.core.errors import InputError
from labelgap.core.files import file_stem
from labelgap.core.settings import DataOptions
from labelgap.core.text import pluralize, truncate_text

_CHANCE: Final = "so few known absent beside the present that random scores would reach more than 50"
_OTHER: Final = "not a class of these data (--rename old=new)"


@with_options(data_options=DataOptions, given=setting_options("average_sizes", average_sizes="those of the run"))
def evaluate(
    run: options.RunFolder,
    data: Annotated[str, Argument(metavar="DATA|REVIEW", help="As for train; or a review of random images.")],
    data_options: DataOptions,
    given: Any,
    split: Annotated[str | None, option("train, val, test or all.", "test, or all when DATA has no splits")] = None,
    device: options.Device = "auto",
    workers: options.Workers = None,
    resamples: Annotated[int, option("Bootstrap resamples of the intervals; 0 for none.")] = 1000,
    as_json: options.AsJson = False,
) -> None:
    """Measure a run on data, as far as the known labels allow: with 95 % intervals, and a row per class."""
    from labelgap.core.distributed import is_distributed, is_main_process
    from labelgap.data.identity import DataIdentity
    from labelgap.review import is_review_folder, open_review_folder
    from labelgap.training.loop.processes import check_same
    from labelgap.training.rerun import data_review_commands, run_review_commands
    from labelgap.training.settings import check_sizes

    with joined_processes(device):
        opened_run = lg.open_run(run)
        reviewed = is_review_folder(Path(data))
        if reviewed and (data_arguments(data_options) or split is not None):
            raise InputError(f"{data} is a review, which names its own images: leave out --split and options of DATA.")
        if reviewed:
            from labelgap.review.apply import decided_images

            opened = decided_images(open_review_folder(data))
        else:
            opened = open_dataset(data, data_options)
    chosen = split or ("test" if opened.test is not None and not reviewed else "all")
    check_same({"data": DataIdentity.of(opened).digest()} if is_distributed() else {})
    resamples = resamples if is_main_process() else 0
    sizes = check_sizes(given.average_sizes)
    how: Any = {"device": device, "workers": workers, "resamples": resamples, "quiet": False}
    measured = opened_run.evaluate(opened, chosen, average_sizes=sizes, **how)
    if as_json:
        return printing.print_json(measured)
    printing.print_skipped(opened)
    printing.print_metrics(chosen, measured)
    _print_classes(measured["per_class"])
    if reviewed:
        commands = tuple(shlex.join(["labelgap", *words]) for words in (("review", data), ("evaluate", str(run), data)))
    elif opened_run.config.data and opened.recipe.get("path") == opened_run.config.data.get("path"):
        commands = run_review_commands(opened_run.path, opened_run.config, opened)
    else:
        words = shlex.split(format_arguments(data, data_options))
        commands = data_review_commands(opened_run.path, opened, words, file_stem(opened.name), chosen)
    _print_notes(measured, commands)


def _print_classes(rows: Sequence[Mapping[str, Any]]) -> None:
    width = min(max([len("class"), *(len(row["name"]) for row in rows)]), 28)
    header = f"{'present':>8}{'absent':>8}{'AP':>8}  {'95 % interval':<16}{'threshold':<17}"
    print(f"\n{'class':<{width}}{header}{'precision':>9}{'recall':>8}{'F1':>8}")
    for row in rows:
        cells = f"{row['present']:>8,}{row['absent']:>8,}{percent(row['average_precision']):>8}  "
        cells += f"{interval(row['interval']):<16}{row['threshold']:<7.3f}{row['mark']:<10}"
        cells += f"{percent(row['precision']):>9}{percent(row['recall']):>8}{percent(row['f1']):>8}"
        print(f"{truncate_text(row['name'], width):<{width}}{cells}")


def _print_notes(measured: Mapping[str, Any], commands: Sequence[str]) -> None:
    """Print how the numbers were made, which the labels do not support, and how to get these."""
    if intervals := measured.get("intervals"):
        images = pluralize(measured["images"], "image")
        print(f"\nintervals 95 %, by {intervals['resamples']:,} resamples of {images}")
    crossed, shared = measured.get("out_of_fold_images"), measured.get("trained_images")
    missing, extra = measured.get("classes_missing", ()), measured.get("classes_extra", ())
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in measured["per_class"]:
        if row["why"] and row["name"] not in missing:
            heading = "few" if row["average_precision"] is not None else "no number"
            chance = heading == "no number" and row["present"] and row["absent"]
            reasons.setdefault((heading, _CHANCE if chance else row["why"]), []).append(row["name"])
    unmeasured = reasons and any(row["unknown"] for row in measured["per_class"])
    folds = f"of {pluralize(crossed or 0, 'image')} that the run was trained on: by the models of the other folds"
    other = f"{some_names(extra)}: not {'a class' if len(extra) == 1 else 'classes'} of the run"
    print_fields(
        ("scores", folds if crossed else None),
        ("warning", f"the run was trained on {shared:,} of these images: the numbers are too high" if shared else None),
        *((key[0], f"{some_names(reasons[key])}: {key[1]}") for key in sorted(reasons, reverse=True)),
        ("no number", f"{some_names(sorted(missing))}: {_OTHER}" if missing else None),
        ("left out", other if extra else None),
        printing.to_get_it(commands) if unmeasured else ("", None),
    )
