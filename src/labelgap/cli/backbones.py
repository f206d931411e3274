"""``labelgap backbones``: list the backbones, or describe one."""

from __future__ import annotations

from typing import Annotated

import typer


def backbones(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Describe this backbone, e.g. timm:resnet18.")
    ] = None,
) -> None:
    """List the backbones with the source of their weights, or describe one."""
    from labelgap.cli.printing import print_table
    from labelgap.models import RECOMMENDED_MODELS, TIMM_PREFIX, count_timm_models, list_backbones

    if name is not None:
        return _print_backbone(name)
    rows = [
        (row.name, f"{row.parameters:,}", f"{row.input_spec.size} px", row.source, row.license)
        for row in list_backbones()
    ]
    print_table(("backbone", "parameters", "input", "weights", "license"), rows)
    count = count_timm_models()
    timm = f"any of timm's {count:,} models" if count else "any model of timm: pip install 'labelgap[timm]'"
    print(f"\ntimm:MODEL                {timm}")
    print("open_clip:MODEL/TAG       the image tower of a model of open_clip: pip install 'labelgap[clip]'")
    print("labelgap backbones NAME   details of one, also of timm:MODEL and open_clip:MODEL/TAG")
    print("--weights FILE            weights of your own for any of them (.pth, .pt, .safetensors)")
    print("\nWith a network connection, use weights of more than ImageNet-1k (downloaded once; not measured here):")
    for model, summary in RECOMMENDED_MODELS.items():
        print(f"  --backbone {TIMM_PREFIX}{model:<38}  {summary}")


def _print_backbone(name: str) -> None:
    from labelgap.models import backbone_info

    row = backbone_info(name)
    spec = row.input_spec
    channels = "color" if spec.channels > 1 else "gray"
    mean, std = (", ".join(f"{value:.4g}" for value in values) for values in (spec.mean, spec.std))
    print(f"{row.name}: {row.summary}\n")
    print(f"parameters  {row.parameters:,}")
    print(f"features    {row.num_features:,} per image")
    print(f"input       {spec.size} × {spec.size} px, {channels}, {spec.interpolation}")
    print(f"            mean {mean}, standard deviation {std}")
    print(f"weights     {row.source}")
    print(f"license     {row.license}")
