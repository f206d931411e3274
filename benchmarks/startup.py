"""Seconds of the commands that only list, check or read a table, after a first run: the best of several.

    python benchmarks/startup.py                  # about a minute on two idle cores
    python benchmarks/startup.py --rounds 20

`ratio COMMAND SECONDS` is the time of the clock of a whole process. An import takes the
bytecode that a first run has stored, as in an installation; `python -X importtime -m labelgap COMMAND` says which
module takes how long.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.harness import parse_arguments

COMMANDS = {
    "version": "--version",
    "help": "--help",
    "train-help": "train --help",
    "methods": "methods",
    "datasets": "datasets",
    "backbones": "backbones",
    "inspect": "inspect tags.csv --images photos",
    "verify": "verify run",
}


def write_data(folder: Path, images: int = 400, classes: int = 72) -> None:
    """Write an album with a table of tags, and a run on features."""
    random = np.random.default_rng(0)
    (folder / "photos").mkdir()
    rows = [",".join(["image", *(f"tag {number}" for number in range(classes))])]
    for number in range(images):
        pixels = Image.fromarray(random.integers(0, 256, (6, 8, 3), dtype=np.uint8))
        pixels.resize((64, 48), Image.Resampling.BICUBIC).save(folder / "photos" / f"{number}.jpg")
        rows.append(",".join([f"{number}.jpg", *random.choice(["1", "0", "", ""], classes)]))
    (folder / "tags.csv").write_text("\n".join(rows) + "\n")
    labels = random.integers(-1, 2, (images, 6)).astype(np.int8)
    features = random.normal(size=(images, 72)).astype(np.float32)
    np.savez(folder / "x.npz", classes=list("abcdef"), train_features=features, train_labels=labels)


def main() -> None:
    """Time every command."""
    options = parse_arguments(str(__doc__), rounds=7)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        environment |= {"PYTHONPYCACHEPREFIX": str(folder / "bytecode"), "LABELGAP_CACHE": str(folder / "cache")}

        def run(words: str) -> float:
            command = [sys.executable, "-m", "labelgap", *words.split()]
            started = time.perf_counter()
            subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
            return time.perf_counter() - started

        write_data(folder)
        run("train x.npz --method an --epochs 1 --out run")
        for words in COMMANDS.values():
            run(words)
        for command, words in COMMANDS.items():
            print(f"ratio {command} {min(run(words) for _ in range(options.rounds)):.2f}", flush=True)


if __name__ == "__main__":
    main()
