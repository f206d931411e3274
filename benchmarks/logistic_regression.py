"""Is the default at least level with a tuned logistic regression? On tables of numbers and on small albums.

    python benchmarks/logistic_regression.py --tables FOLDER [--draws 3] [--results FILE.jsonl]

Every set is split into train, val and test, and labels of train are hidden in three ways: "one" known present of each
row; "patchy", half of the presents and a tenth of the absents; "third", 30 % of all labels. val and test are complete.

- auto: ``lg.fit(data)``, nothing given; test mAP of the run.
- logistic regression: scikit-learn's, a class at a time, on standardized features, unknown taken as absent; one C for
  all classes, the one with the highest val mAP.
- no val: ``lg.fit`` of the same training rows without the val split.

FOLDER has the tables as ``tabular_sets.py --out FOLDER`` writes them; of large ones 4,000 rows are drawn, and the 30
most frequent labels are taken. The albums are drawn from the real photos and features beside the project, and are left
out where those are absent. A cell is the mean over the draws; "difference" is that of auto and its peer in the same
draw, with its standard error.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.harness import DATA, append_lines, parse_arguments

import labelgap as lg
from labelgap.data.images import FeatureVectors
from labelgap.labels import PRESENT, UNKNOWN, LabelTable

KINDS = ("one", "patchy", "third")
STRENGTHS = tuple(10.0 ** np.arange(-4, 2.1, 0.5))
"""Of C."""
ALBUMS: dict[str, tuple[str, int, int]] = {
    "photos lite2, 344": ("efficientnet-lite2", 344, 20),
    "photos lite0, 1000": ("efficientnet-lite0", 1000, 20),
    "photos lite0, 150": ("efficientnet-lite0", 150, 8),
    "voc resnet50, 344": ("resnet50", 344, 20),
    "voc resnet50, 2000": ("resnet50", 2000, 20),
    "digits lite0, 600": ("digits", 600, 10),
}
"""Name → whose features, how many training images, and how many of the classes; val has a quarter as many."""

Features = NDArray[np.float32]
Codes = NDArray[np.int8]


class Table(NamedTuple):
    """Features and complete labels of the same rows, and how many of them are train and val; the rest is test."""

    features: Features
    labels: Codes
    train: int
    val: int


def album_source(name: str) -> tuple[Features, Codes]:
    """Return the features and labels of all images of a source."""
    if name == "resnet50":
        stored = np.load(DATA / "voc2012_resnet50_448.npz")
        features, truth = (
            np.concatenate([stored[f"{split}_{kind}"] for split in ("train", "test")]) for kind in ("features", "truth")
        )
        return features.astype(np.float32), truth.astype(np.int8)
    data = lg.load("digits") if name == "digits" else lg.load("voc2012", DATA / "VOCdevkit")
    backbone = "efficientnet-lite0" if name == "digits" else name
    labels = np.concatenate([split.evaluation_labels.to_dense() for split in data.splits])
    return np.concatenate(list(lg.features(data, backbone, device="cpu").values())), labels


def tables(folder: Path | None) -> Iterator[tuple[str, Table]]:
    """Yield the sets: tables out of a folder, then albums."""
    for path in sorted(folder.glob("*.npz")) if folder is not None else ():
        stored = np.load(path)
        features, labels = stored["X"], stored["Y"]
        rows = np.random.default_rng(0).permutation(len(labels))[:4000]
        most = np.sort(np.argsort(-labels.sum(axis=0), kind="stable")[:30])
        train, val = int(0.6 * len(rows)), int(0.2 * len(rows))
        yield path.stem, Table(features[rows], labels[rows][:, most], train, val)
    for name, (source, images, classes) in ALBUMS.items():
        if DATA.is_dir():
            features, labels = album_source(source)
            kept = labels[:, np.sort(np.argsort(-labels.sum(axis=0), kind="stable")[:classes])]
            rows = np.flatnonzero(kept.any(axis=1))
            yield name, Table(features[rows], kept[rows], images, images // 4)


def hide(labels: Codes, kind: str, random: np.random.Generator) -> Codes:
    """Return the labels that are observed."""
    chance = random.random(labels.shape)
    if kind == "one":
        first = np.where(labels == PRESENT, chance, -1.0).argmax(axis=1)
        shown = (labels == PRESENT) & (np.arange(labels.shape[1]) == first[:, None])
    elif kind == "patchy":
        shown = np.where(labels == PRESENT, chance < 0.5, chance < 0.1)
    else:
        shown = chance < 0.3
    return np.where(shown, labels, UNKNOWN).astype(np.int8)


def logistic_regression(train: tuple[Features, Codes], val: tuple[Features, Codes], test: Features) -> Features:
    """Return the scores of test, with the C that is best on val."""
    scaler = StandardScaler().fit(train[0])
    inputs = [scaler.transform(each) for each in (train[0], val[0], test)]
    present = train[1] == PRESENT
    best, scores = -1.0, np.zeros((len(test), present.shape[1]))
    for strength in STRENGTHS:
        found = [np.zeros((len(each), present.shape[1])) for each in inputs[1:]]
        for number in np.flatnonzero(present.any(axis=0) & ~present.all(axis=0)):
            model = LogisticRegression(C=strength, max_iter=300, tol=1e-3).fit(inputs[0], present[:, number])
            for each, rows in zip(found, inputs[1:], strict=True):
                each[:, number] = model.decision_function(rows)
        if (score := float(lg.average_precision(found[0], val[1]))) > best:
            best, scores = score, found[1]
    return scores.astype(np.float32)


def fit(splits: dict[str, tuple[Features, Codes]]) -> tuple[Features, str, float]:
    """Return the scores of test by a run with nothing given, its method, and its seconds."""
    named = {
        name: lg.Split(name, FeatureVectors(features), LabelTable.from_dense(codes))
        for name, (features, codes) in splits.items()
    }
    data = lg.Dataset("table", named["train"], named.get("val"), backbone="features", protocol="linear")
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        run = lg.fit(data, out=Path(folder) / "run", device="cpu", quiet=True)
        return run.predict(named["test"].images), run.config.method, time.perf_counter() - started


def measure(table: Table, kind: str, draw: int) -> dict[str, Any]:
    """Return the test mAP of a draw, by way of training."""
    random = np.random.default_rng([draw, KINDS.index(kind)])
    order = np.random.default_rng(draw).permutation(len(table.labels))
    parts = np.split(order, [table.train, table.train + table.val])
    named = dict(zip(("train", "val", "test"), parts, strict=True))
    splits = {name: (table.features[rows], table.labels[rows]) for name, rows in named.items()}
    splits["train"] = splits["train"][0], hide(splits["train"][1], kind, random)
    test = splits["test"][1]
    found: dict[str, Any] = {}
    scores, found["method"], found["seconds"] = fit(splits)
    found["auto"] = 100 * float(lg.average_precision(scores, test))
    scores, found["method, no val"], _ = fit({name: splits[name] for name in ("train", "test")})
    found["no val"] = 100 * float(lg.average_precision(scores, test))
    peer = logistic_regression(splits["train"], splits["val"], splits["test"][0])
    found["logistic regression"] = 100 * float(lg.average_precision(peer, test))
    return found


def main() -> None:
    """Measure, and print a table."""
    given = parse_arguments(__doc__, tables=Path, draws=3, results=Path)
    print("| set | hidden | auto | logistic regression | difference | no val | methods | seconds |")
    print("|---|---|---|---|---|---|---|---|")
    for name, table in tables(given.tables):
        for kind in KINDS:
            found = [measure(table, kind, draw) for draw in range(given.draws)]
            lines = [{"set": name, "hidden": kind, "draw": draw, **line} for draw, line in enumerate(found)]
            append_lines(given.results, lines)
            mean = {key: np.mean([line[key] for line in found]) for key in found[0] if not key.startswith("method")}
            peer, differences = (
                mean["logistic regression"],
                [line["auto"] - line["logistic regression"] for line in found],
            )
            text = f"{np.mean(differences):+.1f} ± {np.std(differences, ddof=1) / len(found) ** 0.5:.1f}"
            methods = ", ".join(sorted({line["method"] for line in found}))
            cells = (name, kind, f"{mean['auto']:.1f}", f"{peer:.1f}", text, f"{mean['no val']:.1f}", methods)
            print(f"| {' | '.join(cells)} | {mean['seconds']:.1f} |", flush=True)
            print(f"ratio {name}/{kind} {mean['auto'] / peer:.3f}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
