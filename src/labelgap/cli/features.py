"""``labelgap features``: the features of a data set as a file."""

from __future__ import annotations

import shlex
from typing import Annotated, Any

from labelgap.cli.options import (
    WORKERS,
    Data,
    DataSource,
    Device,
    Force,
    PartOptions,
    option,
    parse_count,
    setting_options,
    with_options,
)
from labelgap.cli.printing import print_fields, print_parts


@with_options(source=DataSource, parts=PartOptions, network=setting_options("backbone", "weights", "size"))
def features(
    data: Data,
    source: DataSource,
    parts: PartOptions,
    network: Any,
    out: Annotated[str, option("File to write, e.g. features.npz; or folder or URL of parts.")],
    device: Device = "auto",
    workers: Annotated[str | None, option(WORKERS, "depends on the device")] = None,
    force: Force = False,
) -> None:
    """Compute the features of images once, as a file that `train`, `compare` and `linear-eval` read."""
    from labelgap.studies.features import features as compute
    from labelgap.studies.features import write_features

    if parts.asked:
        return _write_parts(data, parts, out, device, workers, **vars(network))
    opened, count = source.open(data), None if workers is None else parse_count(workers, "--workers")
    arrays = compute(opened, **vars(network), device=device, workers=count, quiet=False)
    write_features(out, opened, arrays, force=force)
    width = next(iter(arrays.values())).shape[1]
    sizes = ", ".join(f"{len(values):,} {split}" for split, values in arrays.items())
    about = f"{width:,} of each image; {sizes}"
    print_fields(("wrote", str(out)), ("features", about), ("next", f"labelgap compare {out}"))


def _write_parts(
    source: str, parts: PartOptions, out: str, device: str, workers: str | None, backbone: str | None, **network: Any
) -> None:
    from labelgap.inference.predictor import Predictor
    from labelgap.models import create_backbone
    from labelgap.training.plan import PRETRAINED_BACKBONE

    predictor = Predictor(create_backbone(backbone or PRETRAINED_BACKBONE, **network), device=device, features=True)
    print_parts(parts.predict(predictor, source, out, workers), parts.part, f"labelgap compare {shlex.quote(out)}")
