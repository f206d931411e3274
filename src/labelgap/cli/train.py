"""``labelgap train``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from labelgap.cli.options import (
    Data,
    DataOptions,
    Device,
    LabelSeed,
    Observe,
    open_dataset,
    with_data_options,
    with_options,
)

if TYPE_CHECKING:
    from labelgap.data import Dataset

__all__ = ["TrainingOptions", "train"]


@dataclass(frozen=True)
class TrainingOptions:
    """How to train, as it was typed; None where nothing was said: then the preset or what suits the protocol counts."""

    epochs: Annotated[int | None, typer.Option(help="How many. [default: suits the protocol, as the rest does]")] = None
    lr: Annotated[float | None, typer.Option(help="Learning rate of the head.")] = None
    backbone_lr: Annotated[float | None, typer.Option(help="Of the backbone. [default: in proportion to --lr]")] = None
    batch_size: Annotated[int | None, typer.Option(help="Images per batch, over all processes.")] = None
    linear_epochs: Annotated[int | None, typer.Option(help="Epochs of linear-init's first phase.")] = None
    linear_lr: Annotated[float | None, typer.Option(help="Its learning rate.")] = None
    linear_batch_size: Annotated[int | None, typer.Option(help="Its batch size.")] = None
    optimizer: Annotated[str | None, typer.Option(help="adam or sgd.")] = None
    momentum: Annotated[float | None, typer.Option(help="Of sgd. [default: 0.9]")] = None
    nesterov: Annotated[bool | None, typer.Option("--nesterov/--no-nesterov", help="Of sgd.")] = None
    weight_decay: Annotated[float | None, typer.Option(help="L2, added to the gradient.")] = None
    schedule: Annotated[str | None, typer.Option(help="Of the rates: constant or cosine.")] = None
    warmup: Annotated[float | None, typer.Option(help="Epochs in which the rates rise.")] = None
    clip: Annotated[float | None, typer.Option(help="Largest norm of a gradient.")] = None
    ema: Annotated[float | None, typer.Option(help="Keep a moving average of the weights, e.g. 0.999.")] = None
    accumulate: Annotated[int | None, typer.Option(help="Batches per step.")] = None
    stop_below: Annotated[float | None, typer.Option(help="End so far below the best val score, e.g. 0.03.")] = None
    transform: Annotated[str | None, typer.Option(help="resize, or crop for random parts in random light.")] = None
    size: Annotated[int | None, typer.Option(help="Side of the pictures. [default: the backbone's own]")] = None
    precision: Annotated[str | None, typer.Option(help="auto, float32 or bf16. [default: bf16 on a GPU]")] = None


def _with_training_options(command: Callable[..., None]) -> Callable[..., None]:
    return with_options(TrainingOptions, "training", command)


@with_data_options
@_with_training_options
def train(
    data: Data,
    data_options: DataOptions,
    training: TrainingOptions,
    out: Annotated[Path, typer.Option(help="Folder of the run.")],
    method: Annotated[str, typer.Option(help="See `labelgap methods`; auto chooses from the labels.")] = "auto",
    option: Annotated[
        list[str] | None, typer.Option(help="Of the method, e.g. delta_rel=0.2; may be repeated.")
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help="A paper's settings: cole2021, kim2022, zhou2022 or kobayashi2023.")
    ] = None,
    backbone: Annotated[str | None, typer.Option(help="See `labelgap backbones`. [default: suits the data]")] = None,
    weights: Annotated[
        Path | None, typer.Option(help="File of the backbone's weights: .pth, .safetensors; or none.")
    ] = None,
    protocol: Annotated[
        str | None, typer.Option(help="linear, end-to-end or linear-init. [default: suits data and device]")
    ] = None,
    head: Annotated[str, typer.Option(help="linear, or boostlu (with end-to-end).")] = "linear",
    observe: Observe = None,
    label_seed: LabelSeed = 1200,
    seed: Annotated[int, typer.Option(help="Of initialisation, order and augmentation.")] = 0,
    device: Device = "auto",
    select: Annotated[str, typer.Option(help="How the epoch is chosen: auto, clean, known, observed, last.")] = "auto",
    trace: Annotated[str, typer.Option(help="Training labels to record: auto, all, off or a number.")] = "auto",
    allow_micro_batch: Annotated[
        bool, typer.Option("--allow-micro-batch", help="With --accumulate: also for methods that look across a batch.")
    ] = False,
    workers: Annotated[int | None, typer.Option(help="Processes that decode images. [default: what is of use]")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done and what it would cost; train nothing.")
    ] = False,
    no_images: Annotated[bool, typer.Option("--no-images", help="Leave photos out of the report.")] = False,
) -> None:
    """Train a classifier and write a run folder with its report."""
    from labelgap.cli.parsing import parse_options
    from labelgap.cli.printing import print_data, print_run
    from labelgap.core.distributed import is_main_process
    from labelgap.reporting import write_report
    from labelgap.training import fit
    from labelgap.training.devices import choose_device
    from labelgap.training.loop.distributed import init_distributed, local_device

    init_distributed(local_device(choose_device(device)))
    opened = open_dataset(data, data_options, observe, label_seed)
    if is_main_process():
        print_data(opened)
    what: dict[str, Any] = {"method": method, "options": parse_options(option or ()), "preset": preset}
    what |= {"backbone": backbone, "weights": None if weights is None else str(weights), "protocol": protocol}
    what |= {"head": head, "seed": seed, "select": select, "trace": trace, "allow_micro_batch": allow_micro_batch}
    if dry_run:
        _dry_run(opened, what, training, device, workers)
        return
    run = fit(opened, out=out, device=device, workers=workers, resume=resume, **what, **asdict(training))
    if run.finished and is_main_process():
        print_run(run, write_report(run, data=opened, images=not no_images))


def _dry_run(
    opened: Dataset, what: dict[str, Any], training: TrainingOptions, device: str, workers: int | None
) -> None:
    """Print what was decided and what it would cost."""
    from labelgap.training.config.defaults import TrainingSettings
    from labelgap.training.config.resolve import TrainingRequest, resolve_config
    from labelgap.training.devices import choose_device
    from labelgap.training.fit import dry_run

    settings: TrainingSettings = asdict(training)  # type: ignore[assignment]
    wishes = TrainingRequest(**what, training=settings)
    config, selection, _ = resolve_config(opened, wishes, choose_device(device))
    print(f"method    {config.method}: {config.why}")
    shown = config.model_dump(mode="json", exclude={"data", "classes", "method", "why"}, exclude_defaults=True)
    for name, value in shown.items():
        print(f"{name:<14}{value}")
    print(selection.why)
    print(dry_run(opened, wishes, device=device, workers=workers))
