"""The protocols on PASCAL VOC 2012 with one known positive per image: the tables of docs/voc2012.md.

    python benchmarks/voc_protocols.py                                        # linear, on the CPU
    python benchmarks/voc_protocols.py --protocol linear-init --device cuda   # the full network, on a GPU

Every method runs once with its paper's options and the protocol's default settings; nothing is searched. Finished runs
are not repeated.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import labelgap as lg

METHODS = ("an", "an-ls", "role", "ll-ct", "em", "em-apl")
FULL = "all labels"
DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "VOCdevkit"


def main() -> None:
    """Train each method, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the VOC devkit")
    parser.add_argument("--protocol", default="linear")
    parser.add_argument("--backbone", default="efficientnet-lite0")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("runs/voc_protocols"))
    arguments = parser.parse_args()
    if not arguments.data.is_dir():
        print(f"there is no VOC devkit at {arguments.data}: give its folder with --data")
        return
    full = lg.load("voc2012", arguments.data)
    single = full.observe(positives=1, negatives=0, seed=1200)
    sizes = ", ".join(f"{len(split):,} {split.name}" for split in full.splits)
    print(f"VOC 2012 ({sizes}), {arguments.backbone}, {arguments.protocol}\n")
    print("| method | val mAP | test mAP | best epoch | seconds |\n|---|---|---|---|---|", flush=True)
    for name in (*METHODS, FULL):
        print(row(name, full if name == FULL else single, arguments), flush=True)


def row(name: str, data: lg.Dataset, arguments: argparse.Namespace) -> str:
    """Train one method and return its line."""
    out = arguments.out / arguments.protocol / name.replace(" ", "-")
    started = time.perf_counter()
    run = lg.fit(
        data,
        "bce" if name == FULL else name,
        backbone=arguments.backbone,
        protocol=arguments.protocol,
        out=out,
        device=arguments.device,
        trace="off",
        quiet=True,
        resume=(out / "config.json").exists(),
    )
    seconds = time.perf_counter() - started
    val, test = (100 * run.metrics[split]["map"] for split in ("val", "test"))
    label = f"`{name}`" if name != FULL else name
    return f"| {label} | {val:.2f} | {test:.2f} | {run.metrics['best_epoch']} | {seconds:.0f} |"


if __name__ == "__main__":
    main()
