"""Thresholds of small collections of images with few tags: F1 against thresholds chosen with all labels, on VOC 2012.

    python benchmarks/thresholds.py [FEATURES.npz]

200, 500 or 2,000 images are drawn from train. Of each image one or two present labels are known and nothing else; or
those and a tenth of the absent labels; or a random half of all labels. `StandardScaler` and `LogisticRegression` of
scikit-learn (C = 0.01, unknown = absent) score every image by five-fold cross-validation, and the test images by a fit
on all. On the out-of-fold scores thresholds are chosen from the known labels, and from all labels of these images:
"exact" is the cut of each class with the best F1, "shared" the one that a calibration shared by the classes expects. F1
is measured on the 5,823 test images with all labels. "decided" is the share of labels of test that are not unsure,
"unsure" their number per present label that is predicted, and "listed" the macro F1 when an unsure label counts as not
predicted. The ratio is to the better of "exact" and "shared".
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit
from sklearn.exceptions import ConvergenceWarning

import labelgap as lg
from labelgap.inference.columns import LABELS, labels_from_scores
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.metrics.label_model import LabelModel, fit_platt_calibration, read_calibration

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.harness import feature_arguments, logistic_regression, print_ratios

SEEDS = {200: (100, 101, 102), 500: (100, 101, 102), 2000: (100,)}
KINDS = ("1–2 tags", "1–2 tags, some absents", "half of all labels")
FOLDS = 5
Codes = NDArray[np.int8]
Floats = NDArray[np.float32]


def hide(truth: Codes, kind: str, random: np.random.Generator) -> Codes:
    """Return what is known of some images."""
    if kind == "half of all labels":
        return np.where(random.random(truth.shape) < 0.5, truth, UNKNOWN).astype(np.int8)
    labels = np.full(truth.shape, UNKNOWN, dtype=np.int8)
    for row, present in enumerate(truth == PRESENT):
        labels[row, random.permutation(np.flatnonzero(present))[: random.integers(1, 3)]] = PRESENT
    if kind == "1–2 tags, some absents":
        labels[(truth == ABSENT) & (random.random(truth.shape) < 0.1)] = ABSENT
    return labels


def cross_fit(features: Floats, labels: Codes, random: np.random.Generator) -> Floats:
    """Return out-of-fold logits."""
    fold, logits = random.permutation(len(features)) % FOLDS, np.zeros(labels.shape, dtype=np.float32)
    for number in range(FOLDS):
        held_out = fold == number
        logits[held_out] = logistic_regression(features[~held_out], labels[~held_out] == PRESENT, features[held_out])
    return logits


def shared_thresholds(logits: Floats, labels: Codes) -> NDArray[np.float64]:
    """Return the scores at which each class has the highest F1 that a shared calibration expects."""
    calibration = LabelModel.fit(logits, labels)
    assert calibration is not None
    chance, order = calibration.probabilities(logits), np.argsort(-logits, axis=0)
    taken = np.cumsum(np.take_along_axis(chance, order, axis=0), axis=0)
    expected = 2 * taken / (np.arange(1, len(chance) + 1)[:, None] + taken[-1])
    half = expected.max(axis=0) / 2
    cuts: NDArray[np.float64] = expit((logit(half) - calibration.offset) / calibration.scale)
    return cuts


def measure(scores: Floats, known: Codes, truth: Codes, test: Floats, answers: Codes) -> tuple[float, ...]:
    """Return the F1 of three kinds of thresholds (macro, then micro), and how much is decided, in percent.

    Args:
        scores: out-of-fold logits of the drawn images.
        known: their known labels.
        truth: all their labels.
        test: logits of test.
        answers: all labels of test.
    """
    exact, found = (lg.choose_thresholds(expit(scores), labels) for labels in (truth, known))
    cuts = exact.values, shared_thresholds(scores, truth), found.values
    macro, micro = (
        [lg.f1(expit(test), answers, threshold=each, average=average) for each in cuts]
        for average in ("macro", "micro")
    )
    calibration = read_calibration({"calibration": fit_platt_calibration(scores, known)})
    labels = labels_from_scores(expit(test), found, calibration)
    present, unsure = (labels == LABELS.index(name) for name in ("present", "unsure"))
    listed = lg.f1(present.astype(np.float32), answers)
    predicted = float((expit(test) >= found.values).sum())
    values = [*macro, *micro, listed, 1 - unsure.mean(), unsure.sum() / predicted]
    return tuple(100 * float(value) for value in values)


def main() -> None:
    arrays = np.load(feature_arguments(__doc__).features)
    features, truth = arrays["train_features"].astype(np.float32), arrays["train_truth"].astype(np.int8)
    others, answers = arrays["test_features"].astype(np.float32), arrays["test_truth"].astype(np.int8)
    print(f"{'':<30}{'macro F1':>15}{'':9}{'micro F1':>15}")
    columns = 2 * f"{'exact':>8}{'shared':>8}{'known':>8}"
    print(f"{'known':<24}{'images':>6}{columns}{'listed':>8}{'decided':>9}{'unsure':>8}")
    ratios = []
    for kind in KINDS:
        for images, seeds in SEEDS.items():
            rows = []
            for seed in seeds:
                random = np.random.default_rng([seed, images])
                drawn = random.permutation(len(features))[:images]
                known = hide(truth[drawn], kind, random)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", ConvergenceWarning)
                    scores = cross_fit(features[drawn], known, random)
                    test = logistic_regression(features[drawn], known == PRESENT, others)
                rows.append(measure(scores, known, truth[drawn], test, answers))
            means = np.mean(rows, axis=0)
            ratios.append(means[2] / max(means[:2]))
            numbers = "".join(f"{value:>8.1f}" for value in means[:-1])
            print(f"{kind:<24}{images:>6}{numbers}%{means[-1]:>7.0f}%", flush=True)
    print(f"lowest ratio of macro F1: {min(ratios):.3f}")
    print_ratios({"thresholds_f1": float(np.mean(ratios))}, 3)


if __name__ == "__main__":
    main()
