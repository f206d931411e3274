"""Known labels that look wrong: when does the queue go away where nothing is wrong, and what is lost where some are?

    python benchmarks/wrong_labels.py [--data digits,voc-one,voc-tenth] [--seeds 3] [--features FEATURES.npz]

A share of the known labels is made wrong: 0, 2 or 5 %. Where only presents are known (digits, voc-one), the present of
an image is moved to a class that the image does not show; else (voc-tenth) a label is inverted. An audit ranks the
known labels that look wrong, and a simulated reviewer answers from the truth in the order of the page, one label after
the other, until the page puts the queue away (``review.wrong_labels``). The data are those of
``benchmarks/review_loop.py``.
"""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import labelgap as lg
from labelgap.audit.candidates import CandidateList
from labelgap.labels import ABSENT, PRESENT, UNKNOWN
from labelgap.review.wrong_labels import WrongLabels, estimate_wrong_labels

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.harness import FEATURES, parse_arguments
from benchmarks.review_loop import LIMITS, SETTINGS, hide, load
from benchmarks.simulated_review import audit_once, linear_config

SHARES = (0.0, 0.02, 0.05)


@dataclass(frozen=True)
class Outcome:
    """One queue: its labels, how many of them are and are expected to be wrong, what was answered, and the interval.

    ``held`` is how often the interval of what is left held the truth, over all numbers of answers.
    """

    known: int
    made_wrong: int
    suggested: int
    suggested_wrong: int
    expected: float
    answers: int
    found: int
    held: float

    @property
    def lost(self) -> int:
        """Wrong labels among those that were put away."""
        return self.suggested_wrong - self.found


def make_wrong(data: lg.Dataset, share: float, seed: int) -> tuple[lg.Dataset, int]:
    """Make a share of the known labels of train wrong; return how many."""
    observed, truth = data.train.labels, data.train.evaluation_labels.to_dense()
    codes = observed.to_dense().copy()
    random = np.random.default_rng(seed)
    known = np.argwhere(codes != UNKNOWN)
    chosen = known[random.permutation(len(known))[: round(share * len(known))]]
    only_present = not (codes == ABSENT).any()
    for row, column in chosen.tolist():
        if only_present:
            codes[row, column] = UNKNOWN
            codes[row, random.choice(np.flatnonzero(truth[row] == ABSENT))] = PRESENT
        else:
            codes[row, column] = ABSENT if codes[row, column] == PRESENT else PRESENT
    table = lg.LabelTable.from_dense(codes, classes=observed.classes, images=observed.images)
    return replace(data, train=replace(data.train, labels=table)), len(chosen)


def answer(suggested: CandidateList, wrong: NDArray[np.bool_], classes: int) -> tuple[NDArray[np.bool_], float]:
    """Answer until the queue is put away; return what was answered, and how often the interval held the truth."""
    observed_present = suggested.observed == PRESENT
    implausibility = np.where(observed_present, 1 - suggested.scores, suggested.scores)
    decided, held = np.zeros(len(wrong), dtype=np.bool_), []
    while not decided.all():
        labels = WrongLabels(classes, suggested.columns, implausibility, decided, decided & wrong, decided & ~wrong)
        made = estimate_wrong_labels(labels)
        left, count = int((~decided).sum()), int((wrong & ~decided).sum())
        held.append(math.floor(made.total.low * left) <= count <= math.ceil(made.total.high * left))
        if made.total.put_away:
            break
        away = np.array([each is not None and each.put_away for each in made.by_class])
        decided[np.flatnonzero(~decided & ~away[suggested.columns])[0]] = True
    return decided, float(np.mean(held)) if held else 1.0


def simulate(name: str, data: lg.Dataset, share: float, seed: int) -> Outcome:
    """Audit data of which some known labels are wrong, and answer."""
    hidden, made_wrong = make_wrong(hide(data, name, seed), share, seed)
    config = linear_config(SETTINGS[name].method, {}, 2e-3, epochs=10, batch_size=64)
    ranking = audit_once(hidden, config, LIMITS, seed=seed)
    suggested = ranking.wrong
    truth = hidden.train.evaluation_labels.codes_at(suggested.rows, suggested.columns.astype(np.int64))
    wrong = np.asarray(truth != suggested.observed)
    decided, held = answer(suggested, wrong, len(data.classes))
    known = sum(hidden.train.labels.counts().total[:2])
    answered = int(decided.sum()), int((decided & wrong).sum())
    return Outcome(known, made_wrong, len(wrong), int(wrong.sum()), ranking.expected_wrong, *answered, held)


def main() -> None:
    """Run all settings and seeds."""
    arguments = parse_arguments(__doc__, data=",".join(SETTINGS), seeds=3, features=FEATURES)
    started, summary = time.perf_counter(), []
    names = "data, seed, known, made wrong, suggested, of these wrong, expected, answers, found, lost, interval held"
    print(f"| {names.replace(', ', ' | ')} |", "|---" * 11 + "|", sep="\n", flush=True)
    for name in arguments.data.split(","):
        data = load(name, arguments.features)
        for share in SHARES:
            made = [simulate(name, data, share, seed + 1) for seed in range(arguments.seeds)]
            for seed, each in enumerate(made, 1):
                numbers = (each.known, each.made_wrong, each.suggested, each.suggested_wrong, round(each.expected))
                cells = " | ".join(f"{number:,}" for number in (*numbers, each.answers, each.found, each.lost))
                print(f"| {name} | {seed} | {cells} | {100 * each.held:.0f} % |", flush=True)
            label = f"{name.replace('-', '_')}_{100 * share:.0f}"
            summary.append(f"ratio wrong_labels_answers_{label} {np.mean([each.answers for each in made]):.1f}")
            if share:
                lost = sum(each.lost for each in made) / max(sum(each.suggested_wrong for each in made), 1)
                summary.append(f"ratio wrong_labels_lost_{label} {lost:.3f}")
    print(f"\n{time.perf_counter() - started:.0f} s", *summary, sep="\n")


if __name__ == "__main__":
    main()
