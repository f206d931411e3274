"""``labelgap predict``: scores and labels of images, in a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from labelgap.cli.evaluate import RunFolder
from labelgap.cli.options import DataOptions, Device, open_dataset, with_data_options

if TYPE_CHECKING:
    from labelgap.data import ImageSource

__all__ = ["predict"]


@with_data_options
def predict(
    run: RunFolder,
    images_or_data: Annotated[
        list[str],
        typer.Argument(
            metavar="IMAGES|DATA",
            help="Images, folders of them, a pattern, a text file with a path per line; or DATA: a CSV, features …",
        ),
    ],
    data_options: DataOptions,
    out: Annotated[Path, typer.Option(help="File to write, ending in .csv or .parquet.")] = Path("predictions.csv"),
    layout: Annotated[str, typer.Option(help="wide: a row per image; long: a row per image and class.")] = "wide",
    split: Annotated[str, typer.Option(help="Of DATA: train, val, test or all.")] = "all",
    device: Device = "auto",
    workers: Annotated[
        int | None, typer.Option(help="Processes that decode images. [default: what the device can use]")
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Images at a time.")] = 64,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Do not go on with an unfinished prediction.")] = False,
) -> None:
    """Write scores, probabilities where calibrated, and labels of images. Called again after a kill, it goes on."""
    from labelgap.cli.printing import print_predicted
    from labelgap.inference.predict.prediction_file import predict_to_file
    from labelgap.training import open_run

    opened = open_run(run)
    _ = opened.thresholds  # says so where the run is not finished
    sources = _sources(images_or_data, data_options, split)
    made = predict_to_file(
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
    print_predicted(opened, made)


def _sources(texts: Sequence[str], options: DataOptions, split: str) -> list[ImageSource]:
    """Return the images that were typed, or those of DATA, and say which it was."""
    from labelgap.core.errors import InputError
    from labelgap.inference.predict.image_arguments import find_images, is_dataset_argument

    if len(texts) == 1 and is_dataset_argument(texts[0]):
        data = open_dataset(texts[0], options)
        chosen = data.splits if split == "all" else (data.split(split),)
        print(f"{'data':<10}{data.name}: {', '.join(f'{len(each):,} {each.name}' for each in chosen)}")
        return [each.images for each in chosen]
    if tables := [text for text in texts if is_dataset_argument(text)]:
        raise InputError(f"{tables[0]} is data, and stands alone: call the command once for it, once for the others.")
    if strange := options.given().keys() - {"images", "on_bad_image"}:
        raise InputError(f"--{sorted(strange)[0].replace('_', '-')} says how DATA is read, and these are images.")
    found = find_images(texts, options.images)
    print(f"{'images':<10}{len(found):,}, from {found.names[0]}" + (f" to {found.names[-1]}" if len(found) > 1 else ""))
    return [found]
