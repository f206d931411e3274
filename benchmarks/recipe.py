"""The default for a whole network, on the whole of PASCAL VOC 2012: the first table of docs/results/recipe.md.

    python benchmarks/recipe.py VOCdevkit --weights resnet50.pth --seeds 0,1,2 --sizes 448,640
    python benchmarks/recipe.py VOCdevkit --weights resnet50.pth --all-labels --set epochs=10 optimizer=adamw

``--set`` are settings of ``lg.fit``; ``--sizes`` those over which the last column averages. The weights are He's
ResNet-50 under torchvision's names; for those of torchvision, add `--backbone resnet50`. With ``--rounds 2`` every run
is the teacher of another one. Finished runs are not repeated.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import labelgap as lg

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.harness import parse_arguments


def main() -> None:
    """Train every seed and print a line for each."""
    network: dict[str, Any] = {"weights": Path, "backbone": str, "size": int, "device": "auto"}
    own: dict[str, Any] = {
        "seeds": "0",
        "method": "auto",
        "all_labels": False,
        "sizes": "",
        "rounds": 1,
        "out": Path("runs/recipe"),
    }
    arguments = parse_arguments(__doc__, "data", set=("",), **network, **own)
    arguments.set = list(filter(None, arguments.set))
    data = lg.load("voc2012", arguments.data)
    if not arguments.all_labels:
        data = data.observe(positives=1, negatives=0, seed=1200)
    print(
        "| method | seed | val mAP | test mAP | test, sizes | epoch kept | seconds |\n|---" + "|---" * 6 + "|",
        flush=True,
    )
    measured = [train(data, seed, arguments) for seed in map(int, arguments.seeds.split(","))]
    val, test, sizes = np.mean(measured, axis=0)
    print(f"mean of {len(measured)}: val {val:.2f}, test {test:.2f}, test at several sizes {sizes:.2f}")


def train(data: lg.Dataset, seed: int, arguments: argparse.Namespace) -> tuple[float, float, float]:
    """Train one seed, print its lines, and return its mAP on val and test, and on test at several sizes (or NaN)."""
    settings: dict[str, Any] = {"size": arguments.size} if arguments.size else {}
    for given in arguments.set:
        name, _, value = given.partition("=")
        settings[name] = json.loads(value) if value[:1].isdigit() or value in ("true", "false") else value
    backbone = arguments.backbone or ("resnet50-v1" if arguments.weights else "efficientnet-lite0")
    if arguments.weights:
        settings["size"] = arguments.size or 448
    labels, size = "all" if arguments.all_labels else "one", str(settings.get("size", ""))
    name = backbone.replace(":", "_") + size
    out = arguments.out / "-".join([name, labels, arguments.method, *arguments.set, f"seed{seed}"])
    sizes, teacher = [int(each) for each in filter(None, arguments.sizes.split(","))], None
    for number in range(1, arguments.rounds + 1):
        place = out if number == 1 else out.with_name(f"{out.name}-round{number}")
        run = lg.fit(
            data,
            arguments.method,
            backbone=backbone,
            weights=arguments.weights,
            protocol="linear-init",
            out=place,
            seed=seed,
            teacher=teacher,
            device=arguments.device,
            resume=(place / "config.json").exists(),
            quiet=True,
            **settings,
        )
        val, test = (100 * run.metrics[split]["map"] for split in ("val", "test"))
        scored = run.evaluate(data, average_sizes=sizes, device=arguments.device, resamples=0) if sizes else {}
        several, kept, seconds = 100 * scored.get("map", np.nan), run.metrics["best_epoch"], run.metrics["seconds"]
        teacher = run.path
        print(
            f"| {run.config.method} | {seed} | {val:.2f} | {test:.2f} | {several:.2f} | {kept} | {seconds:.0f} |",
            flush=True,
        )
    return val, test, several


if __name__ == "__main__":
    main()
