"""The default for a whole network, on the whole of PASCAL VOC 2012: the first table of docs/results/recipe.md.

    python benchmarks/recipe.py VOCdevkit --weights resnet50.pth --seeds 0,1,2
    python benchmarks/recipe.py VOCdevkit --weights resnet50.pth --all-labels --set epochs=10 --set optimizer=adamw

The weights are He's ResNet-50 under torchvision's names. They were trained with the stride in each stage's first
convolution; `--stride-in-3x3` is for torchvision's own. Without `--weights` the backbone is `--backbone`. Finished runs
are not repeated.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

import labelgap as lg
from labelgap.models import create_backbone


def main() -> None:
    """Train every seed and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder of the VOC devkit")
    parser.add_argument("--weights", type=Path, help="file of a ResNet-50")
    parser.add_argument("--stride-in-3x3", action="store_true")
    parser.add_argument("--backbone", default="efficientnet-lite0")
    parser.add_argument("--size", type=int, help="side of the images; 448 with --weights")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--method", default="auto")
    parser.add_argument("--all-labels", action="store_true")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of lg.fit")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("runs/recipe"))
    arguments = parser.parse_args()
    data = lg.load("voc2012", arguments.data)
    if not arguments.all_labels:
        data = data.observe(positives=1, negatives=0, seed=1200)
    print("| method | seed | val mAP | test mAP | epoch kept | seconds |\n|---|---|---|---|---|---|", flush=True)
    measured = [train(data, seed, arguments) for seed in map(int, arguments.seeds.split(","))]
    val, test = np.mean(measured, axis=0)
    print(f"mean of {len(measured)}: val {val:.2f}, test {test:.2f}")


def train(data: lg.Dataset, seed: int, arguments: argparse.Namespace) -> tuple[float, float]:
    """Train one seed, print its line, and return its mAP on val and test."""
    settings: dict[str, Any] = {"size": arguments.size} if arguments.size else {}
    for given in arguments.set:
        name, _, value = given.partition("=")
        settings[name] = json.loads(value) if value[:1].isdigit() or value in ("true", "false") else value
    backbone: str | nn.Module = arguments.backbone
    if arguments.weights is not None:
        backbone, settings["size"] = ResNet50(arguments.weights, not arguments.stride_in_3x3), arguments.size or 448
    name = arguments.weights.stem if arguments.weights is not None else arguments.backbone.replace(":", "_")
    labels, size = "all" if arguments.all_labels else "one", str(settings.get("size", ""))
    out = arguments.out / "-".join([name + size, labels, arguments.method, *arguments.set, f"seed{seed}"])
    run = lg.fit(
        data,
        arguments.method,
        backbone=backbone,
        protocol="linear-init",
        out=out,
        seed=seed,
        device=arguments.device,
        resume=(out / "config.json").exists(),
        quiet=True,
        **settings,
    )
    val, test = (100 * run.metrics[split]["map"] for split in ("val", "test"))
    kept, seconds = run.metrics["best_epoch"], run.metrics["seconds"]
    print(f"| {run.config.method} | {seed} | {val:.2f} | {test:.2f} | {kept} | {seconds:.0f} |", flush=True)
    return val, test


class ResNet50(nn.Module):
    """A ResNet-50 with the weights of a file; its feature maps."""

    def __init__(self, weights: Path, stride_in_1x1: bool) -> None:
        super().__init__()
        network: Any = create_backbone("resnet50", weights=weights)
        self.model: Any = network.model
        for stage in (network.model.layer2, network.model.layer3, network.model.layer4) if stride_in_1x1 else ():
            stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Return ``(B, 2048, H / 32, W / 32)``."""
        maps: Tensor = self.model.forward_features(images)
        return maps


if __name__ == "__main__":
    main()
