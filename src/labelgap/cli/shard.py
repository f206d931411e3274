"""``labelgap shard``: write images and labels into shards, for many images or slow disks."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from labelgap.cli.options import Data, DataSource, Force, option, with_options
from labelgap.cli.printing import print_fields
from labelgap.core.errors import InputError
from labelgap.core.system import format_bytes, parse_bytes
from labelgap.core.text import pluralize


@with_options(source=DataSource)
def shard(
    data: Data,
    source: DataSource,
    out: Annotated[Path, option("Folder to write.")],
    size: Annotated[int | None, option("Scale the shorter side down to this.", "as it is", metavar="PX")] = None,
    images_per_shard: Annotated[int | None, option("Images of a shard.", metavar="N")] = None,
    bytes_per_shard: Annotated[str | None, option("Or its bytes, e.g. 1GB.", "200MB")] = None,
    shuffle: Annotated[int | None, option("Shuffle the images.", "in the order of DATA", metavar="SEED")] = None,
    force: Force = False,
) -> None:
    """Write DATA as shards, tar files that all commands and webdataset read. Called again, it resumes or verifies."""
    from labelgap.data.writers.shards import ShardOptions, write_shards
    from labelgap.training.progress import Reporter

    if images_per_shard is not None and bytes_per_shard is not None:
        raise InputError("give --images-per-shard or --bytes-per-shard, not both.")
    given = {} if bytes_per_shard is None else {"bytes_per_shard": parse_bytes(bytes_per_shard)}
    options = ShardOptions(size=size, images_per_shard=images_per_shard, shuffle=shuffle, **given)
    opened = source.open(data)
    reporter, intact = Reporter(), list[str]()
    complete = lambda: intact.append(", complete and intact already")  # noqa: E731
    with reporter.bar("images", sum(map(len, opened.splits))):
        index = write_shards(opened, out, options, force=force, progress=reporter.advance, on_complete=complete)
    total = format_bytes(sum(entry.bytes for entry in index.shards))
    images = ", ".join(f"{len(split):,} {split.name}" for split in opened.splits)
    shards = f"{pluralize(len(index.shards), 'shard')} in {out}, {total}{''.join(intact)}: {images}"
    following = f"labelgap train {shlex.quote(str(out))} --out runs/first"
    print_fields(("found" if intact else "wrote", shards), ("next", following), width=9)
