"""``labelgap backbones``: list the backbones, or describe one."""

from __future__ import annotations

from typing import Annotated

from typer import Argument

import labelgap as lg
from labelgap.cli.printing import print_fields, print_table


def backbones(
    name: Annotated[str | None, Argument(metavar="[NAME]", help="Describe this backbone, e.g. timm:resnet18.")] = None,
) -> None:
    """List the backbones with the source of their weights, or describe one."""
    if name is not None:
        row = lg.models.backbone_info(name)
        spec = row.input_spec
        mean, std = (", ".join(f"{value:.4g}" for value in values) for values in (spec.mean, spec.std))
        size = f"{spec.size} × {spec.size} px, {'color' if spec.channels > 1 else 'gray'}, {spec.interpolation}"
        print(f"{row.name}: {row.summary}\n")
        return print_fields(
            ("parameters", f"{row.parameters:,}"),
            ("features", f"{row.num_features:,} per image"),
            ("input", [size, f"mean {mean}, standard deviation {std}"]),
            ("weights", row.source),
            ("license", row.license),
            width=12,
        )
    rows = [
        (row.name, f"{row.parameters:,}", f"{row.input_spec.size} px", row.source, row.license)
        for row in lg.models.list_backbones()
    ]
    print_table(("backbone", "parameters", "input", "weights", "license"), rows)
    count = lg.models.count_timm_models()
    print()
    models_of_timm = f"any of timm's {count:,} models" if count else "any model of timm: pip install 'labelgap[timm]'"
    print_fields(
        ("timm:MODEL", models_of_timm),
        ("open_clip:MODEL/TAG", "the image tower of a model of open_clip: pip install 'labelgap[clip]'"),
        ("labelgap backbones NAME", "details of one, also of timm:MODEL and open_clip:MODEL/TAG"),
        ("--weights FILE", "weights of your own for any of them (.pth, .pt, .safetensors)"),
        width=26,
    )
    print("\nWith a network connection, use weights of more than ImageNet-1k (downloaded once; not measured here):")
    for model, summary in lg.models.RECOMMENDED_MODELS.items():
        print(f"  --backbone {lg.models.TIMM_PREFIX}{model:<38}  {summary}")
