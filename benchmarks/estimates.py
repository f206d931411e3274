"""Do the estimates of missing labels come true? Before a review, and in 200 simulated reviews each of VOC and digits.

    python benchmarks/estimates.py [FEATURES.npz] [--tables FOLDER]

Images are drawn from VOC 2012: of each, one present label is known, or one or two, or a random half of the present
ones, or a random half of all labels. `StandardScaler` and `LogisticRegression` of scikit-learn (C = 0.01, unknown =
absent) score every image out of fold. The digits are scored in the same way, on their largest responses to random
patches of other scenes: weak scores. Reviews follow the lists of the page, which show a random candidate among every
ten; the reviewer answers from the truth and stops at a depth that is drawn: all classes, or only some of them.

With ``--tables``, only what is said before a review, of 1,200 rows and the 30 most frequent labels of the tables that
``tabular_sets.py --out FOLDER`` writes. How wrong the label model may be was chosen on other draws of these and of VOC.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

import labelgap as lg
from labelgap.audit.candidates import CandidateLimits, rank_candidates
from labelgap.audit.scorers import StoredScorer
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.review.estimates import ReviewedLabels, ReviewEstimate, estimate_review
from labelgap.review.progress import order_fixed_list
from labelgap.training.folds import assign_folds

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.harness import arguments_with_features, logistic_regression, print_ratios

KINDS = ("one tag", "1–2 tags", "half of the tags", "half of all labels")
BEFORE = {200: range(100, 103), 500: range(100, 103), 2000: range(100, 101)}
REVIEWS = 200
INTERVAL = 9
"""Ranked candidates for each random one."""
Codes = NDArray[np.int8]
Floats = NDArray[np.float32]


class Album(NamedTuple):
    """The truth ``(N, K)``, which labels are unknown, their scores, and the estimate of each class."""

    truth: NDArray[np.bool_]
    unknown: NDArray[np.bool_]
    scores: NDArray[np.floating]
    estimate: NDArray[np.float64]
    range: tuple[int, int]
    spread: tuple[float, float]

    @property
    def missing(self) -> NDArray[np.int64]:
        """Missing labels of each class."""
        count: NDArray[np.int64] = (self.truth & self.unknown).sum(axis=0)
        return count


def hide(truth: NDArray[np.bool_], kind: str, random: np.random.Generator) -> Codes:
    """Return what is known."""
    drawn = random.random(truth.shape) < 0.5
    if kind == "half of all labels":
        return np.where(drawn, np.where(truth, PRESENT, ABSENT), UNKNOWN).astype(np.int8)
    if kind == "half of the tags":
        return np.where(drawn & truth, PRESENT, UNKNOWN).astype(np.int8)
    place = np.argsort(np.argsort(np.where(truth, random.random(truth.shape), 2.0), axis=1), axis=1)
    most = random.integers(1, 2 if kind == "one tag" else 3, size=(len(truth), 1))
    return np.where(truth & (place < most), PRESENT, UNKNOWN).astype(np.int8)


def audit(features: Floats, truth: NDArray[np.bool_], known: Codes) -> Album:
    """Score the images out of fold, and estimate how many labels are missing."""
    table = lg.LabelTable.from_dense(known)
    fold, logits = assign_folds(table, 5), np.full(known.shape, -10.0, dtype=np.float32)
    for number in range(5):
        seen, rest = fold != number, fold == number
        logits[rest] = logistic_regression(features[seen], known[seen] == PRESENT, features[rest])
    ranking = rank_candidates({"train": table}, [StoredScorer({"train": logits})], CandidateLimits(random=0.0))
    assert ranking.estimate is not None
    made, scores = ranking.estimate, ranking.calibration.scores(logits[None])
    return Album(truth, known == UNKNOWN, scores, made.by_class, made.range, made.spread)


def simulate_review(
    album: Album, depths: NDArray[np.int64], random: np.random.Generator
) -> tuple[ReviewEstimate, NDArray[np.int64]]:
    """Decide the first candidates of each class's list; return the estimate, and what is truly still missing."""
    rows, column = np.nonzero(album.unknown)
    score, count = album.scores[rows, column], len(rows)
    ranked, sampled = np.empty(count, dtype=np.int64), np.full(count, np.iinfo(np.int64).max)
    drawn = random.permutation(count)[: count // 10]
    decided = np.zeros(count, dtype=np.bool_)
    for number, depth in enumerate(depths.tolist()):
        mine, mine_drawn = np.flatnonzero(column == number), drawn[column[drawn] == number]
        ranked[mine[np.argsort(-score[mine], kind="stable")]] = 2 * np.arange(len(mine)) + 1
        offset = random.integers(INTERVAL, size=len(mine_drawn))
        sampled[mine_drawn] = 2 * (INTERVAL * np.arange(len(mine_drawn)) + offset)
        decided[mine[np.argsort(np.minimum(ranked, sampled)[mine], kind="stable")[:depth]]] = True
    present = album.truth[rows, column]
    value = np.where(decided, np.where(present, PRESENT, ABSENT), UNKNOWN).astype(np.int8)
    asked, order = order_fixed_list(column, sampled, ranked, decided, len(depths))
    unknown = album.unknown.sum(axis=0)
    labels = ReviewedLabels(column, score, decided, value, asked, order, unknown, album.estimate, album.spread)
    return estimate_review(labels), np.bincount(column[present & ~decided], minlength=len(depths))


def draw_depths(classes: int, random: np.random.Generator) -> NDArray[np.int64]:
    """Return how far each class is reviewed: all of them alike, or some of them."""
    depth = random.choice([20, 40, 80, 150])
    return np.where(random.random(classes) < random.choice([0.5, 1.0]), depth, 0)


def voc_albums(features: Floats, truth: NDArray[np.bool_], images: int, kind: str, seeds: range) -> Iterator[Album]:
    """Draw images of VOC."""
    for seed in seeds:
        random = np.random.default_rng([seed, images, KINDS.index(kind)])
        drawn = random.permutation(len(features))[:images]
        yield audit(features[drawn], truth[drawn], hide(truth[drawn], kind, random))


def digit_albums(seeds: range, images: int = 400, filters: int = 150) -> Iterator[Album]:
    """Draw scenes of digits, one label of each known."""
    data = lg.load("digits", train=images * len(seeds), val=40, test=4)
    assert data.train.truth is not None and data.val is not None
    scenes, others = (
        torch.from_numpy(np.stack([np.asarray(part.images[row])[..., 0] for row in range(len(part))])).float()[:, None]
        for part in (data.train, data.val)
    )
    random, truth = np.random.default_rng(0), data.train.truth.to_dense() == PRESENT
    corners = random.integers(64 - 14, size=(filters * 20, 2)).tolist()
    patches = torch.stack([others[i % 40, 0, y : y + 14, x : x + 14] for i, (y, x) in enumerate(corners)])
    patches = patches[patches.flatten(1).std(dim=1).argsort(descending=True)[:filters]]  # those that show something
    patches = patches - patches.mean(dim=(1, 2), keepdim=True)
    kernel = (patches / patches.flatten(1).norm(dim=1)[:, None, None])[:, None]
    for number in range(len(seeds)):
        part = slice(number * images, (number + 1) * images)
        features = torch.nn.functional.conv2d(scenes[part] / 255, kernel, stride=2).amax(dim=(2, 3)).numpy()
        yield audit(features, truth[part], hide(truth[part], "one tag", np.random.default_rng(number)))


def before_review(make: Callable[[int, str, range], Iterator[Album]]) -> None:
    """Print what the audit says, and what is true."""
    print(
        "| known | images | missing | estimated / missing | mean error of a class | worst class | range / estimate |\n"
        + "|---" * 7
        + "|"
    )
    errors, inside = [], []
    for kind in KINDS:
        for images, seeds in BEFORE.items():
            albums = list(make(images, kind, seeds))
            ratios = [album.estimate.sum() / album.missing.sum() for album in albums]
            wrong = [np.abs(album.estimate - album.missing) for album in albums]
            errors += np.log(ratios).tolist()
            inside += [album.range[0] <= album.missing.sum() <= album.range[1] for album in albums]
            shown = ", ".join(f"{ratio:.2f}" for ratio in ratios)
            ends = np.exp(np.mean([np.log(np.maximum(each.range, 1) / each.estimate.sum()) for each in albums], axis=0))
            missing = np.mean([album.missing.sum() for album in albums])
            print(
                f"| {kind} | {images:,} | {missing:.0f} | {shown} | {np.mean(wrong):.1f} | "
                f"{np.mean([each.max() for each in wrong]):.0f} | {ends[0]:.2f} to {ends[1]:.2f} |",
                flush=True,
            )
    print(f"\nroot mean square of ln(estimated / missing): {np.sqrt(np.mean(np.square(errors))):.2f}")
    print(f"the range holds the truth: {sum(inside)} of {len(inside)}")


def estimate_tables(folder: Path) -> None:
    """Print the estimates of tables whose labels are hidden, relative to what is missing, with their ranges."""
    print("| table | " + " | ".join(KINDS) + " |\n" + "|---" * (1 + len(KINDS)) + "|")
    ratios, inside = [], []
    for path in sorted(folder.glob("*.npz")):
        stored, cells = np.load(path), []
        truth = stored["Y"][:, np.sort(np.argsort(-stored["Y"].sum(axis=0), kind="stable")[:30])] == 1
        for number, kind in enumerate(KINDS):
            random = np.random.default_rng([number, 0])
            rows = random.permutation(np.flatnonzero(truth.any(axis=1)))[:1200]
            album = audit(stored["X"][rows].astype(np.float32), truth[rows], hide(truth[rows], kind, random))
            missing = album.missing.sum()
            ratios.append(album.estimate.sum() / missing)
            inside.append(album.range[0] <= missing <= album.range[1])
            low, high = np.array(album.range) / missing
            cells.append(f"{ratios[-1]:.2f} ({low:.2f} to {high:.2f})")
        print(f"| {path.stem} | {' | '.join(cells)} |", flush=True)
    print(f"\nroot mean square of ln(estimated / missing): {np.sqrt(np.mean(np.square(np.log(ratios)))):.2f}")
    print(f"mean of ln(estimated / missing): {np.mean(np.log(ratios)):+.2f}")
    print(f"the range holds the truth: {sum(inside)} of {len(inside)}")
    print_ratios({"estimates_coverage_tables": float(np.mean(inside))}, 3)


def during_review(name: str, albums: list[Album]) -> float:
    """Simulate reviews; print and return how often the intervals hold the truth."""
    random = np.random.default_rng(0)
    hits: list[bool] = []
    class_hits: list[bool] = []
    widths: list[float] = []
    errors: list[float] = []
    while len(hits) < REVIEWS:
        album = albums[len(hits) % len(albums)]
        made, left = simulate_review(album, draw_depths(album.truth.shape[1], random), random)
        if made.total is None or not made.total.has_interval:
            continue
        total = made.total
        hits.append(total.low <= int(left.sum()) <= total.high)
        widths.append((total.high - total.low) / album.missing.sum())
        errors.append(abs(total.missing[0] / album.missing.sum() - 1))
        for each, true in zip(made.by_class, left, strict=True):
            if each is not None and each.has_interval and each.undecided:
                class_hits.append(each.low <= int(true) <= each.high)
    numbers = [f"{100 * np.mean(hits):.1f} %", f"{100 * np.mean(class_hits):.1f} % of {len(class_hits):,}"]
    numbers += [f"{100 * np.median(values):.0f} %" for values in (widths, errors)]
    print(f"| {name} | {len(hits)} | {' | '.join(numbers)} |", flush=True)
    return float(np.mean(hits))


def main() -> None:
    parser = arguments_with_features(__doc__)
    parser.add_argument("--tables", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    if arguments.tables is not None:
        estimate_tables(arguments.tables)
        return
    arrays = np.load(arguments.features)
    features = np.concatenate([arrays[f"{split}_features"] for split in ("train", "val", "test")])
    truth = np.concatenate([arrays[f"{split}_truth"] for split in ("train", "val", "test")]) == PRESENT

    def make(images: int, kind: str, seeds: range) -> Iterator[Album]:
        return voc_albums(features.astype(np.float32), truth, images, kind, seeds)

    head = "| simulated reviews | | interval holds | intervals of classes hold | width / missing | error of the total |"
    print(head + "\n" + "|---" * 6 + "|")
    voc = during_review("VOC", [album for kind in KINDS for album in make(300, kind, range(200, 203))])
    digits = during_review("digits", list(digit_albums(range(6))))
    print()
    before_review(make)
    print_ratios({"estimates_coverage_voc": voc, "estimates_coverage_digits": digits}, 3)


if __name__ == "__main__":
    main()
