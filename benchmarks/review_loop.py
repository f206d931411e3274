"""Does a ranking that learns from decisions find labels sooner than the fixed order of an audit, or a random one?

    python benchmarks/review_loop.py [--data voc-one,voc-tenth,digits] [--seeds 3] [--features FEATURES.npz]

The aim: for what the fixed order has found, the live order needs at least 25 % fewer decisions (a ratio of 0.75).

A simulated reviewer answers from the truth. Orders: "fixed", that of one audit; "live", the same candidates, ranked
again from the decisions after every fortieth part of them; "classifier", uncertain and diverse candidates, also ranked
again; "random". Data: VOC 2012, features of a ResNet-50, with one positive of each image or a tenth of all labels
known; the digits, features of efficientnet-lite0, with one positive. Heads are trained anew for each mAP; val selects
their epoch.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, get_args

import numpy as np
import torch

import labelgap as lg
from labelgap.audit.live import FeatureScale
from labelgap.audit.ranking import CandidateLimits
from labelgap.data.feature_vectors import FeatureVectors
from labelgap.models import create_backbone
from labelgap.studies.review_simulation import (
    DecisionOrder,
    SimulatedDecisions,
    audit_once,
    measure_labels,
    simulate_decisions,
)
from labelgap.training.features.extract import split_features
from labelgap.training.heads.configs import HeadConfig
from labelgap.training.progress import Reporter

FEATURES = Path(__file__).resolve().parents[2] / "shared" / "data" / "voc2012_resnet50_448.npz"
RANKINGS = 40
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
    names = ("train", "val", "test")
    found = split_features(
        data, names, lambda: create_backbone("efficientnet-lite0"), torch.device("cpu"), 0, Reporter()
    )
    train, val, test = (replace(data.split(each), images=FeatureVectors(found[each])) for each in names)
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


def reach(points: Sequence[int], maps: Sequence[float], value: float) -> str:
    """Return after how many decisions the mAP reaches a value, interpolated."""
    for number, (point, after) in enumerate(zip(points, maps, strict=True)):
        if after >= value:
            before, low = (points[number - 1], maps[number - 1]) if number else (point, after)
            return f"{point if after == low else before + (value - low) / (after - low) * (point - before):,.0f}"
    return f"more than {points[-1]:,}"


def compare(name: str, data: lg.Dataset, seed: int) -> dict[int, float]:
    """Simulate all orders, print their table, and return the ratio of decisions, live to fixed, at each point."""
    started, setting = time.perf_counter(), SETTINGS[name]
    hidden = hide(data, name, seed)
    truth, observed, points = hidden.train.evaluation_labels, hidden.train.labels, setting.points
    config = HeadConfig(setting.method, {}, 2e-3, epochs=10, batch_size=64)
    audit = audit_once(hidden, config, LIMITS, seed=seed)
    features = hidden.train.images
    assert isinstance(features, FeatureVectors)
    scale = FeatureScale.of(features.vectors.astype(np.float32))
    decided, seconds = {}, {}
    for order in ORDERS:
        start = time.process_time()
        every = points[-1] // RANKINGS
        decided[order] = simulate_decisions(hidden, audit, points[-1], order, every=every, features=scale)
        seconds[order] = (time.process_time() - start) / RANKINGS
    tables = [decided[order].labels(observed, point) for order in ORDERS for point in points]
    none, whole, *maps = measure_labels(hidden, [observed, truth, *tables], config, seed=seed)
    missing = truth.counts().total[0] - observed.counts().total[0]
    print(f"\n{name}, seed {seed}: {missing:,} labels are missing; a ranking takes {seconds['live']:.2f} s of one core")
    print(f"mAP without decisions {100 * none:.2f}, with all labels {100 * whole:.2f}\n")
    print("| order | decisions | found | per 100 | test mAP | mAP gained per 100 |\n|---|---|---|---|---|---|")
    curves = {order: maps[number * len(points) :][: len(points)] for number, order in enumerate(ORDERS)}
    for order, curve in curves.items():
        for point, value in zip(points, curve, strict=True):
            found = int(decided[order].found[:point][-1])
            cells = f"{point:,} | {found:,} | {100 * found / point:.1f} | {100 * value:.2f}"
            print(f"| {order} | {cells} | {10_000 * (value - none) / point:.3f} |")
    words = [f"{order} {reach((0, *points), (none, *curve), whole)}" for order, curve in curves.items()]
    print(f"\ndecisions to the mAP of all labels: {'; '.join(words)}")
    fixed, live = decided["fixed"], decided["live"]
    ratios = {point: needed(live, int(fixed.found[:point][-1])) / point for point in points}
    print("decisions for what the fixed order found, live to fixed:", end=" ")
    print(", ".join(f"{ratio:.2f} at {point:,}" for point, ratio in ratios.items()))
    print(f"{time.perf_counter() - started:.0f} s", flush=True)
    return ratios


def main() -> None:
    """Run all settings and seeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=",".join(SETTINGS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--features", type=Path, default=FEATURES)
    arguments = parser.parse_args()
    names = arguments.data.split(",")
    loaded = {name: load(name, arguments.features) for name in names}
    results: dict[str, list[dict[int, float]]] = {name: [] for name in names}
    for seed in range(arguments.seeds):
        for name in names:
            results[name].append(compare(name, loaded[name], seed + 1))
    print("\nThe aim: 0.75 or less. Mean over seeds, live to fixed:")
    for name, parts in results.items():
        for point in SETTINGS[name].points:
            mean = np.mean([ratios[point] for ratios in parts])
            print(f"ratio review_loop_{name.replace('-', '_')}_{point} {mean:.2f}")


if __name__ == "__main__":
    main()
