"""Which methods hold on partial labels as people leave them? Five groups of classes, as in Kim et al. 2022, table 3.

    python benchmarks/real_partial_labels.py

Linear heads on a folder of 20,000 images in the layout of Open Images (``openimages_folder.py``), on features of a
small network that was trained on other scenes with all labels. Val, by its known labels, chooses the epoch
and δ of LL. Printed: test mAP over the known labels, of the groups and of all
classes, and over all labels, which the real data set does not have.

``ratio NAME-an VALUE`` is the mAP over all labels divided by that of `an`.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import numpy as np

import labelgap as lg
from labelgap.data import ArrayImages, Dataset, Split
from labelgap.labels import LabelTable

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.harness import parse_arguments, print_ratios
from benchmarks.openimages_folder import CLASSES, draw_scenes, write_folder

METHODS: Final = ("iu", "curriculum", "imcl", "an", "wan", "an-ls", "ll-r", "ll-ct", "ll-cp")
DELTAS: Final = (0.01, 0.1, 0.5)
OTHER_SCENES, EPOCHS, LINEAR_EPOCHS = 3_000, 3, 10


def other_scenes() -> Dataset:
    """Scenes that are not in the folder, with all labels."""
    scenes = draw_scenes(OTHER_SCENES, np.random.default_rng(99))
    labels = LabelTable.from_dense(scenes.truth.astype(np.int8), CLASSES)
    return Dataset("other scenes", Split("train", ArrayImages(scenes.pixels), labels), backbone="tiny-cnn", flip=False)


def train(data: Dataset, method: str, backbone: Any, folder: Path) -> lg.Run:
    """Train a head with every δ, and return the run with the highest val score."""
    deltas: list[dict[str, Any]] = [{"delta_rel": delta} for delta in DELTAS] if method.startswith("ll") else [{}]
    settings: Any = {"epochs": LINEAR_EPOCHS, "lr": 3e-3, "batch_size": 64, "size": 48}
    settings |= {"device": "cpu", "workers": 0, "quiet": True}
    runs = [
        lg.fit(data, method, options, backbone, "linear", folder / f"{method}-{number}", **settings)
        for number, options in enumerate(deltas)
    ]
    return max(runs, key=lambda run: run.metrics["score"])


def main() -> None:
    given = parse_arguments(__doc__, images=20_000)
    whole: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        os.environ.setdefault("LABELGAP_CACHE", str(folder / "cache"))
        data: Any = lg.load("openimages", write_folder(folder / "openimages", given.images))
        stored = np.load(folder / "openimages" / "truth-test.npz")  # sorted by image, as the data are
        truth = stored["labels"][np.isin(stored["images"], data.test.labels.images)]
        started = time.perf_counter()
        network: Any = {"epochs": EPOCHS, "lr": 3e-3, "backbone_lr": 3e-3, "batch_size": 64, "size": 48}
        network |= {"out": folder / "network", "select": "last", "device": "cpu", "quiet": True}
        first = lg.fit(other_scenes(), "bce", {}, "tiny-cnn", "end-to-end", **network)
        print(f"features: {time.perf_counter() - started:.0f} s; {data!r}", flush=True)
        print(f"{'':11}{'G1':>7}{'G2':>7}{'G3':>7}{'G4':>7}{'G5':>7}{'known':>8}{'all':>8}   setting", flush=True)
        for method in METHODS:
            started = time.perf_counter()
            run = train(data, method, first.model.backbone, folder)
            test = run.metrics["test"]
            scores = run.predict(data.test.images)
            whole[method] = float(lg.average_precision(np.asarray(scores), truth.astype(np.int8)))
            values = [*(row["map"] for row in test["groups"]), test["map"], whole[method]]
            cells = "".join(f"{100 * value:{7 if number < 5 else 8}.1f}" for number, value in enumerate(values))
            options = ", ".join(f"{name} {value:g}" for name, value in run.config.options.items() if "delta" in name)
            print(f"{method:11}{cells}   {options}  {time.perf_counter() - started:.0f} s", flush=True)
        print("known absent labels of test: " + ", ".join(f"{row['absent']:,}" for row in test["groups"]))
    print_ratios({f"{method}-an": value / whole["an"] for method, value in whole.items() if method != "an"}, 3)


if __name__ == "__main__":
    main()
