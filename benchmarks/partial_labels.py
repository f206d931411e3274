"""What can be measured with few labels: thresholds and average precision of one head on VOC 2012, against the truth.

    python benchmarks/partial_labels.py [FEATURES.npz]

A head is trained on features with one label per image (`em`). The labels of val are then hidden in several ways: one
present label per image and some known absents per class, or a share of all labels. Thresholds are chosen on what is
left and their F1 is measured on test, where every label is known; so is that of the rule that most scripts use, the
highest F1 over the known labels. Average precision over the known labels and the corrected one are compared with the
truth.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

import labelgap as lg
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.metrics import corrected_average_precision

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.harness import feature_arguments, print_ratios

SEEDS = 3
Codes = NDArray[np.int8]
Hide = Callable[[Codes, float, np.random.Generator], Codes]


def one_present(truth: Codes, absents: float, random: np.random.Generator) -> Codes:
    """One present label per image, and some known absents of each class."""
    labels = np.full(truth.shape, UNKNOWN, dtype=np.int8)
    for row, present in enumerate(truth == PRESENT):
        if present.any():
            labels[row, random.choice(np.flatnonzero(present))] = PRESENT
    for column in range(truth.shape[1]):
        labels[random.permutation(np.flatnonzero(truth[:, column] == ABSENT))[: int(absents)], column] = ABSENT
    return labels


def share_of_all(truth: Codes, share: float, random: np.random.Generator) -> Codes:
    """A share of all labels, whatever they are."""
    return np.where(random.random(truth.shape) < share, truth, UNKNOWN).astype(np.int8)


def best_known_f1(scores: NDArray[np.float32], labels: Codes) -> NDArray[np.float64]:
    """The highest F1 over the known labels of each class; 0.5 without a known present."""
    cuts = np.full(labels.shape[1], 0.5)
    for column in range(labels.shape[1]):
        known = labels[:, column] != UNKNOWN
        score, present = scores[known, column], labels[known, column] == PRESENT
        if present.any():
            taken = score[None, :] >= score[present][:, None]
            f1 = 2 * (taken & present).sum(axis=1) / (taken.sum(axis=1) + present.sum())
            cuts[column] = score[present][f1.argmax()]
    return cuts


def main() -> None:
    features = feature_arguments(__doc__).features
    data = lg.load("features", features).observe(positives=1, negatives=0, seed=1200)
    assert data.val is not None and data.test is not None
    with tempfile.TemporaryDirectory() as folder:
        run = lg.fit(data, method="em", out=Path(folder) / "run", epochs=15, trace="off", quiet=True)
        val, test = run.logits(data.val.images), run.logits(data.test.images)
    truth, answers = data.val.evaluation_labels.to_dense(), data.test.evaluation_labels.to_dense()
    best = lg.f1(expit(test), answers, threshold=lg.choose_thresholds(expit(val), truth).values)
    exact = lg.average_precision(val, truth)
    print(f"all labels of val: F1 on test {100 * best:.1f}, mAP of val {100 * exact:.1f}")
    print(f"{'labels of val':<42}{'F1 known':>9}{'F1 ours':>9}{'AP known':>10}{'AP ours':>9}")
    kinds: dict[str, tuple[Hide, float]] = {
        **{f"one present an image, {count} absent a class": (one_present, count) for count in (0, 1, 3, 10, 30, 300)},
        **{f"{100 * share:.0f} % of all": (share_of_all, share) for share in (0.05, 0.1, 0.2, 0.5)},
    }
    ratio = 0.0
    for name, (hide, amount) in kinds.items():
        rows = []
        for seed in range(SEEDS):
            labels = hide(truth, amount, np.random.default_rng(seed))
            cuts = best_known_f1(expit(val), labels), lg.choose_thresholds(expit(val), labels).values
            f1 = [lg.f1(expit(test), answers, threshold=each) for each in cuts]
            corrected = float(np.nanmean(corrected_average_precision(val, labels).values))
            rows.append((*f1, lg.average_precision(val, labels), corrected))
        known, ours, plain, corrected = np.mean(rows, axis=0)
        print(f"{name:<42}{100 * known:>9.1f}{100 * ours:>9.1f}{100 * plain:>10.1f}{100 * corrected:>9.1f}")
        ratio = ours / known if name.endswith("1 absent a class") else ratio
    print_ratios({"f1_with_one_known_absent": ratio})


if __name__ == "__main__":
    main()
