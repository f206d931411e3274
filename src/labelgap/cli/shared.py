"""Options that several commands have, and what they do with them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from labelgap.data import Dataset

__all__ = ["Data", "Device", "Images", "LabelSeed", "Observe", "Unlisted", "Zeros", "open_dataset"]

Data = Annotated[
    str, typer.Argument(metavar="DATA", help="A CSV file, name=path, or digits (see `labelgap datasets`).")
]
Images = Annotated[Path | None, typer.Option(help="Folder that the image names start from. [default: the CSV's own]")]
Zeros = Annotated[str | None, typer.Option(help="What a 0 in a wide table says: absent or unknown. [default: absent]")]
Unlisted = Annotated[
    str | None, typer.Option(help="What a tag not in the lists is: unknown or absent. [default: unknown]")
]
Observe = Annotated[
    str | None, typer.Option(help="Hide training labels as the papers do, e.g. positives=1,negatives=0 (or all).")
]
LabelSeed = Annotated[int, typer.Option(help="Seed of --observe; the papers' is 1200.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]


def open_dataset(
    data: str,
    images: Path | None,
    zeros: str | None,
    unlisted: str | None,
    observe: str | None = None,
    label_seed: int = 1200,
) -> Dataset:
    """Open DATA, and hide labels when told to."""
    from labelgap.cli.parsing import parse_observe
    from labelgap.data import open_data

    opened = open_data(data, images=images, zeros=zeros, unlisted=unlisted)
    return opened if observe is None else opened.observe(**parse_observe(observe), seed=label_seed)
