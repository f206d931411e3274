"""The commands on synthetic features of many images × 5,000 classes: CPU time and peak memory of each.

    python benchmarks/scale_commands.py                                   # 4,000 images, minutes on two cores
    python benchmarks/scale_commands.py --images 200000 --methods em-apl  # as in docs/scaling.md

A file of features (64 numbers an image, nine known labels an image on the average, long-tailed, nine tenths train) is
written; then `labelgap train` with each method, and, unless ``--train-only``, `predict` and `audit` with the first.
``ratio train-METHOD VALUE`` is the CPU time of a training with a method divided by that of the first one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.harness import parse_arguments, print_ratios

CLASSES, WIDTH, KNOWN = 5_000, 64, 9
OPTIONS = {
    "ll-cp": ["--option", "delta_rel=0.01"],
    "em-apl": ["--option", "warmup=1"],
    "role": ["--option", "expected_positives=8"],
}


def write_features(path: Path, images: int) -> None:
    """Write features whose labels a linear head can learn."""
    random = np.random.default_rng(0)
    weight = random.normal(size=(CLASSES, WIDTH)).astype(np.float32) * 3 / 8
    arrays = {"classes": np.array([f"class {number}" for number in range(CLASSES)])}
    for split, count in (("train", images * 9 // 10), ("val", images // 20), ("test", images // 20)):
        features = random.normal(size=(count, WIDTH)).astype(np.float32)
        labels = np.full((count, CLASSES), -1, np.int8)
        for rows in np.array_split(np.repeat(np.arange(count), KNOWN), max(count * KNOWN // 10**6, 1)):
            columns = (10 * ((CLASSES / 10 + 1) ** random.random(len(rows)) - 1)).astype(np.int64)
            logits = (features[rows] * weight[columns]).sum(axis=1) - 1
            labels[rows, columns] = random.random(len(rows)) < 1 / (1 + np.exp(-logits))
        arrays |= {f"{split}_features": features, f"{split}_labels": labels}
        arrays[f"{split}_ids"] = np.array([f"{split}{number:07d}.jpg" for number in range(count)])
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]


def run(name: str, *arguments: str) -> float:
    """Run a command of labelgap; print and return its CPU seconds."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "labelgap", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds, peak = usage.ru_utime + usage.ru_stime, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e9
    wall = time.perf_counter() - started
    print(f"{name:16} {seconds:8.1f} s of CPU, {wall:8.1f} s in all, peak {peak:5.2f} GB", flush=True)
    if status:
        print(f"    failed: {(errors.strip() or 'killed').splitlines()[-1]}", flush=True)
    return seconds


def main() -> None:
    """Write the features and run the commands."""
    arguments = parse_arguments(__doc__, images=4_000, methods="auto,ll-cp,em-apl,role", epochs="2", train_only=False)
    with tempfile.TemporaryDirectory() as temporary:
        folder, methods = Path(temporary), arguments.methods.split(",")
        file = folder / "features.npz"
        write_features(file, arguments.images)
        settings = ["--epochs", arguments.epochs, "--batch-size", "288", "--device", "cpu"]
        times = {}
        for method in methods:
            chosen = [*settings, "--method", method, *OPTIONS.get(method, []), "--out", str(folder / method)]
            times[method] = run(f"train {method}", "train", f"features={file}", *chosen)
        first = str(folder / methods[0])
        if not arguments.train_only:
            run("predict", "predict", first, str(file), "--out", str(folder / "scores.parquet"))
            run("audit", "audit", first, "--folds", "2")
    print_ratios({f"train-{method}": times[method] / times[methods[0]] for method in methods[1:]})


if __name__ == "__main__":
    main()
