"""Is what `labelgap apply --accept-machine` accepts as precise as it says, and how many answers does that take?

    python benchmarks/accept_machine.py [FEATURES.npz] [--data voc-one,voc-tenth] [--draws 200] [--precisions 0.9 0.95]

The guarantee: for each class, what is accepted is ever less precise than demanded in 5 % of the draws at most, although
the reviewer looks after every 30 answers, and goes on until nothing more is asked. Audits are those of
benchmarks/review_loop.py, of three label seeds. "borderline": as many labels, one in a hundred more wrong than allowed.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from labelgap.audit.candidates import CandidateLimits
from labelgap.labels.codes import PRESENT
from labelgap.review.acceptance import LIKELY, AcceptedLabels, LikelyLabels, accept_class

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.harness import feature_arguments, print_ratios
from benchmarks.review_loop import SETTINGS, hide, load
from benchmarks.simulated_review import audit_once, linear_config

Mask = NDArray[np.bool_]
LABEL_SEEDS, LOOK = (4, 5, 6), 30


def simulate(present: Mask, precision: float, random: np.random.Generator) -> tuple[int, int, bool]:
    """Answer what is asked, by the truth of a class's likely labels; return the answers, how many labels are accepted
    in the end, and whether ever too many of them were wrong.
    """
    size, failed, decided = len(present), False, np.zeros(len(present), dtype=np.bool_)
    draw = random.permutation(size).astype(np.uint64)
    while True:
        labels = LikelyLabels(np.arange(size), draw, decided, decided & present)
        found = accept_class(AcceptedLabels("", size), labels, precision)
        failed |= bool(len(found.accepted) and present[found.accepted].mean() < precision)
        if not len(found.asked):
            return int(decided.sum()), len(found.accepted), failed
        decided[found.asked[:LOOK]] = True


def likely_labels(features: Path, name: str, seed: int) -> list[Mask]:
    """Return of each class which of the likely labels are present, the most probable first."""
    hidden = hide(load(name, features), name, seed)
    config = linear_config(SETTINGS[name].method, {}, 2e-3, epochs=10, batch_size=64)
    missing = audit_once(hidden, config, CandidateLimits(limit=10**8), seed=seed).missing
    present = hidden.train.evaluation_labels.codes_at(missing.rows, missing.columns.astype(np.int64)) == PRESENT
    own = (missing.columns == np.arange(len(hidden.classes))[:, None]) & (missing.scores >= LIKELY)
    return [present[mask] for mask in own]


def report(name: str, albums: list[list[Mask]], precision: float, draws: int, random: np.random.Generator) -> float:
    """Print what a review brings, and return how often the worst class fails."""
    made = np.array([[simulate(each, precision, random) for each in albums[at % len(albums)]] for at in range(draws)])
    (answers, accepted), failed = made[..., :2].sum(axis=1).mean(axis=0), made[..., 2].mean(axis=0)
    likely = np.mean([sum(map(len, album)) for album in albums])
    print(
        f"{name}, {100 * precision:g} %: of {likely:,.0f} likely labels {accepted:,.0f} accepted after {answers:,.0f} "
        f"answers, in {(made[..., 1] > 0).sum(axis=1).mean():.1f} classes; less precise than that in "
        f"{100 * failed.max():.1f} % of {draws} draws of the worst class",
        flush=True,
    )
    return float(failed.max())


def main() -> None:
    """Run the benchmark."""
    given = feature_arguments(str(__doc__), data="voc-one,voc-tenth", draws=200, precisions=(0.9, 0.95))
    random, worst = np.random.default_rng(0), 0.0
    for name in given.data.split(","):
        albums = [likely_labels(given.features, name, seed) for seed in LABEL_SEEDS]
        for precision in given.precisions:
            worst = max(worst, report(name, albums, precision, given.draws, random))
            border = [
                [random.permutation(len(each)) >= (1.01 - precision) * len(each) for each in album] for album in albums
            ]
            worst = max(worst, report(f"{name}, borderline", border, precision, given.draws, random))
    print_ratios({"failures in the worst class / 0.05": worst / 0.05})


if __name__ == "__main__":
    main()
