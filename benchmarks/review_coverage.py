"""Do the 95 % intervals of what is left hold the truth, with a fixed order and with one that learns?

    python benchmarks/review_coverage.py [--data voc-one,voc-tenth,digits] [--orders fixed,live] [--repetitions 200]
                                        [--features FEATURES.npz]

The aim: 93 % of the intervals or more hold the truth, of classes and of all, at every stopping point; and they are no
wider than counting the random answers requires.

A simulated reviewer answers from the truth. As on the page, a candidate in ten is the first open one of the random draw
of its class; after every 20 decisions the reviewer turns to the class that promises most. "live" ranks what is open
again after every 100 decisions, as the page does, on the first 64 principal components of the features: a repetition
must be cheap. A repetition has a random draw and random slots of its own; every third one has the same known labels,
folds and audit (three label seeds). Audits are those of benchmarks/review_loop.py.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit

import labelgap as lg
from labelgap.audit.candidates import CandidateLimits
from labelgap.audit.live import FeatureScale, fit_decisions
from labelgap.data.images import FeatureVectors
from labelgap.labels.codes import PRESENT, UNKNOWN
from labelgap.review.estimates import AuditCounts, ReviewedLabels, count_random, estimate_review

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.harness import FEATURES, parse_arguments, print_ratios
from benchmarks.review_loop import SETTINGS, hide, load
from benchmarks.simulated_review import audit_once, linear_config

STOPS = (100, 500, 2000)
LABEL_SEEDS = (4, 5, 6)
"""The method and its constants were chosen on the label seeds 1 to 3."""
PAGE, RANDOM_SLOTS, RANKING = 20, 2, 100
PER_CLASS, DRAWN, COMPONENTS = 2000, 0.1, 64
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


class Album(NamedTuple):
    """The truth, which labels are unknown, and their log-odds by the audit, ``(N, K)`` each; estimates ``(K,)``."""

    truth: Mask
    unknown: Mask
    log_odds: Floats
    expected: Floats
    spread: tuple[float, float]
    scale: FeatureScale

    @property
    def listed(self) -> Mask:
        """The most probable unknown labels of each class."""
        rank = np.argsort(np.argsort(-self.log_odds, axis=0, kind="stable"), axis=0)
        return self.unknown & (rank < PER_CLASS)


def make_album(data: lg.Dataset, name: str, seed: int) -> Album:
    """Hide labels, and audit."""
    hidden = hide(data, name, seed)
    config = linear_config(SETTINGS[name].method, {}, 2e-3, epochs=10, batch_size=64)
    audit = audit_once(hidden, config, CandidateLimits(10**8, 10**8, 0.0), seed=seed)
    unknown = hidden.train.labels.to_dense() == UNKNOWN
    log_odds = np.full(unknown.shape, -np.inf)
    score = np.clip(audit.missing.scores.astype(np.float64), 1e-7, 1 - 1e-7)
    log_odds[audit.missing.rows, audit.missing.columns] = np.log(score / (1 - score))
    assert isinstance(hidden.train.images, FeatureVectors) and audit.estimate is not None
    features = torch.from_numpy(np.asarray(hidden.train.images.vectors, dtype=np.float32))
    torch.manual_seed(0)
    left, length, _ = torch.pca_lowrank(features, COMPONENTS)
    truth = hidden.train.evaluation_labels.to_dense() == PRESENT
    scale = FeatureScale.of((left * length).numpy())
    return Album(truth, unknown, log_odds, audit.estimate.by_class, audit.estimate.spread, scale)


class Simulation:
    """A review of an album.

    Attributes:
        places: decided labels in their order, ``row · K + class``.
        random: which of these were asked as random ones.
        odds: ``(N, K)`` log-odds by the newest ranking.
    """

    def __init__(self, album: Album, listed: Mask, is_live: bool, random: np.random.Generator) -> None:
        self.album, self.listed, self.is_live, self.generator = album, listed, is_live, random
        self.open, self.odds = album.unknown.copy(), album.log_odds
        self.places: list[int] = []
        self.random: list[bool] = []
        self.classes = album.truth.shape[1]
        unknown = np.flatnonzero(album.unknown)
        count = round(DRAWN * min(PER_CLASS * self.classes, len(unknown)))
        drawn = random.permutation(unknown)[:count]
        self.draws = [drawn[drawn % self.classes == number].tolist() for number in range(self.classes)]
        self.finds = np.full((2, self.classes), 3.0)
        """Found and promised labels of each class, and three more of each."""
        self.promised = self._promise(range(self.classes))

    def run_to(self, count: int) -> None:
        """Decide until so many labels are decided."""
        while len(self.places) < count:
            ratio = 1.0 if self.is_live else self.finds[0] / self.finds[1]
            number = int((self.promised * ratio).argmax())
            self._decide_page(number, np.argsort(-self._ranked(number), kind="stable")[:PAGE])
            if self.is_live and len(self.places) % RANKING == 0:
                self._rank()
                self.promised = self._promise(range(self.classes))
            self.promised[number] = self._promise([number])[0]

    def _ranked(self, number: int) -> Floats:
        return np.where(self.listed[:, number] & self.open[:, number], self.odds[:, number], -np.inf)

    def _promise(self, numbers: Iterable[int]) -> Floats:
        """Return how many labels the next page of each class is expected to hold."""
        return np.array([expit(-np.partition(-self._ranked(number), PAGE)[:PAGE]).sum() for number in numbers])

    def _decide_page(self, number: int, ranked: NDArray[np.int64]) -> None:
        part = PAGE // RANDOM_SLOTS
        slots = [part * each + int(self.generator.integers(part)) for each in range(RANDOM_SLOTS)]
        following = iter(ranked.tolist())
        for slot in range(PAGE):
            draw = self.draws[number]
            while draw and not self.open.flat[draw[0]]:
                draw.pop(0)
            is_random = slot in slots and bool(draw)
            row = draw[0] // self.classes if is_random else next(each for each in following if self.open[each, number])
            self.open[row, number] = False
            self.places.append(row * self.classes + number)
            self.random.append(is_random)
            if not is_random:
                self.finds[:, number] += self.album.truth[row, number], expit(self.album.log_odds[row, number])

    def _rank(self) -> None:
        rows, columns = np.divmod(np.array(self.places), self.classes)
        album = self.album
        audited, present = album.log_odds[rows, columns], album.truth[rows, columns]
        heads = fit_decisions(album.scale, rows, columns, audited, present, self.classes)
        moved = album.scale.rows(np.arange(len(album.truth))) @ heads.weight.T
        self.odds = heads.slope * album.log_odds + heads.offset + moved

    def reviewed(self) -> ReviewedLabels:
        """Return the labels as an estimate takes them."""
        decided, order = ~self.open & self.album.unknown, np.zeros(self.open.size, dtype=np.int64)
        order[self.places], asked = np.arange(len(self.places)), np.zeros(self.open.size, dtype=np.bool_)
        asked[self.places] = self.random
        candidates = (self.listed | decided).ravel()
        candidates[[place for draw in self.draws for place in draw]] = True
        places = np.flatnonzero(candidates)
        value = np.where(decided, self.album.truth, UNKNOWN).astype(np.int8).flat[places]
        score, unknown = expit(self.album.log_odds.flat[places]), self.album.unknown.sum(axis=0)
        parts = (places % self.classes, score, decided.flat[places], value, asked[places], order[places])
        return ReviewedLabels(*parts, AuditCounts(unknown, self.album.expected, self.album.spread))


class Outcome(NamedTuple):
    """Whether intervals hold the truth, and their widths, relative to those of counting."""

    total: bool
    width: float
    error: float
    classes: list[bool]
    widths: list[float]
    fewer: list[bool]


def check(simulation: Simulation) -> Outcome:
    """Compare the estimates with the truth."""
    labels = simulation.reviewed()
    made = estimate_review(labels)
    left = (simulation.album.truth & simulation.open).sum(axis=0).tolist()
    assert made.total is not None
    total = made.total
    counted = [count_random(labels, number) for number in range(len(left))]
    squares = sum((each.high - each.low) ** 2 for each in counted)
    classes, widths, fewer = list[bool](), list[float](), list[bool]()
    for each, count, true in zip(made.by_class, counted, left, strict=True):
        if each is not None and each.undecided:
            (classes if each.has_interval else fewer).append(each.low <= true <= each.high)
            if each.has_interval:
                widths.append((each.high - each.low) / max(count.high - count.low, 1))
    holds = total.low <= sum(left) <= total.high
    error = total.still_missing / max(sum(left), 1) - 1
    return Outcome(holds, (total.high - total.low) / squares**0.5, error, classes, widths, fewer)


def describe(name: str, order: str, stop: int, outcomes: list[Outcome]) -> tuple[str, float]:
    """Return a row of the table, and the smallest coverage in it."""
    totals = [each.total for each in outcomes]
    classes, fewer, widths = (
        [value for each in outcomes for value in getattr(each, part)] for part in ("classes", "fewer", "widths")
    )
    shares = [np.mean(totals), *([np.mean(classes)] if len(classes) >= 30 else [])]
    cells = [
        f"{100 * np.mean(totals):.1f} %",
        f"{100 * np.mean(classes):.1f} % of {len(classes):,}" if classes else "none yet",
        f"{100 * np.mean(fewer):.1f} % of {len(fewer):,}" if fewer else "",
        f"{np.mean([each.width for each in outcomes]):.2f}",
        f"{np.mean(widths):.2f}, {np.max(widths):.2f}" if widths else "",
        f"{100 * np.median(np.abs([each.error for each in outcomes])):.0f} %",
    ]
    return f"| {name} | {order} | {stop:,} | {' | '.join(cells)} |", float(min(shares))


def main() -> None:
    """Simulate, and print a table."""
    names = ",".join(SETTINGS)
    arguments = parse_arguments(__doc__, data=names, orders="fixed,live", repetitions=200, features=FEATURES)
    started, lowest = time.perf_counter(), 1.0
    head = "data | order | decisions | all classes | classes | classes, fewer than 10 random | width"
    print(f"| {head} | of classes: mean, largest | error of the total |\n" + "|---" * 9 + "|")
    for name in arguments.data.split(","):
        data = load(name, arguments.features)
        albums = [make_album(data, name, seed) for seed in LABEL_SEEDS]
        listed = [album.listed for album in albums]
        for order in arguments.orders.split(","):
            outcomes: dict[int, list[Outcome]] = {stop: [] for stop in STOPS}
            for repetition in range(arguments.repetitions):
                number = repetition % len(albums)
                random = np.random.default_rng([repetition, len(name)])
                simulation = Simulation(albums[number], listed[number], order == "live", random)
                for stop in STOPS:
                    simulation.run_to(stop)
                    outcomes[stop].append(check(simulation))
            for stop, parts in outcomes.items():
                row, share = describe(name, order, stop, parts)
                lowest = min(lowest, share)
                print(row, flush=True)
    print(f"\nlowest coverage {100 * lowest:.1f} %; {time.perf_counter() - started:.0f} s")
    print_ratios({"review_coverage_lowest": lowest}, 3)


if __name__ == "__main__":
    main()
