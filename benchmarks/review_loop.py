"""Does a ranking that learns from decisions find labels sooner than the fixed order of an audit, or a random one?

    python benchmarks/review_loop.py [--data voc-one,voc-tenth,digits] [--seeds 3] [--features FEATURES.npz]

The aim: for what the fixed order has found, the live order needs at least 25 % fewer decisions (a ratio of 0.75).

A simulated reviewer answers from the truth. Orders: "fixed", that of one audit; "live", the same candidates, ranked
again after every 50 decisions; "classifier", uncertain and diverse candidates, also ranked again; "random". For
comparison: "informed", the order of out-of-fold heads that have learned the truth of all other images; "perfect", where
every decision finds a label. Data: VOC 2012, features of a ResNet-50, with one positive of each image or a tenth of all
labels known; the digits, features of efficientnet-lite0, with one positive. Heads are trained anew for each mAP; val
selects their epoch.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, get_args

import numpy as np

import labelgap as lg
from labelgap.audit.candidates import CandidateLimits
from labelgap.audit.live import FeatureScale
from labelgap.data.images import FeatureVectors

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.harness import FEATURES, parse_arguments, print_ratios
from benchmarks.simulated_review import (
    DecisionOrder,
    SimulatedDecisions,
    audit_once,
    informed_order,
    linear_config,
    measure_labels,
    simulate_decisions,
)

EVERY = 50
LIMITS = CandidateLimits(random=0.25)
ORDERS: tuple[DecisionOrder, ...] = get_args(DecisionOrder)


class Setting(NamedTuple):
    """The method that ``auto`` chooses, and the numbers of decisions after which it is measured."""

    method: str
    points: tuple[int, ...]


SETTINGS = {
    "voc-one": Setting("gr", (500, 1000, 2000, 4000)),
    "voc-tenth": Setting("iu", (1000, 2000, 4000, 8000)),
    "digits": Setting("gr", (500, 1000, 2000, 4000)),
}


def load(name: str, path: Path) -> lg.Dataset:
    """Return features with full labels."""
    if name != "digits":
        return lg.load("features", path).reveal()
    data = lg.load("digits").reveal()
    found = lg.features(data, "efficientnet-lite0", device="cpu", quiet=False)
    train, val, test = (replace(data.split(name), images=FeatureVectors(each)) for name, each in found.items())
    return replace(data, train=train, val=val, test=test)


def hide(data: lg.Dataset, name: str, seed: int) -> lg.Dataset:
    """Hide labels of train, and keep them as its truth."""
    truth = data.train.evaluation_labels
    labels = truth.drop(0.9, seed=seed) if name == "voc-tenth" else truth.observe(1, 0, seed=1200 + seed)
    return replace(data, train=replace(data.train, labels=labels, truth=truth))


def needed(found: SimulatedDecisions, count: int) -> float:
    """Return how many decisions found so many labels; infinity where all of them did not."""
    numbers = found.found
    return float("inf") if not len(numbers) or numbers[-1] < count else int(np.searchsorted(numbers, count)) + 1


def reach(points: Sequence[int], maps: Sequence[float], value: float) -> float:
    """Return after how many decisions the mAP reaches a value, interpolated; infinity where it does not."""
    for number, (point, after) in enumerate(zip(points, maps, strict=True)):
        if after >= value:
            before, low = (points[number - 1], maps[number - 1]) if number else (point, after)
            return point if after == low else before + (value - low) / (after - low) * (point - before)
    return float("inf")


@dataclass(frozen=True)
class Outcome:
    """One seed of a setting; lists are over its points, and those of mAP, in percent, start without decisions."""

    found: dict[DecisionOrder, list[int]]
    maps: dict[DecisionOrder, list[float]]
    whole: float
    ratios: dict[str, list[float]]

    def reached(self, order: DecisionOrder, points: Sequence[int]) -> float:
        """Return after how many decisions an order reaches the mAP of all labels."""
        return reach((0, *points), self.maps[order], self.whole)


def compare(name: str, data: lg.Dataset, seed: int) -> Outcome:
    """Simulate all orders, measure them, and print a line for each."""
    started, setting = time.perf_counter(), SETTINGS[name]
    hidden = hide(data, name, seed)
    truth, observed, points = hidden.train.evaluation_labels, hidden.train.labels, setting.points
    config = linear_config(setting.method, {}, 2e-3, epochs=10, batch_size=64)
    audit = audit_once(hidden, config, LIMITS, seed=seed)
    features = hidden.train.images
    assert isinstance(features, FeatureVectors)
    scale = FeatureScale.of(features.vectors.astype(np.float32))
    decided, start = {}, time.process_time()
    for order in ORDERS:
        decided[order] = simulate_decisions(hidden, audit, points[-1], order, every=EVERY, features=scale)
    seconds = (time.process_time() - start) / (2 * points[-1] / EVERY)
    informed = informed_order(hidden, audit, config.model_copy(update={"method": "bce"}), seed=seed)
    best = simulate_decisions(hidden, informed, points[-1], "fixed")
    tables = [decided[order].labels(observed, point) for order in ORDERS for point in points]
    none, whole, *maps = (
        100 * value for value in measure_labels(hidden, [observed, truth, *tables], config, seed=seed)
    )
    curves = {order: [none, *maps[number * len(points) :][: len(points)]] for number, order in enumerate(ORDERS)}
    found = {order: [int(part.found[point - 1]) for point in points] for order, part in decided.items()}
    ratios = {
        "live": [needed(decided["live"], count) / point for count, point in zip(found["fixed"], points, strict=True)],
        "informed": [needed(best, count) / point for count, point in zip(found["fixed"], points, strict=True)],
        "perfect": [count / point for count, point in zip(found["fixed"], points, strict=True)],
    }
    missing = truth.counts().total[0] - observed.counts().total[0]
    print(f"\n{name}, seed {seed}: {missing:,} labels are missing; a ranking takes {seconds:.2f} s of one core")
    for order in ORDERS:
        print(f"{order}: found {found[order]}, mAP {[round(value, 2) for value in curves[order]]} of {whole:.2f}")
    for other, values in ratios.items():
        print(f"decisions for what the fixed order found, {other} to fixed: {[round(value, 3) for value in values]}")
    print(f"{time.perf_counter() - started:.0f} s", flush=True)
    return Outcome(found, curves, whole, ratios)


def spread(values: Sequence[float], digits: int) -> str:
    """Return mean ± standard deviation of seeds, or their values where one is not finite."""
    if not np.isfinite(values).all():
        return ", ".join(f"{value:,.{digits}f}" if np.isfinite(value) else "never" for value in values)
    deviation = np.std(values, ddof=1) if len(values) > 1 else 0.0
    return f"{np.mean(values):,.{digits}f} ± {deviation:.{digits}f}"


def summarize(name: str, seeds: Sequence[Outcome]) -> None:
    """Print mean and spread over the seeds."""
    points = SETTINGS[name].points
    head = " | ".join(f"{point:,}" for point in points)
    rows: list[tuple[str, list[str]]] = []
    for order in ORDERS:
        per_100 = [[100 * seed.found[order][at] / points[at] for seed in seeds] for at in range(len(points))]
        rows.append((f"{order}: found per 100", [spread(values, 1) for values in per_100]))
    for order in ORDERS:
        maps = [[seed.maps[order][at + 1] for seed in seeds] for at in range(len(points))]
        rows.append((f"{order}: test mAP", [spread(values, 2) for values in maps]))
        gains = [
            [100 * (seed.maps[order][at + 1] - seed.maps[order][0]) / points[at] for seed in seeds]
            for at in range(len(points))
        ]
        rows.append((f"{order}: mAP gained per 100", [spread(values, 3) for values in gains]))
    for other in ("live", "informed", "perfect"):
        ratios = [[seed.ratios[other][at] for seed in seeds] for at in range(len(points))]
        rows.append((f"decisions, {other} to fixed", [spread(values, 2) for values in ratios]))
    print(f"\n| {name}, {len(seeds)} seeds | {head} |\n|---|{'---|' * len(points)}")
    print("\n".join(f"| {title} | {' | '.join(cells)} |" for title, cells in rows))
    none, whole = [seed.maps["fixed"][0] for seed in seeds], [seed.whole for seed in seeds]
    print(f"\nmAP without decisions {spread(none, 2)}, with all labels {spread(whole, 2)}; decisions to the latter:")
    for order in ORDERS:
        print(f"{order}: {spread([seed.reached(order, points) for seed in seeds], 0)}")


def main() -> None:
    """Run all settings and seeds."""
    arguments = parse_arguments(__doc__, data=",".join(SETTINGS), seeds=3, features=FEATURES)
    names = arguments.data.split(",")
    loaded = {name: load(name, arguments.features) for name in names}
    results: dict[str, list[Outcome]] = {name: [] for name in names}
    for seed in range(arguments.seeds):
        for name in names:
            results[name].append(compare(name, loaded[name], seed + 1))
    for name, seeds in results.items():
        summarize(name, seeds)
    print("\nThe aim: 0.75 or less. Mean over seeds, live to fixed:")
    for name, seeds in results.items():
        for at, point in enumerate(SETTINGS[name].points):
            mean = float(np.mean([seed.ratios["live"][at] for seed in seeds]))
            print_ratios({f"review_loop_{name.replace('-', '_')}_{point}": mean})


if __name__ == "__main__":
    main()
