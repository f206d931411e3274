"""``labelgap features``: the features of a data set as a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from labelgap.cli.options import Data, DataSource, Device, Force, Workers, option, setting_option, with_options
from labelgap.cli.printing import print_fields


@with_options(source=DataSource)
def features(
    data: Data,
    source: DataSource,
    out: Annotated[Path, option("File to write, e.g. features.npz.")],
    backbone: Annotated[str | None, setting_option("backbone")] = None,
    weights: Annotated[str | None, setting_option("weights", metavar="PATH")] = None,
    size: Annotated[int | None, setting_option("size")] = None,
    device: Device = "auto",
    workers: Workers = None,
    force: Force = False,
) -> None:
    """Compute the features of images once, as a file that `train`, `compare` and `linear-eval` read."""
    from labelgap.studies.features import features as compute
    from labelgap.studies.features import write_features

    opened = source.open(data)
    arrays = compute(opened, backbone, weights=weights, size=size, device=device, workers=workers, quiet=False)
    write_features(out, opened, arrays, force=force)
    width = next(iter(arrays.values())).shape[1]
    sizes = ", ".join(f"{len(values):,} {split}" for split, values in arrays.items())
    about = f"{width:,} of each image; {sizes}"
    print_fields(("wrote", str(out)), ("features", about), ("next", f"labelgap compare {out}"))
