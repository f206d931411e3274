"""``labelgap convert``: write labels for other tools, with all three states."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from labelgap.cli.options import Data, DataSource, Force, option, with_options
from labelgap.cli.printing import print_fields


@with_options(source=DataSource)
def convert(
    data: Data,
    source: DataSource,
    to: Annotated[str, option("csv, parquet, coco, fiftyone, labelstudio, cvat or croissant.")],
    out: Annotated[Path, option("File to write.")],
    prefix: Annotated[
        str | None, option("Put before image names for fiftyone, labelstudio and cvat: s3://bucket/.")
    ] = None,
    force: Force = False,
) -> None:
    """Write labels for another tool; present, absent and unknown stay distinct."""
    from labelgap.data.writers.exchange import merge_splits
    from labelgap.data.writers.formats import convert as write

    opened = source.open(data)
    written = write(opened, to, out, prefix=prefix, force=force)
    present, absent, unknown = merge_splits(opened).table.counts().total
    states = f"{present:,} present, {absent:,} absent, {unknown:,} unknown; {len(opened.classes):,} classes"
    sizes = ", ".join(f"{len(split):,} {split.name}" for split in opened.splits)
    wrote = " and ".join(map(str, written.paths))
    print_fields(("wrote", wrote), ("labels", f"{states}; {sizes}"), ("open", written.hint), width=9)
