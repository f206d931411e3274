"""Logistic regression with 45 penalties: all at once, against 45 fits of scikit-learn, one after another.

    python benchmarks/linear_eval.py [--images 1000] [--features 512]

The features are those of VOC 2012, cut to a size that scikit-learn finishes in minutes, or random ones of that size if
the file is missing. Multi-label: 20 classes, for scikit-learn 20 binary fits for each penalty. Single-label: the images
that have exactly one class. Both sides get the same float32 arrays and threads. scikit-learn has its default tolerance,
1e-4, and up to 1,000 iterations; it also ends where the objective hardly changes, which leaves a larger gradient. Our
tolerance is such that we end with a gradient of that size: the last columns have the largest entry of the gradient of
the mean loss over all penalties, ours and theirs, and the largest excess of our objective per image over theirs. We are
timed before and after scikit-learn and the slower time counts; ratios are of wall-clock and of processor time.

On a GPU the whole of the data is timed as well, ours alone.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from labelgap.studies.linear_eval import PAPER_PENALTIES
from labelgap.training.heads.solver import fit_logistic_path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.harness import FEATURES, parse_arguments, print_ratios, timed

TOLERANCE: Final = 2.5e-4

Heads = list[tuple[NDArray[Any], NDArray[Any]]]
"""Weights ``(K, D)`` and biases ``(K,)`` of every penalty."""


def read() -> tuple[NDArray[np.float32], NDArray[np.int8]]:
    if FEATURES.is_file():
        with np.load(FEATURES) as stored:
            return stored["train_features"].astype(np.float32), stored["train_truth"]
    random = np.random.default_rng(0)
    labels = (random.random((4574, 20)) < 0.07).astype(np.int8)
    looks = random.normal(size=(20, 2048))
    values = np.maximum(labels @ looks * 0.3 + random.normal(size=(len(labels), 2048)), 0)
    return values.astype(np.float32), labels


def ours(features: NDArray[np.float32], labels: NDArray[Any], device: str = "cpu") -> Heads:
    path = fit_logistic_path(torch.from_numpy(features), labels, PAPER_PENALTIES, tolerance=TOLERANCE, device=device)
    assert path.converged.all()
    weights, biases = path.basis.to_features(path.weight, path.bias)
    return list(zip(weights.cpu().numpy(), biases.cpu().numpy(), strict=True))


def scikit_learn(features: NDArray[np.float32], labels: NDArray[Any]) -> Heads:
    heads: Heads = []
    for penalty in PAPER_PENALTIES:
        model = LogisticRegression(C=1 / penalty, tol=1e-4, max_iter=1000)
        targets = [labels] if labels.ndim == 1 else list(labels.T)
        fits = [model.fit(features, target) and (model.coef_, model.intercept_) for target in targets]
        heads.append((np.concatenate([fit[0] for fit in fits]), np.concatenate([fit[1] for fit in fits])))
    return heads


def objectives(features: NDArray[np.float32], labels: NDArray[Any], heads: Heads) -> tuple[NDArray[np.float64], float]:
    """Return the objective of every penalty, per image, and the largest entry of a gradient, in float64."""
    found, largest, wide = [], 0.0, features.astype(np.float64)
    for penalty, head in zip(PAPER_PENALTIES, heads, strict=True):
        weight, bias = (part.astype(np.float64) for part in head)
        logits = wide @ weight.T + bias
        if labels.ndim == 1:
            total = np.logaddexp.reduce(logits, axis=1)
            losses = total - logits[np.arange(len(logits)), labels]
            slopes = np.exp(logits - total[:, None]) - np.eye(logits.shape[1])[labels]
        else:
            losses = np.logaddexp(0, logits) - labels * logits
            slopes = np.exp(-np.logaddexp(0, -logits)) - labels
        found.append((losses.sum() + 0.5 * penalty * np.square(weight).sum()) / len(features))
        gradient = slopes.T @ wide + penalty * weight
        largest = max(largest, float(np.abs(gradient).max()) / len(features))
    return np.array(found), largest


def compare(name: str, features: NDArray[np.float32], labels: NDArray[Any]) -> dict[str, float]:
    """Time both sides, print a row, and return the ratios."""
    ours(features[:50], labels[:50])  # loads libraries
    _, *first = timed(lambda: ours(features, labels))
    theirs, *peer = timed(lambda: scikit_learn(features, labels))
    heads, *last = timed(lambda: ours(features, labels))
    processor, wall = (max(pair) for pair in zip(first, last, strict=True))
    (mine, gradient), (other, peer_gradient) = (objectives(features, labels, each) for each in (heads, theirs))
    classes = len(np.unique(labels)) if labels.ndim == 1 else labels.shape[1]
    shape = f"{features.shape[0]:,} × {features.shape[1]:,}, {classes}"
    print(f"{name:<14}{shape:<20}{wall:>8.1f}{peer[1]:>14.1f}{processor:>10.1f}{peer[0]:>14.1f}", end="")
    print(f"{gradient:>12.1e}{peer_gradient:>14.1e}{float((mine - other).max()):>12.1e}", flush=True)
    return {f"linear_eval_{name}": peer[1] / wall, f"linear_eval_{name}_processor_time": peer[0] / processor}


def main() -> None:
    arguments = parse_arguments(__doc__, images=1000, features=512)
    warnings.simplefilter("error", ConvergenceWarning)
    features, labels = read()
    print(f"45 penalties; torch {torch.__version__}, {torch.get_num_threads()} threads")
    print(f"{'':<14}{'images, classes':<20}{'wall s':>8}{'scikit-learn':>14}{'CPU s':>10}{'scikit-learn':>14}", end="")
    print(f"{'gradient':>12}{'scikit-learn':>14}{'excess':>12}")
    some, codes = features[: arguments.images, : arguments.features].copy(), labels[: arguments.images]
    single = codes.sum(axis=1) == 1
    numbers = np.unique(codes[single].argmax(axis=1), return_inverse=True)[1]
    ratios = compare("single_label", some[single], numbers)
    present = codes.sum(axis=0)
    ratios |= compare("multi_label", some, codes[:, (present > 0) & (present < len(codes))])
    if torch.cuda.is_available():
        ours(features, labels, "cuda")
        _, _, wall = timed(lambda: ours(features, labels, "cuda"))
        print(
            f"GPU, {features.shape[0]:,} × {features.shape[1]:,}, {labels.shape[1]} classes, multi-label: {wall:.2f} s"
        )
    print_ratios(ratios)


if __name__ == "__main__":
    main()
