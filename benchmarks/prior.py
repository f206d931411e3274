"""What teachers of three qualities bring on VOC2012, one known present label per training image and nothing else.

    python benchmarks/prior.py [METHOD …] [--draws N] [--audit | --full N | --share S]

The images are the 1,600 official training photos of the sample, with features of a ResNet-50. ``good``: heads on
features of ``efficientnet-lite0``, trained on the full labels of 200 photos of official val that are in no split here.
``confounded``: the same heads with the classes in pairs exchanged, so that it calls a dog what shows a cat. ``half``:
exchanged in the last ten classes alone. ``random``: a uniform number per label. Test is the rest of official val; there
is no val: ``auto`` cross-validates its settings on what is known, the others have fixed ones.

With ``--full N`` all labels of N random images are known instead; of 0, each prior is believed as it stands. With
``--share S`` a share S of all labels of 400 photos is known, and the sources are ``good`` and ``weak``, which is wrong
in three of ten labels.

Without ``--audit`` it prints the test mAP of each method with and without each prior, the mean over draws of labels and
of taught photos. With it: the average precision of all unknown labels as an audit ranks them, how many are likely, the
share of these that is right, and answers and accepted labels (`apply --accept-machine`) at 90 % and at 95 %.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.accept_machine import simulate

import labelgap as lg
from labelgap.data import Dataset
from labelgap.data.dataset import Split
from labelgap.data.images import FeatureVectors
from labelgap.data.prior import Prior
from labelgap.review.acceptance import LIKELY

FEATURES = "../shared/data/voc2012_resnet50_448.npz"
DEVKIT = "../shared/data/VOCdevkit"
TAUGHT, FEW = 200, 400
SETTINGS: dict[bool, Any] = {
    True: {},
    False: {"optimizer": "newton", "weight_decay": 0.0032, "standardize": True, "folds": 0},
}
"""Of ``auto``, which searches, and of the others: a penalty of 0.05 D / (N K) (training/auto.py)."""


def teachers(data: Dataset, photos: Dataset, seed: int) -> dict[str, NDArray[np.float64]]:
    """Return the probabilities ``(N, K)`` of each teacher for the training images of ``data``."""
    assert photos.test is not None
    random, features = np.random.default_rng(seed), lg.features(photos, "efficientnet-lite0")
    taught = random.permutation(len(photos.test))[:TAUGHT]
    truth = photos.test.evaluation_labels.to_dense()[taught] == lg.PRESENT
    heads = [LogisticRegression(C=0.01, max_iter=500).fit(features["test"][taught], column) for column in truth.T]
    row = {
        stem(name): features[split.name][at] for split in photos.splits for at, name in enumerate(split.labels.images)
    }
    asked = np.stack([row[stem(name)] for name in data.train.labels.images])
    good = np.stack([expit(head.decision_function(asked)) for head in heads], axis=1)
    pairs = good[:, np.arange(good.shape[1]) ^ 1]
    half = np.concatenate([good[:, :10], pairs[:, 10:]], axis=1)
    return {"good": good, "confounded": pairs, "half": half, "random": random.random(good.shape)}


def stem(name: str) -> str:
    """Return the number of a photo."""
    return Path(name).stem


def album(photos: Dataset, seed: int, full: int | None = None) -> Dataset:
    """Return the features of the photos, with one known present label each, or with all labels of some of them."""
    whole = lg.load(f"features={FEATURES}")
    assert whole.val is not None and whole.test is not None and photos.test is not None and photos.val is not None
    sampled = {stem(name) for split in (photos.train, photos.val) for name in split.labels.images}
    left_out = {stem(name) for name in photos.test.labels.images}
    vectors = [np.asarray(split.images.vectors) for split in (whole.train, whole.val)]  # type: ignore[attr-defined]
    labels = lg.LabelTable.concatenate([split.evaluation_labels for split in (whole.train, whole.val)])
    chosen = np.array([stem(name) in sampled for name in labels.images])
    test = np.array([stem(name) not in left_out for name in whole.test.labels.images])
    splits = [
        Split(name, FeatureVectors(values, table.images), table)
        for name, values, table in (
            ("train", np.concatenate(vectors)[chosen], labels.select(chosen)),
            ("test", np.asarray(whole.test.images.vectors)[test], whole.test.evaluation_labels.select(test)),  # type: ignore[attr-defined]
        )
    ]
    made = Dataset("voc", splits[0], None, splits[1], backbone="features", protocol="linear", flip=False)
    if full is None:
        return made.observe(positives=1, negatives=0, seed=seed)
    codes = made.train.evaluation_labels.to_dense().copy()
    codes[np.random.default_rng(seed).permutation(len(codes))[full:]] = lg.UNKNOWN
    hidden = lg.LabelTable.from_dense(codes, classes=made.classes, images=made.train.labels.images)
    return replace(made, train=replace(made.train, labels=hidden, truth=made.train.evaluation_labels))


def scattered(data: Dataset, share: float, seed: int) -> tuple[Dataset, NDArray[np.int64], NDArray[np.float64]]:
    """Return a few of the images with a share of all labels known, their rows, and what a weak source says of them."""
    random = np.random.default_rng(seed)
    rows = random.permutation(len(data.train))[:FEW]
    truth = data.train.evaluation_labels.select(rows)
    codes = truth.to_dense().copy()
    wrong = random.random(codes.shape) < 0.3
    weak = np.where((codes == lg.PRESENT) ^ wrong, 0.9, 0.1)
    codes[random.random(codes.shape) > share] = lg.UNKNOWN
    hidden = lg.LabelTable.from_dense(codes, classes=data.classes, images=truth.images)
    return replace(data, train=Split("train", data.train.images.select(rows), hidden, truth)), rows, weak


def with_sources(data: Dataset, said: Mapping[str, NDArray[np.float64]]) -> Dataset:
    """Return data with what sources say of each training label."""
    if not said:
        return data
    source, image, column = np.indices((len(said), *data.train.labels.shape)).reshape(3, -1)
    numbers = {name: row for row, name in enumerate(data.train.labels.images)}
    values = np.stack(list(said.values())).astype(np.float32).ravel()
    return replace(data, prior=Prior(tuple(said), numbers, data.classes, source, image, column, values))


def measure(run: lg.Run, data: Dataset, *, audit: bool) -> list[float]:
    """Return the test mAP in percent, or what an audit makes of the unknown labels."""
    if not audit:
        return [100 * run.metrics["test"]["map"]]
    found = lg.find_missing(run, data=data, per_class=10**6, limit=10**7, quiet=True).of_kind("missing").to_pydict()
    truth = data.train.evaluation_labels.to_dense() == lg.PRESENT
    position = {name: row for row, name in enumerate(data.train.labels.images)}
    rows, columns = [position[name] for name in found["image"]], [data.classes.index(name) for name in found["class"]]
    right, score = truth[rows, columns], np.array(found["score"])
    likely, column = score >= LIKELY, np.array(columns)
    values = [100 * average_precision_score(right, score), float(likely.sum()), 100 * float(right[likely].mean())]
    random = np.random.default_rng(0)
    for precision in (0.9, 0.95):
        every = [right[likely & (column == each)] for each in range(len(data.classes))]
        made = np.array([[simulate(each, precision, random)[:2] for each in every] for _ in range(20)])
        values += made.sum(axis=1).mean(axis=0).tolist()
    return values


def main(methods: list[str], draws: int, *, audit: bool, full: int | None = None, share: float | None = None) -> None:
    """Print a line for each method and set of sources."""
    photos = lg.load("voc2012", DEVKIT)
    found: dict[tuple[str, str], list[list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for draw in range(draws):
            data = album(photos, 1200 + draw, full)
            said = teachers(data, photos, draw)
            sets = {"none": {}, **{name: {name: each} for name, each in said.items()}, "all": said}
            if full == 0:
                del sets["none"]
            if share is not None:
                data, rows, weak = scattered(data, share, draw)
                sets = {"none": {}, "weak": {"weak": weak}, "good": {"good": said["good"][rows]}}
            for method in methods:
                plain = None
                for name in sets:
                    seen = with_sources(data, sets[name])
                    if not audit or plain is None:
                        out = Path(folder) / f"{method}-{name}-{draw}"
                        plain = lg.fit(seen, method, out=out, quiet=True, **SETTINGS[method == "auto"])
                    values = measure(plain, seen, audit=audit)
                    found.setdefault((method, name), []).append(values)
                    used = (plain.metrics.get("prior") or {}).get("used", "")
                    shown = " ".join(f"{value:8.2f}" for value in values)
                    print(f"draw {draw}  {method:<5} {name:<11}{shown}  {plain.config.method} {used}", flush=True)
    for (method, name), every in found.items():
        without = found.get((method, "none"), every)
        mean, base = np.mean(every, axis=0), np.mean(without, axis=0)
        least = np.min(np.subtract(every, without), axis=0)
        shown = " ".join(f"{m:8.2f} ({m - b:+.2f}, least {d:+.2f})" for m, b, d in zip(mean, base, least, strict=True))
        print(f"mean    {method:<5} {name:<11}{shown}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*")
    parser.add_argument("--draws", type=int, default=1)
    parser.add_argument("--audit", action="store_true")
    parser.add_argument("--full", type=int)
    parser.add_argument("--share", type=float)
    given = parser.parse_args()
    default = ["an", "em", "wan", "auto"] if given.full is None and given.share is None else ["auto"]
    main(given.methods or default, given.draws, audit=given.audit, full=given.full, share=given.share)
