"""Do the estimates of missing labels come true? What an audit says before any review, against the truth.

    python benchmarks/estimates.py [FEATURES.npz] [--tables FOLDER]

Images are drawn from VOC 2012: of each, one present label is known, or one or two, or a random half of the present
ones, or a random half of all labels. `StandardScaler` and `LogisticRegression` of scikit-learn (C = 0.01, unknown =
absent) score every image out of fold. For estimates during a review see ``review_coverage.py``.

With ``--tables``, 1,200 rows and the 30 most frequent labels of the tables that ``tabular_sets.py --out FOLDER``
writes. How wrong the label model may be was chosen on other draws of these and of VOC.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

import labelgap as lg
from labelgap.audit.candidates import CandidateLimits, rank_candidates
from labelgap.audit.scorers import StoredScorer
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.training.folds import assign_folds

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.harness import feature_arguments, logistic_regression, print_ratios

KINDS = ("one tag", "1–2 tags", "half of the tags", "half of all labels")
BEFORE = {200: range(100, 103), 500: range(100, 103), 2000: range(100, 101)}
Codes = NDArray[np.int8]
Floats = NDArray[np.float32]


class Album(NamedTuple):
    """The truth ``(N, K)``, which labels are unknown, and the estimate of each class, with the range of all."""

    truth: NDArray[np.bool_]
    unknown: NDArray[np.bool_]
    estimate: NDArray[np.float64]
    range: tuple[int, int]

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
    return Album(truth, known == UNKNOWN, ranking.estimate.by_class, ranking.estimate.range)


def voc_albums(features: Floats, truth: NDArray[np.bool_], images: int, kind: str, seeds: range) -> Iterator[Album]:
    """Draw images of VOC."""
    for seed in seeds:
        random = np.random.default_rng([seed, images, KINDS.index(kind)])
        drawn = random.permutation(len(features))[:images]
        yield audit(features[drawn], truth[drawn], hide(truth[drawn], kind, random))


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
    print_ratios({"estimates_coverage_voc": float(np.mean(inside))}, 3)


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


def main() -> None:
    arguments = feature_arguments(__doc__, tables=Path)
    warnings.simplefilter("ignore", ConvergenceWarning)
    if arguments.tables is not None:
        estimate_tables(arguments.tables)
        return
    arrays = np.load(arguments.features)
    features = np.concatenate([arrays[f"{split}_features"] for split in ("train", "val", "test")])
    truth = np.concatenate([arrays[f"{split}_truth"] for split in ("train", "val", "test")]) == PRESENT

    def make(images: int, kind: str, seeds: range) -> Iterator[Album]:
        return voc_albums(features.astype(np.float32), truth, images, kind, seeds)

    before_review(make)


if __name__ == "__main__":
    main()
