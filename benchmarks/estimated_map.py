"""Does the estimated mAP of small albums come true? Its error over the out-of-fold scores that it is estimated from.

    python benchmarks/estimated_map.py [FEATURES.npz]

Albums of 100, 200 and 500 images of VOC 2012 with 8 or 20 of its classes are drawn, and labels are hidden as in
``small_albums.py``. `auto` trains on each; the estimate of its run is compared with the mAP of the same scores over all
labels. Only estimates that are shown count. "Highest scores" takes the prevalence of a class from its highest scores
alone: nearly all of those images are taken as present.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.harness import feature_arguments, print_ratios
from benchmarks.small_albums import Codes, Features, hide

import labelgap as lg
from labelgap.data.images import FeatureVectors
from labelgap.labels import PRESENT, LabelTable
from labelgap.metrics.thresholds import MIN_PRESENT
from labelgap.training.history import has_estimate
from labelgap.training.run_folder import read_predictions

SIZES, CLASSES, SEEDS = (100, 200, 500), (8, 20), (0, 1)
KINDS = ("present-only", "patchy", "half")


def read_features(path: Path) -> tuple[Features, Codes, tuple[str, ...]]:
    """Return the features and labels of all images, and the classes."""
    data = lg.load("features", path)
    truth = np.concatenate([split.evaluation_labels.to_dense() for split in data.splits])
    return np.concatenate(list(lg.features(data).values())), truth, data.classes


def highest_scores(scores: Features, present: NDArray[np.bool_]) -> dict[str, float]:
    """Return the estimate of the mAP and of chance if all of the highest-scoring half of the presents' images are."""
    values, shares = [], []
    for score, known in zip(scores.T, present.T, strict=True):
        recall, share = (np.array([(each >= cut).mean() for cut in score[known]]) for each in (score[known], score))
        weight = np.maximum(0.5 - recall, 0) + 1e-3
        prevalence = min(max(float(weight @ share / (weight @ recall)), float(known.mean())), 1.0)
        values.append(np.minimum(prevalence * recall / share, 1).mean())
        shares.append(prevalence)
    return {"map_estimated": float(np.mean(values)), "chance_estimated": float(np.mean(shares))}


def measure(features: Features, truth: Codes, codes: Codes, classes: list[str]) -> tuple[float, float]:
    """Return the errors of both estimates, in points; NaN for one that is not shown."""
    names = [str(row) for row in range(len(codes))]
    table = LabelTable.from_dense(codes, classes=classes, images=names)
    data = lg.Dataset("album", lg.Split("train", FeatureVectors(features, names), table), backbone="features")
    with tempfile.TemporaryDirectory() as folder:
        run = lg.fit(data, out=Path(folder) / "run", quiet=True)
        scores = read_predictions(run.path, "train", names, classes)
    assert scores is not None
    enough = np.count_nonzero(codes == PRESENT, axis=0) >= MIN_PRESENT
    if not enough.any():
        return np.nan, np.nan
    exact = float(lg.average_precision(scores[:, enough], truth[:, enough]))
    highest = highest_scores(scores[:, enough], codes[:, enough] == PRESENT)
    shown = [each["map_estimated"] if has_estimate(each) else np.nan for each in (run.metrics["train"], highest)]
    return 100 * (shown[0] - exact), 100 * (shown[1] - exact)


def describe(errors: NDArray[np.float64]) -> str:
    """Return the number of estimates that are shown, and the mean, root mean square and highest of their errors."""
    shown = errors[~np.isnan(errors)]
    if not shown.size:
        return f"{'0':>6}"
    return f"{shown.size:>6}{shown.mean():>+8.1f}{np.sqrt(np.square(shown).mean()):>8.1f}{shown.max():>+8.1f}"


def main() -> None:
    features, truth, classes = read_features(feature_arguments(__doc__).features)
    header = f"{'shown':>6}{'mean':>8}{'rms':>8}{'highest':>8}"
    print(f"{'albums':<30}{'run: ' + header:<34} highest scores: {header}")
    everything = []
    for kind in KINDS:
        for size in SIZES:
            errors = []
            for seed in SEEDS:
                for count in CLASSES:
                    random = np.random.default_rng([seed, size, count])
                    chosen = np.sort(random.permutation(len(classes))[:count])
                    rows = random.permutation(np.flatnonzero((truth[:, chosen] == PRESENT).any(axis=1)))[:size]
                    answers = truth[rows][:, chosen]
                    codes = hide(answers, kind, random)
                    known = (codes == PRESENT).any(axis=0)
                    names = [classes[column] for column in chosen[known]]
                    errors.append(measure(features[rows], answers[:, known], codes[:, known], names))
            everything += errors
            found = np.array(errors)
            print(f"{f'{size} images, {kind}, {len(found)}':<30}{describe(found[:, 0]):<34} {describe(found[:, 1])}")
    found = np.array(everything)
    print(f"{f'all {len(found)}':<30}{describe(found[:, 0]):<34} {describe(found[:, 1])}")
    rms = np.sqrt(np.nanmean(np.square(found), axis=0))
    print_ratios({"error_of_estimated_map": rms[1] / rms[0]})


if __name__ == "__main__":
    main()
