"""``labelgap evaluate``."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from labelgap.cli.options import (
    AsJson,
    DataOptions,
    Device,
    RunFolder,
    Workers,
    format_arguments,
    open_dataset,
    with_options,
)

if TYPE_CHECKING:
    from labelgap.data import Dataset
    from labelgap.training import Run


@with_options(data_options=DataOptions)
def evaluate(
    run: RunFolder,
    data: Annotated[
        str, typer.Argument(metavar="DATA|REVIEW", help="As for train; or the folder of a review of random images.")
    ],
    data_options: DataOptions,
    split: Annotated[
        str | None,
        typer.Option(help="train, val, test or all.", show_default="test, or all when DATA has no splits"),
    ] = None,
    device: Device = "auto",
    workers: Workers = None,
    resamples: Annotated[int, typer.Option(help="Bootstrap resamples of the intervals; 0 for none.")] = 1000,
    as_json: AsJson = False,
) -> None:
    """Measure a run on data, as far as the known labels allow: with 95 % intervals, and a row per class."""
    from labelgap.cli.printing import print_evaluation, print_json, print_skipped
    from labelgap.core.distributed import is_distributed, is_main_process
    from labelgap.data.identity import DataIdentity
    from labelgap.review import is_review_folder
    from labelgap.training import open_run
    from labelgap.training.devices import choose_device
    from labelgap.training.loop.processes import check_same, fail_together, init_distributed

    init_distributed(choose_device(device))
    with fail_together():
        opened_run = open_run(run)
        if reviewed := is_review_folder(Path(data)):
            opened, split = _decided_images(data, data_options, split), "all"
        else:
            opened = open_dataset(data, data_options)
    chosen = split or ("test" if opened.test is not None else "all")
    check_same({"data": DataIdentity.of(opened).digest()} if is_distributed() else {})
    resamples = resamples if is_main_process() else 0
    measured = opened_run.evaluate(opened, chosen, device=device, workers=workers, resamples=resamples, quiet=False)
    if as_json:
        print_json(measured)
        return
    print_skipped(opened)
    if reviewed:
        commands = tuple(shlex.join(["labelgap", *words]) for words in (("review", data), ("evaluate", str(run), data)))
    else:
        commands = _review_commands(opened_run, opened, format_arguments(data, data_options), chosen)
    print_evaluation(chosen, measured, commands)


def _decided_images(folder: str, options: DataOptions, split: str | None) -> Dataset:
    """Return the random images of a review that are decided, to measure a run on."""
    from labelgap.core.errors import InputError
    from labelgap.review import open_review_folder
    from labelgap.review.apply import decided_images

    if options.given() or split is not None:
        raise InputError(f"{folder} is a review, which names its own images: leave out --split and options of DATA.")
    return decided_images(open_review_folder(folder))


def _review_commands(run: Run, data: Dataset, typed: str, split: str) -> tuple[str, ...]:
    """Return the commands that label random images of the data and evaluate the run on these."""
    from labelgap.data.feature_vectors import FeatureVectors
    from labelgap.training.config.review_commands import data_review_commands, run_review_commands

    if isinstance(data.train.images, FeatureVectors):
        return ()
    if run.config.data and run.uses_data(data):
        return run_review_commands(run.path, run.config, data)
    name = re.sub(r"[^\w.-]+", "-", Path(data.name).stem).strip("-.") or "data"
    return data_review_commands(run.path, shlex.split(typed), name, None if split == "all" else split)
