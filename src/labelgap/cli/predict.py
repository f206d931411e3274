"""``labelgap predict``: write tags and scores of images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from labelgap.cli.options import DataOptions, Device, Force, RunFolder, Workers, open_dataset, with_options

if TYPE_CHECKING:
    from labelgap.data import ImageSource


@with_options(data_options=DataOptions)
def predict(
    run: RunFolder,
    images_or_data: Annotated[
        list[str],
        typer.Argument(
            metavar="IMAGES|DATA",
            help="Images, folders, a pattern, a text file with a path per line; or DATA: a CSV, features …",
        ),
    ],
    data_options: DataOptions,
    out: Annotated[Path, typer.Option(help="File to write: .csv or .parquet.")] = Path("predictions.csv"),
    layout: Annotated[
        str,
        typer.Option(
            help="lists: image,present,unsure,absent, as `train` reads them; wide: scores, probabilities and labels, "
            "a row per image; long: the same, a row per image and class."
        ),
    ] = "lists",
    split: Annotated[str, typer.Option(help="Split of DATA: train, val, test or all.")] = "all",
    device: Device = "auto",
    workers: Workers = None,
    batch_size: Annotated[int, typer.Option(help="Images per batch.")] = 64,
    force: Force = False,
    restart: Annotated[bool, typer.Option("--restart", help="Do not resume an unfinished prediction.")] = False,
) -> None:
    """Write the tags of images, or their scores and probabilities. Called again after a kill, it resumes."""
    from labelgap.cli.printing import print_predictions
    from labelgap.inference.predict.prediction_file import predict_to_file
    from labelgap.training import open_run
    from labelgap.training.devices import choose_device
    from labelgap.training.loop.processes import fail_together, init_distributed

    init_distributed(choose_device(device))
    with fail_together():
        opened = open_run(run)
        _ = opened.thresholds  # an error when the run is not finished
        sources = _sources(images_or_data, data_options, split)
    result = predict_to_file(
        opened,
        sources,
        out,
        layout=layout,
        on_bad_image=data_options.on_bad_image or "skip",
        device=device,
        workers=workers,
        batch_size=batch_size,
        force=force,
        restart=restart,
        quiet=False,
    )
    print_predictions(opened, result)


def _sources(texts: Sequence[str], options: DataOptions, split: str) -> list[ImageSource]:
    """Return the given images, or those of DATA, and print which."""
    from labelgap.cli.printing import print_skipped
    from labelgap.core.errors import InputError
    from labelgap.inference.predict.image_arguments import find_images, is_dataset_argument

    if len(texts) == 1 and is_dataset_argument(texts[0]):
        data = open_dataset(texts[0], options)
        chosen = data.splits if split == "all" else (data.split(split),)
        print(f"{'data':<10}{data.name}: {', '.join(f'{len(each):,} {each.name}' for each in chosen)}")
        print_skipped(data)
        return [each.images for each in chosen]
    if tables := [text for text in texts if is_dataset_argument(text)]:
        raise InputError(
            f"{tables[0]} is DATA, which cannot be combined with images: predict it in a command of its own."
        )
    if unused := options.given().keys() - {"images", "on_bad_image"}:
        raise InputError(f"--{sorted(unused)[0].replace('_', '-')} applies to DATA, and these are images.")
    found = find_images(texts, options.images)
    print(f"{'images':<10}{len(found):,}, from {found.names[0]}" + (f" to {found.names[-1]}" if len(found) > 1 else ""))
    return [found]
