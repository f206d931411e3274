"""``labelgap train``."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from labelgap.cli.options import Data, DataOptions, Device, LabelSeed, Observe, Workers, open_dataset, with_options

if TYPE_CHECKING:
    from labelgap.data import Dataset
    from labelgap.training.config.request import TrainingRequest

_model_option = partial(typer.Option, rich_help_panel="Method and model")
_head_option = partial(typer.Option, rich_help_panel="Linear heads")
_image_option = partial(typer.Option, rich_help_panel="Input images")
_training_option = partial(typer.Option, rich_help_panel="Optimization (defaults depend on the protocol or preset)")


@dataclass(frozen=True)
class ModelOptions:
    """What to train."""

    method: Annotated[str, _model_option(help="See `labelgap methods`; auto chooses by the labels.")] = "auto"
    option: Annotated[list[str] | None, _model_option(help="Option of the method, e.g. delta_rel=0.2; repeatable.")] = (
        None
    )
    preset: Annotated[
        str | None, _model_option(help="Settings of a paper: cole2021, kim2022, zhou2022 or kobayashi2023.")
    ] = None
    backbone: Annotated[
        str | None, _model_option(help="See `labelgap backbones`.", show_default="depends on the data")
    ] = None
    weights: Annotated[
        Path | None, _model_option(help="File with weights of the backbone: .pth, .safetensors; or none.")
    ] = None
    protocol: Annotated[
        str | None,
        _model_option(help="linear, end-to-end or linear-init.", show_default="depends on data and device"),
    ] = None
    head: Annotated[str, _model_option(help="linear, boostlu (with end-to-end), or zero-shot (from class names).")] = (
        "linear"
    )
    seed: Annotated[int, _model_option(help="Seed of initialization, order and augmentation.")] = 0
    select: Annotated[str, _model_option(help="How to select the epoch: auto, clean, known, observed, last.")] = "auto"

    def arguments(self) -> dict[str, Any]:
        """Return them as arguments of ``labelgap.fit``."""
        from labelgap.cli.parsing import parse_options

        weights = None if self.weights is None else str(self.weights)
        arguments = {**asdict(self), "weights": weights, "options": parse_options(self.option or ())}
        del arguments["option"]
        return arguments


@dataclass(frozen=True)
class TrainingOptions:
    """How to train; None for an option that is not given: the preset or the default of the protocol applies."""

    epochs: Annotated[int | None, _training_option(help="Number of epochs.")] = None
    lr: Annotated[float | None, _training_option(help="Learning rate of the head.")] = None
    backbone_lr: Annotated[
        float | None, _training_option(help="Learning rate of the backbone.", show_default="proportional to --lr")
    ] = None
    batch_size: Annotated[int | None, _training_option(help="Images per batch, over all processes.")] = None
    linear_epochs: Annotated[int | None, _training_option(help="Epochs of the first phase of linear-init.")] = None
    linear_lr: Annotated[float | None, _training_option(help="Learning rate of that phase.")] = None
    linear_batch_size: Annotated[int | None, _training_option(help="Batch size of that phase.")] = None
    optimizer: Annotated[
        str | None, _training_option(help="sgd, adam, adamw, or newton (linear heads, all images).")
    ] = None
    standardize: Annotated[
        bool | None, _head_option("--standardize/--no-standardize", help="Standardize features of a linear head.")
    ] = None
    reviewed_absents: Annotated[
        str | None,
        _head_option(help="Absents decided on likely labels: use, or ignore (auto without val)."),
    ] = None
    folds: Annotated[
        int | None, _head_option(help="Folds of the cross-validation where there is no val; 0 for none.")
    ] = None
    momentum: Annotated[float | None, _training_option(help="Momentum of sgd.", show_default="0.9")] = None
    nesterov: Annotated[bool | None, _training_option("--nesterov/--no-nesterov", help="Variant of sgd.")] = None
    weight_decay: Annotated[float | None, _training_option(help="L2 penalty; decoupled with adamw.")] = None
    schedule: Annotated[str | None, _training_option(help="Learning rate schedule: constant or cosine.")] = None
    warmup: Annotated[float | None, _training_option(help="Epochs of learning rate warmup.")] = None
    clip: Annotated[float | None, _training_option(help="Maximum norm of the gradient.")] = None
    ema: Annotated[float | None, _training_option(help="Decay of a moving average of the weights, e.g. 0.999.")] = None
    accumulate: Annotated[int | None, _training_option(help="Batches per optimizer step.")] = None
    checkpoint_minutes: Annotated[
        float | None,
        typer.Option(help="Minutes between checkpoints within an epoch; 0: at its end only.", show_default="10"),
    ] = None
    stop_below: Annotated[float | None, _training_option(help="Stop this far below the best val score, e.g. 0.03.")] = (
        None
    )
    transform: Annotated[
        str | None, _image_option(help="resize, augment (random crops, geometry, color), or crop (Kobayashi 2023).")
    ] = None
    average_flips: Annotated[
        bool | None,
        _image_option("--average-flips/--no-average-flips", help="Average over image and mirror: twice the time."),
    ] = None
    batchnorm: Annotated[
        str | None,
        _training_option(
            help="Statistics of batch norm: local (of each process), sync (of the whole batch), frozen (initial ones).",
            show_default="local",
        ),
    ] = None
    size: Annotated[
        int | None, _image_option(help="Side of the input images.", show_default="that of the backbone")
    ] = None
    precision: Annotated[
        str | None,
        _training_option(help="auto, float32 or bf16.", show_default="16 bits where the hardware computes with them"),
    ] = None


_Log = Annotated[
    list[str] | None,
    typer.Option(
        "--log",
        "--logger",  # torchrun takes --log for an abbreviation of its own options
        metavar="NAME",
        help="Log every epoch: csv, tensorboard, wandb or mlflow; repeatable. After torchrun: --logger.",
    ),
]


@with_options(model=ModelOptions, training=TrainingOptions, data_options=DataOptions)
def train(
    data: Data,
    data_options: DataOptions,
    model: ModelOptions,
    training: TrainingOptions,
    out: Annotated[Path, typer.Option(help="Folder of the run, e.g. runs/first.")],
    observe: Observe = None,
    label_seed: LabelSeed = 1200,
    device: Device = "auto",
    workers: Workers = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run in --out.")] = False,
    accept_changes: Annotated[
        bool, typer.Option("--accept-changes", help="Resume although the data have changed since.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the configuration and its cost; train nothing.")
    ] = False,
    trace: Annotated[
        str, typer.Option(help="Training labels to record: auto (off on a GPU), all, off or a number.")
    ] = "auto",
    allow_micro_batch: Annotated[
        bool,
        typer.Option("--allow-micro-batch", help="Let --accumulate split batches of methods that need whole ones."),
    ] = False,
    no_images: Annotated[bool, typer.Option("--no-images", help="Leave images out of the report.")] = False,
    log: _Log = None,
) -> None:
    """Train a classifier and write a run folder with its report."""
    from labelgap.cli.printing import print_data, print_run
    from labelgap.core.distributed import is_main_process
    from labelgap.reporting import write_report
    from labelgap.training import fit
    from labelgap.training.config.check import check_request
    from labelgap.training.config.request import TrainingRequest
    from labelgap.training.devices import choose_device
    from labelgap.training.loggers import check_loggers
    from labelgap.training.loop.processes import fail_together, init_distributed
    from labelgap.training.run_folder import check_folder

    started = time.perf_counter()
    request = {**model.arguments(), "trace": trace, "allow_micro_batch": allow_micro_batch}
    resumed: dict[str, Any] = {"resume": resume, "accept_changes": accept_changes}
    requested = TrainingRequest(**request, training=asdict(training))  # type: ignore[arg-type]
    check_request(requested)  # before the images are read
    logs = check_loggers(log or ())
    init_distributed(choose_device(device))
    with fail_together():
        if is_main_process() and not dry_run:
            check_folder(out, resume)
        opened = open_dataset(data, data_options, observe, label_seed)
    print_data(opened)
    if dry_run:
        _dry_run(opened, requested, device, workers)
        return
    with _exit_when_stopped(out):
        run = fit(opened, out=out, device=device, workers=workers, log=logs, **resumed, **request, **asdict(training))
        if run.finished and is_main_process():
            report = write_report(run, data=opened, images=not no_images)
            print_run(run, report, run.with_val(opened), time.perf_counter() - started)


@contextmanager
def _exit_when_stopped(out: Path) -> Iterator[None]:
    """Exit with 130 after a Ctrl-C and with 143 after SIGTERM, also where the training has ended in good order."""
    from labelgap.core.distributed import is_main_process
    from labelgap.core.terminal.console import make_console
    from labelgap.training import open_run
    from labelgap.training.run_folder import is_run_folder
    from labelgap.training.signals import record_signals

    with record_signals() as received:
        try:
            yield
        except (KeyboardInterrupt, RuntimeError):  # another process, which got the signal too, may have ended first
            if not received:
                raise
    if received:
        if is_main_process() and is_run_folder(out) and open_run(out).metrics.get("interrupted", True):
            make_console(stderr=True, soft_wrap=True).print(f"resume    the same command with --resume continues {out}")
        raise typer.Exit(128 + received[0])


def _dry_run(data: Dataset, requested: TrainingRequest, device: str, workers: int | None) -> None:
    """Print the configuration and its cost."""
    from labelgap.data.findings import ValidationHeldOut
    from labelgap.training.config.presets import describe_missing_settings
    from labelgap.training.config.resolve import prepare_data, resolve_config
    from labelgap.training.devices import choose_device
    from labelgap.training.fit import dry_run
    from labelgap.training.protocols import FOLDS_REASON

    data = prepare_data(data, requested, choose_device(device))
    config, selection, _ = resolve_config(data, requested, choose_device(device))
    print(f"{'method':<19}{config.method}" + ("" if config.why is None else f": {config.why}"))
    values = config.model_dump(mode="json", exclude={"format", "data", "classes", "method", "why"}, exclude_none=True)
    for name, value in values.items():
        shown = " ".join(f"{key}={each}" for key, each in value.items()) or "none" if isinstance(value, dict) else value
        print(f"{name:<19}{shown}")
    if config.preset and (missing := describe_missing_settings(config.preset, data.recipe.get("name"))):
        print(missing)
    for finding in data.findings:
        if isinstance(finding, ValidationHeldOut):
            print(finding)
    print(FOLDS_REASON.format(folds=config.folds) if config.folds else selection.why)
    print(dry_run(data, requested, device=device, workers=workers))
