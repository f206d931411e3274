"""``labelgap convert``: write labels for other tools, with all three states."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from labelgap.cli.options import Data, Force, LabelSeed, Observe, open_dataset, with_options
from labelgap.cli.parsing import option
from labelgap.cli.printing import print_fields
from labelgap.core.data_options import DataOptions


@with_options(data_options=DataOptions)
def convert(
    data: Data,
    data_options: DataOptions,
    to: Annotated[str, option("csv, parquet, coco, fiftyone or labelstudio.")],
    out: Annotated[Path, option("File to write.")],
    prefix: Annotated[
        str | None, option("Put before every image name, for fiftyone and labelstudio, e.g. s3://bucket/.")
    ] = None,
    force: Force = False,
    observe: Observe = None,
    label_seed: LabelSeed = 1200,
) -> None:
    """Write labels for another tool; present, absent and unknown stay distinct."""
    from labelgap.data.writers.formats import convert as write
    from labelgap.data.writers.formats import merge_splits

    opened = open_dataset(data, data_options, observe, label_seed)
    written = write(opened, to, out, prefix=prefix, force=force)
    present, absent, unknown = merge_splits(opened).table.counts().total
    states = f"{present:,} present, {absent:,} absent, {unknown:,} unknown; {len(opened.classes):,} classes"
    sizes = ", ".join(f"{len(split):,} {split.name}" for split in opened.splits)
    wrote = " and ".join(map(str, written.paths))
    print_fields(("wrote", wrote), ("labels", f"{states}; {sizes}"), ("open", written.hint), width=9)
