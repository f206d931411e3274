"""``labelgap shard``: write images and labels into shards, for many images or slow disks."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from labelgap.cli.options import Data, DataOptions, Force, LabelSeed, Observe, open_dataset, with_options


@with_options(data_options=DataOptions)
def shard(
    data: Data,
    data_options: DataOptions,
    out: Annotated[Path, typer.Option(help="Folder to write.")],
    size: Annotated[
        int | None, typer.Option(metavar="PX", help="Scale the shorter side down to this.", show_default="as it is")
    ] = None,
    images_per_shard: Annotated[int | None, typer.Option(metavar="N", help="Images of a shard.")] = None,
    bytes_per_shard: Annotated[str | None, typer.Option(help="Or its bytes, e.g. 1GB.", show_default="200MB")] = None,
    shuffle: Annotated[
        int | None, typer.Option(metavar="SEED", help="Shuffle the images.", show_default="in the order of DATA")
    ] = None,
    force: Force = False,
    observe: Observe = None,
    label_seed: LabelSeed = 1200,
) -> None:
    """Write DATA as shards, tar files that all commands and webdataset read. Called again, it resumes or verifies."""
    from labelgap.core.errors import InputError
    from labelgap.core.system import format_bytes, parse_bytes
    from labelgap.core.text import pluralize
    from labelgap.data.writers.shards import ShardOptions, write_shards
    from labelgap.training.progress import Reporter

    if images_per_shard is not None and bytes_per_shard is not None:
        raise InputError("give --images-per-shard or --bytes-per-shard, not both.")
    options = ShardOptions(size=size, images_per_shard=images_per_shard, shuffle=shuffle)
    if bytes_per_shard is not None:
        options = ShardOptions(size=size, bytes_per_shard=parse_bytes(bytes_per_shard), shuffle=shuffle)
    opened = open_dataset(data, data_options, observe, label_seed)
    reporter, found = Reporter(), list[str]()
    with reporter.bar("images", sum(map(len, opened.splits))):
        index = write_shards(
            opened,
            out,
            options,
            force=force,
            progress=reporter.advance,
            on_complete=lambda: found.append("complete and intact already"),
        )
    total = sum(entry.bytes for entry in index.shards)
    images = ", ".join(f"{len(split):,} {split.name}" for split in opened.splits)
    verb = "found" if found else "wrote"
    shards = f"{pluralize(len(index.shards), 'shard')} in {out}, {format_bytes(total)}"
    print(f"{verb:<9}{', '.join([shards, *found])}: {images}")
    print(f"{'next':<9}labelgap train {shlex.quote(str(out))} --out runs/first")
