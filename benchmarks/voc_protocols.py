"""The protocols on PASCAL VOC 2012 with one known positive per image: the tables of docs/voc2012.md.

    python benchmarks/voc_protocols.py                                        # linear, on the CPU
    python benchmarks/voc_protocols.py --protocol linear-init --device cuda   # the full network, on a GPU

Every method runs once with its paper's options and the protocol's default settings; nothing is searched. Finished runs
are not repeated.
"""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import labelgap as lg

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.harness import DEVKIT, parse_arguments

METHODS = ("an", "an-ls", "role", "ll-ct", "em", "em-apl")
FULL = "all labels"


def main() -> None:
    """Train each method, then print the table."""
    options: dict[str, Any] = {"protocol": "linear", "backbone": "efficientnet-lite0", "device": "auto"}
    arguments = parse_arguments(__doc__, data=DEVKIT, out=Path("runs/voc_protocols"), **options)
    full = lg.load("voc2012", arguments.data)
    single = full.observe(positives=1, negatives=0, seed=1200)
    sizes = ", ".join(f"{len(split):,} {split.name}" for split in full.splits)
    print(f"VOC 2012 ({sizes}), {arguments.backbone}, {arguments.protocol}\n")
    print("| method | val mAP | test mAP | best epoch | seconds |\n|---|---|---|---|---|", flush=True)
    for name in (*METHODS, FULL):
        print(row(name, full if name == FULL else single, arguments), flush=True)


def row(name: str, data: lg.Dataset, arguments: Namespace) -> str:
    """Train one method and return its line."""
    out = arguments.out / arguments.protocol / name.replace(" ", "-")
    started, resume = time.perf_counter(), (out / "config.json").exists()
    given = {each: getattr(arguments, each) for each in ("backbone", "protocol", "device")}
    run = lg.fit(data, "bce" if name == FULL else name, out=out, trace="off", quiet=True, resume=resume, **given)
    seconds = time.perf_counter() - started
    val, test = (100 * run.metrics[split]["map"] for split in ("val", "test"))
    label = f"`{name}`" if name != FULL else name
    return f"| {label} | {val:.2f} | {test:.2f} | {run.metrics['best_epoch']} | {seconds:.0f} |"


if __name__ == "__main__":
    main()
