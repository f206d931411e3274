"""What teachers of three qualities bring to an audit of VOC2012, one known present label per training image.

    python -m benchmarks.prior [METHOD [FEATURES.npz]]

``good``: linear heads trained on the full labels of 200 val photos. ``confounded``: the same heads with the classes in
pairs exchanged, so that it calls a dog what shows a cat. ``random``: a uniform number per label. Average precision is
that of all unknown labels of train, ranked by the audit, in percent.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score

import labelgap as lg
from labelgap.data import Dataset

FEATURES = "../shared/data/voc2012_resnet50_448.npz"
TAUGHT = 200


def teachers(data: Dataset, seed: int = 0) -> dict[str, NDArray[np.float64]]:
    """Return the probabilities ``(N, K)`` of each teacher for the training images."""
    assert data.val is not None
    random = np.random.default_rng(seed)
    taught = random.permutation(len(data.val))[:TAUGHT]
    truth = data.val.evaluation_labels.to_dense()[taught] == lg.PRESENT
    learned, asked = (np.asarray(split.images.vectors) for split in (data.val, data.train))  # type: ignore[attr-defined]
    heads = [LogisticRegression(C=0.01, max_iter=500).fit(learned[taught], column) for column in truth.T]
    good = np.stack([expit(head.decision_function(asked)) for head in heads], axis=1)
    pairs = np.arange(good.shape[1]) ^ 1
    return {"good": good, "confounded": good[:, pairs], "random": random.random(good.shape)}


def write_long(path: Path, data: Dataset, probability: NDArray[np.float64]) -> None:
    """Write what a teacher says as a CSV."""
    rows = (
        f"{image},{name},{value:.5f}\n"
        for image, values in zip(data.train.labels.images, probability.tolist(), strict=True)
        for name, value in zip(data.classes, values, strict=True)
    )
    path.write_text("image,class,probability\n" + "".join(rows))


def main(method: str = "an", features: str = FEATURES) -> None:
    """Print a line for each set of sources."""
    data = lg.load(f"features={features}")
    truth = data.train.evaluation_labels.to_dense() == lg.PRESENT
    position = {name: row for row, name in enumerate(data.train.labels.images)}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name, probability in teachers(data).items():
            (root / name).mkdir()
            write_long(root / name / f"{name}.csv", data, probability)
        (root / "all").mkdir()
        for name in ("good", "confounded", "random"):
            (root / "all" / f"{name}.csv").symlink_to(root / name / f"{name}.csv")
        observed = data.observe(positives=1, negatives=0, seed=1200)
        run = lg.fit(observed, method=method, preset="cole2021", out=root / "run", quiet=True)
        for sources in ("none", "good", "confounded", "random", "all"):
            prior = None if sources == "none" else root / sources
            seen = lg.load(f"features={features}", prior=prior).observe(positives=1, negatives=0, seed=1200)
            audit = lg.find_missing(run, data=seen, per_class=10**6, limit=10**7, quiet=True)
            table = audit.of_kind("missing").to_pydict()
            rows = [position[name] for name in table["image"]]
            columns = [data.classes.index(name) for name in table["class"]]
            precision = 100 * average_precision_score(truth[rows, columns], table["score"])
            slopes = ", ".join(f"{name} {slope:.2f}" for name, slope in audit.metadata["priors"].items())
            print(f"{sources:<11} AP {precision:6.2f}   {slopes}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
