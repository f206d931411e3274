"""``labelgap train``."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

import labelgap as lg
from labelgap.cli import options
from labelgap.cli.options import (
    DataSource,
    data_arguments,
    joined_processes,
    option,
    training_arguments,
    with_options,
    without,
)
from labelgap.cli.printing import print_data, print_fields, print_run
from labelgap.core.errors import InputError
from labelgap.training.settings import TrainingSettings

_ADD = "Add the images of this table, or folder, to a finished run: DATA is the run."
_LOG = "Log every epoch: csv, tensorboard, wandb or mlflow; repeatable. After torchrun: --logger."
_Log = Annotated[list[str] | None, typer.Option("--log", "--logger", metavar="NAME", help=_LOG)]
"""Of two names: torchrun takes --log for an abbreviation of its own options."""


@with_options(source=DataSource, training=TrainingSettings)
def train(
    data: options.Data,
    source: DataSource,
    training: TrainingSettings,
    out: Annotated[Path | None, option("Folder of the run.", "runs/latest, or the next free one")] = None,
    device: options.Device = "auto",
    workers: options.Workers = None,
    resume: Annotated[bool, option("Resume the run in --out.")] = False,
    accept_changes: Annotated[bool, option("Resume although the data have changed since.")] = False,
    dry_run: Annotated[bool, option("Print the configuration and its cost; train nothing.")] = False,
    allow_micro_batch: Annotated[bool, option("Let --accumulate split batches that a method needs whole.")] = False,
    no_images: options.NoImages = False,
    log: _Log = None,
    add: Annotated[Path | None, option(_ADD, metavar="TABLE")] = None,
) -> None:
    """Train a classifier and write a run folder with its report."""
    if add is not None:
        own: dict[str, Any] = {
            "out": out,
            "resume": resume,
            "accept_changes": accept_changes,
            "dry_run": dry_run,
            "log": log,
        }
        own |= {"allow_micro_batch": allow_micro_batch, "observe": source.observe, "label_seed": source.label_seed}
        given = {**own, **training_arguments(training), **data_arguments(without(source, "images"))}
        if refused := [name for name, value in given.items() if value]:
            raise InputError(f"--add trains with the settings of the run: leave --{refused[0].replace('_', '-')} out.")
        return _add_images(Path(data), add, source.images, device, workers, images=not no_images)
    from labelgap.core.distributed import is_main_process, single_process
    from labelgap.training.devices import choose_device
    from labelgap.training.fit import dry_run as estimate_cost
    from labelgap.training.loggers import check_loggers
    from labelgap.training.plan import TrainingRequest, plan_training
    from labelgap.training.run_folder import check_folder, default_folder

    started = time.perf_counter()
    arguments = {**training_arguments(training), "allow_micro_batch": allow_micro_batch}
    request = TrainingRequest.of(arguments)
    request.check()  # before the images are read
    logs = check_loggers(log or ())
    with joined_processes(device):
        folder = out or default_folder(resume=resume)
        if is_main_process() and not dry_run:
            check_folder(folder, resume)
        opened = source.open(data)
    print_data(opened)
    if dry_run:
        print(plan_training(opened, request, choose_device(device)))
        print(estimate_cost(opened, request, device=device, workers=workers))
        return
    with _exit_when_stopped(folder):
        how: dict[str, Any] = {"device": device, "workers": workers, "log": logs, "resume": resume}
        run = lg.fit(opened, out=folder, accept_changes=accept_changes, **how, **arguments)
        if run.finished and is_main_process():
            with single_process():
                report = lg.write_report(run, data=opened, images=not no_images)
            print_run(run, report, run.with_val(opened), time.perf_counter() - started)


def _add_images(run: Path, table: Path, folder: Path | None, device: str, workers: int | None, *, images: bool) -> None:
    from labelgap.audit.candidates import FILE as CANDIDATES

    started = time.perf_counter()
    grown = lg.add_images(run, table, folder, device=device, workers=workers)
    data = grown.load_data()
    print_data(data)
    report, audited = lg.write_report(grown, data=data, images=images), (grown.path / CANDIDATES).exists()
    print_run(grown, report, data, time.perf_counter() - started, audited=audited)


@contextmanager
def _exit_when_stopped(out: Path) -> Iterator[None]:
    """Exit with 130 after a Ctrl-C and with 143 after SIGTERM, also where the training has ended in good order."""
    from labelgap.core.distributed import is_main_process
    from labelgap.training.run_folder import is_run_folder
    from labelgap.training.signals import record_signals

    with record_signals() as received:
        try:
            yield
        except (KeyboardInterrupt, RuntimeError):  # another process, which got the signal too, may have ended first
            if not received:
                raise
    if received:
        if is_main_process() and is_run_folder(out) and lg.open_run(out).metrics.get("interrupted", True):
            print_fields(("resume", f"the same command with --resume continues {out}"), stderr=True)
        raise typer.Exit(128 + received[0])
