"""Small albums with few labels: `auto` against StandardScaler and LogisticRegression, on the same features and folds.

    python benchmarks/small_albums.py                 # albums of 200 and 500 images, one draw of each
    python benchmarks/small_albums.py --all           # the twelve albums of docs/albums.md, three draws of each

Albums are drawn from the training images of VOC 2012: features of a ResNet-50, and photos through efficientnet-lite0.
Of the labels of an album some are known: one or two present ones per image ("present-only"), half of the present and a
tenth of the absent ones ("patchy"), each with probability one half ("half"), or all. `auto` is ``lg.fit(data)`` without
any setting. The peer takes unknown as absent, one class at a time, and chooses its C by the macro average precision of
the known presents over the same folds. Both are measured on the official val images, where every label is known.
``--development`` measures on the training images that are not in the album instead: settings are chosen there.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from argparse import Namespace
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

import labelgap as lg
from labelgap.core.seeds import numpy_generator
from labelgap.data.images import FeatureVectors
from labelgap.labels import ABSENT, PRESENT, UNKNOWN, LabelTable
from labelgap.training.folds import assign_folds, equal_row_groups

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.harness import DATA, append_lines, parse_arguments, print_ratios, stored_lines

KINDS = ("present-only", "patchy", "half", "all")
SIZES = (200, 500, 2000)
PHOTO_SIZE = 500
PENALTIES = [float(f"{value:.2g}") for value in np.logspace(-4, 0, 7)]
"""The values of C."""
FOLDS = 5
READERS = {"resnet50": "features", "photos": "voc2012"}
FILES = {"resnet50": "voc2012_resnet50_448.npz", "photos": "VOCdevkit"}
Features = NDArray[np.floating[Any]]
Codes = NDArray[np.int8]


class Album(NamedTuple):
    """An album: the source of its features, its number of images, what is known of its labels, and a draw of it."""

    source: str
    images: int
    kind: str
    seed: int

    @property
    def name(self) -> str:
        """The album without its draw."""
        return f"{self.source} {self.images} {self.kind}"


class Pool(NamedTuple):
    """The images that albums are drawn from, and those that both are measured on."""

    features: Features
    truth: Codes
    test_features: Features
    test_truth: Codes
    classes: tuple[str, ...]


def read_pool(data: lg.Dataset, network: str) -> Pool:
    """Return the features and labels of train and val, and those of test."""
    features = lg.features(data, None if data.backbone == "features" else network, device="cpu", quiet=False)
    truth = {split.name: split.evaluation_labels.to_dense() for split in data.splits}
    train, labels = (np.concatenate([each["train"], each["val"]]) for each in (features, truth))
    return Pool(train, labels, features["test"], truth["test"], data.classes)


def hide(truth: Codes, kind: str, random: np.random.Generator) -> Codes:
    """Return the labels that are known."""
    if kind == "all":
        return truth
    chance = random.random(truth.shape)
    if kind == "present-only":
        rank = np.argsort(np.argsort(np.where(truth == PRESENT, chance, 2.0), axis=1), axis=1)
        count = random.integers(1, 3, size=(len(truth), 1))
        return np.where((truth == PRESENT) & (rank < count), PRESENT, UNKNOWN).astype(np.int8)
    shares = {"patchy": (0.5, 0.1), "half": (0.5, 0.5)}[kind]
    share = np.where(truth == PRESENT, *shares)
    return np.where(chance < share, truth, UNKNOWN).astype(np.int8)


class Peer:
    """A LogisticRegression on standardized features for each class.

    Args:
        features: ``(N, D)``
        present: ``(N, K)``, what is known to be present; all else is taken as absent.
    """

    def __init__(self, features: Features, present: NDArray[np.bool_]) -> None:
        self.scaler, self.present = StandardScaler().fit(features), present
        self.features = self.scaler.transform(features)
        columns = np.flatnonzero(present.any(axis=0) & ~present.all(axis=0))
        self.models = {column: LogisticRegression(max_iter=5000, warm_start=True) for column in columns}

    def scores(self, penalty: float, features: Features) -> Features:
        """Train with a value of C, from the weights of the last one; return the scores ``(T, K)`` of features."""
        scaled = self.scaler.transform(features)
        scores = np.zeros((len(features), self.present.shape[1]), dtype=np.float32)
        for column, model in self.models.items():
            model.set_params(C=penalty).fit(self.features, self.present[:, column])
            scores[:, column] = model.decision_function(scaled)
        return scores


def peer_scores(features: Features, codes: Codes, fold: NDArray[np.int64], test: Features) -> tuple[Features, float]:
    """Return the scores of test images, and the C that cross-validation chose.

    The search starts in the middle of the values and goes on, in both directions, until the score falls.
    """
    present = codes == PRESENT
    held_out = [fold == number for number in range(FOLDS)]
    peers = [Peer(features[~rows], present[~rows]) for rows in held_out]
    found: dict[int, float] = {}

    def score(number: int) -> float:
        if number not in found:
            scores = np.empty(present.shape, dtype=np.float32)
            for rows, each in zip(held_out, peers, strict=True):
                scores[rows] = each.scores(PENALTIES[number], features[rows])
            found[number] = float(lg.average_precision(scores, np.where(present, PRESENT, ABSENT)))
        return found[number]

    best = len(PENALTIES) // 2
    for step in (1, -1):
        while 0 <= best + step < len(PENALTIES) and score(best + step) > score(best):
            best += step
    return Peer(features, present).scores(PENALTIES[best], test), PENALTIES[best]


def measure(album: Album, pool: Pool, who: str, *, development: bool) -> dict[str, Any]:
    """Train the peer or `auto` on an album; return its mAP and what it chose."""
    order = numpy_generator(album.seed, "album", album.source, album.images).permutation(len(pool.truth))
    rows, others = order[: album.images], order[album.images :]
    codes = hide(pool.truth[rows], album.kind, numpy_generator(album.seed, "known", album.kind, album.images))
    features, names = pool.features[rows], [str(row) for row in rows]
    table = LabelTable.from_dense(codes, classes=pool.classes, images=names)
    test, truth = pool.test_features, pool.test_truth
    if development:
        test, truth = pool.features[others], pool.truth[others]
    if who == "peer":
        fold = assign_folds(table, FOLDS, 0, equal_row_groups(features))
        scores, penalty = peer_scores(features, codes, fold, test)
        chosen = f"{penalty:g}"
    else:
        data = lg.Dataset("album", lg.Split("train", FeatureVectors(features, names), table), backbone="features")
        with tempfile.TemporaryDirectory() as folder:
            run = lg.fit(data, out=Path(folder) / "run", quiet=True)
            scores = run.predict(test)
        strength = run.config.weight_decay * album.images * len(pool.classes) / features.shape[1]
        chosen = f"{run.config.method} {strength:.2g}"
    return {"map": 100 * float(lg.average_precision(scores, truth)), "chosen": chosen}


def albums(arguments: Namespace) -> list[Album]:
    """Return the albums that were asked for, a draw of each before the next draws."""
    sizes = (SIZES if arguments.all else SIZES[:2]) if arguments.sizes == (0,) else arguments.sizes
    seeds = range(3) if arguments.all else arguments.seeds
    pairs = [("photos", PHOTO_SIZE)] if arguments.photos or arguments.all else []
    pairs = sorted([*pairs, *(("resnet50", size) for size in sizes)], key=lambda pair: pair[1])
    found = [Album(source, size, kind, seed) for seed in seeds for source, size in pairs for kind in arguments.kinds]
    return [album for album in found if album.source != "photos" or album.kind != "all"]


def print_table(results: dict[Album, dict[str, dict[str, Any]]]) -> None:
    """Print the mean of the draws of each album, and the ratios."""
    names = list(dict.fromkeys(album.name for album in results))
    print(f"\n| {'album':<26} | peer | auto | difference | each draw | `auto` chose, with its strength | peer's C |")
    print("|---|---|---|---|---|---|---|")
    differences, ratios = {}, {}
    for name in names:
        lines = [line for album, line in results.items() if album.name == name]
        ours, theirs = (np.array([line[who]["map"] for line in lines]) for who in ("auto", "peer"))
        differences[name], ratios[name] = float((ours - theirs).mean()), ours.sum() / theirs.sum()
        draws = " ".join(f"{value:+.2f}" for value in ours - theirs)
        chosen, penalty = (", ".join(Counter(line[who]["chosen"] for line in lines)) for who in ("auto", "peer"))
        means = f"{theirs.mean():.2f} | {ours.mean():.2f} | {differences[name]:+.2f}"
        print(f"| {name:<26} | {means} | {draws} | {chosen} | {penalty} |")
    partial = [value for name, value in differences.items() if not name.endswith(" all")]
    complete = [abs(value) for name, value in differences.items() if name.endswith(" all")]
    if partial:
        print(f"\n`auto` is ahead on {sum(value > 0 for value in partial)} of {len(partial)} albums, by", end=" ")
        print(f"{np.mean(partial):+.2f} mAP on the mean; its worst difference is {min(partial):+.2f}")
    if complete:
        print(f"with all labels they differ by {max(complete):.2f} at most")
    print_ratios({f"map_{name.replace(' ', '_').replace('-', '_')}": ratio for name, ratio in ratios.items()}, 3)


def main() -> None:
    """Measure the albums, and print the table."""
    options: dict[str, Any] = {"sizes": (0,), "seeds": (0,), "kinds": KINDS, "photos": False, "all": False, "only": str}
    options |= {"backbone": "efficientnet-lite0", "development": False, "results": Path}
    arguments = parse_arguments(__doc__, data=DATA, **options)
    known = {(Album(*line["album"]), line["who"]): line for line in stored_lines(arguments.results)}
    results: dict[Album, dict[str, dict[str, Any]]] = {}
    read = cache(lambda source: read_pool(lg.load(READERS[source], arguments.data / FILES[source]), arguments.backbone))
    for album in albums(arguments):
        for who in [arguments.only] if arguments.only else ["peer", "auto"]:
            if (album, who) not in known:
                line = {"album": album, "who": who}
                line |= measure(album, read(album.source), who, development=arguments.development)
                known[album, who] = line
                append_lines(arguments.results, [line])
            line = known[album, who]
            results.setdefault(album, {})[who] = line
            print(f"{album.name}, draw {album.seed}: {who} {line['map']:.2f} ({line['chosen']})", flush=True)
    if not arguments.only:
        print_table(results)


if __name__ == "__main__":
    warnings.simplefilter("error")
    main()
