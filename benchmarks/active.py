"""How good is a classifier by the share of the labels that people have given? Our orders beside modAL's, from nothing.

    python benchmarks/active.py [--data voc,emotions,scene,yeast] [--archives FOLDER] [--seeds 3] [--figure FIGURE.svg]

A few random images are decided in full (20; 10 in the tables). Then a step of 1 % of all labels at a time is decided
by a person who knows the truth, up to a fifth of them, in one of these orders:

- ours, single labels: "classifier" and "missing", the aims of the review page;
- modAL's strategies for several labels (``pip install modAL-python``), its own code, which choose whole images: an
  image costs as many labels as there are classes;
- at random: labels, or whole images.

All have the same heads (``audit.live.fit_decisions``), with which they choose and are measured: mAP on the test split,
in percent of what all labels give. "voc" are the features of ``harness.FEATURES``; the others are tables of
``tabular_sets.py``, standardized, of which a third is the test split.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

import labelgap as lg
from labelgap.audit.candidates import CandidateList
from labelgap.audit.live import DecisionHeads, Decisions, FeatureScale, fit_decisions, rank_open

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks import tabular_sets
from benchmarks.harness import FEATURES, parse_arguments

STEP, LAST = 0.01, 0.2
SHARES = (0.02, 0.05, 0.1, 0.2)
OURS = ("classifier", "missing")
MODAL = ("max_loss", "mean_max_loss", "min_confidence", "avg_confidence", "max_score", "avg_score")
ORDERS = (*OURS, "random labels", "random images", *MODAL)


class Data(NamedTuple):
    """Features and complete labels, and how many images are decided first."""

    train: FeatureScale
    truth: NDArray[np.int8]
    test: NDArray[np.float32]
    test_truth: NDArray[np.int8]
    first: int


class Curve(NamedTuple):
    """mAP, from 0 to 1, after shares of all labels, and how many of them were present."""

    share: list[float]
    value: list[float]
    found: list[int]


def load(name: str, archives: Path, seed: int) -> Data:
    """Return VOC's own splits, or a table with a random third as test."""
    if name == "voc":
        with np.load(FEATURES) as file:
            train, test = (file[f"{split}_features"].astype(np.float32) for split in ("train", "test"))
            return Data(FeatureScale.of(train), file["train_truth"], test, file["test_truth"], 20)
    features, labels, _ = tabular_sets.load(name, archives)
    order = np.random.default_rng(seed).permutation(len(labels))
    tested, trained = np.split(order, [len(order) // 3])
    scaled = (features - features[trained].mean(0)) / (features[trained].std(0) + 1e-6)
    return Data(FeatureScale.of(scaled[trained]), labels[trained], scaled[tested], labels[tested], 10)


class Heads:
    """What modAL calls a classifier: the heads of all orders, with the methods that its strategies use."""

    def __init__(self, data: Data, known: NDArray[np.bool_], prior: NDArray[np.float64]) -> None:
        rows, columns = np.nonzero(known)
        present = data.truth[rows, columns] == 1
        self.prior, self.scale, self.classes_ = prior, data.train, np.arange(len(prior))
        self.heads: DecisionHeads = fit_decisions(data.train, rows, columns, prior[columns], present, known.shape[1])

    def log_odds(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the log-odds of every class."""
        inputs = (features - self.scale.mean) / self.scale.length
        return np.asarray(self.heads.slope * self.prior + self.heads.offset + inputs @ self.heads.weight.T)

    def predict_proba(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the probability of every class."""
        return np.asarray(expit(self.log_odds(features)))

    def predict(self, features: NDArray[np.float32]) -> NDArray[np.int64]:
        """Return 1 for every class that is more probable than not, else 0."""
        return (self.log_odds(features) > 0).astype(np.int64)


def next_labels(
    order: str, data: Data, known: NDArray[np.bool_], heads: Heads, count: int, rng: np.random.Generator
) -> Any:
    """Return the positions, row · K + class, of the labels to decide next; of images, all their labels."""
    classes = known.shape[1]
    if order in OURS:
        every, decided = np.arange(known.size), np.flatnonzero(known)
        lists = [
            CandidateList.of_unknown(at // classes, at % classes, prior_scores(heads, at)) for at in (every, decided)
        ]
        answers = Decisions(lists[1], data.truth.ravel()[decided].astype(np.int8))
        found = rank_open(data.train, lists[0], answers, classes, order, limit=count).candidates  # type: ignore[arg-type]
        return found.rows * classes + found.columns
    if order == "random labels":
        return rng.permutation(np.flatnonzero(~known))[:count]
    images = np.flatnonzero(~known.any(axis=1))
    if order == "random images":
        chosen = rng.permutation(images)[: count // classes]
    else:
        from modAL import multilabel  # type: ignore[import-not-found]

        strategy: Callable[..., Any] = getattr(multilabel, order)
        chosen = images[np.ravel(strategy(heads, data.train.features[images], n_instances=count // classes)[0])]
    return (chosen[:, None] * classes + np.arange(classes)).ravel()


def prior_scores(heads: Heads, at: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return what is known of labels before any is decided: how common their class is in the first images."""
    return np.asarray(expit(heads.prior)[at % len(heads.prior)], dtype=np.float32)


def simulate(order: str, data: Data, seed: int) -> Curve:
    """Decide labels in an order, and measure after every step."""
    rng, known, curve = np.random.default_rng(seed), data.truth > 1, Curve([], [], [])  # nothing is known
    first = rng.permutation(len(known))[: data.first]
    known[first] = True
    prior = logit((np.sum(data.truth[first] == 1, axis=0) + 0.5) / (data.first + 1))
    count = max(round(STEP * known.size), known.shape[1])
    while True:
        heads = Heads(data, known, prior)
        curve.share.append(known.mean())
        curve.value.append(float(np.mean(lg.average_precision(heads.log_odds(data.test), data.test_truth))))
        curve.found.append(int((data.truth[known] == 1).sum()))
        if known.mean() >= LAST:
            return curve
        known.ravel()[next_labels(order, data, known, heads, count, rng)] = True


def needed(curve: Curve, value: float) -> float:
    """Return the share of the labels with which a value is first reached; infinity where it is not."""
    return next((share for share, reached in zip(curve.share, curve.value, strict=True) if reached >= value), np.inf)


def draw(path: Path, curves: dict[str, dict[str, list[Curve]]], whole: dict[str, float]) -> None:
    """Draw, for each data set, the mean curve of every order in percent of the mAP with all labels."""
    from labelgap.reporting.style import COLOR_CYCLE, MUTED_COLOR, make_figure

    figure, axes = make_figure(width=3.3 * len(curves), height=3.2, columns=len(curves))
    for axis, (name, orders) in zip(axes, curves.items(), strict=True):
        own = {
            order: COLOR_CYCLE[number] for number, order in enumerate(order for order in orders if order not in MODAL)
        }
        for order, seeds in orders.items():
            grid = np.linspace(max(curve.share[0] for curve in seeds), LAST, 80)
            mean = np.mean([np.interp(grid, curve.share, curve.value) for curve in seeds], axis=0)
            color, _ = own.get(order, (MUTED_COLOR, ""))
            label = order if order in own else "modAL" if order == MODAL[0] else None
            axis.plot(
                100 * grid, 100 * mean / whole[name], color=color, linewidth=2 if order in OURS else 1, label=label
            )
        axis.axhline(98, color=MUTED_COLOR, linewidth=0.8, linestyle=(0, (6, 4)))
        axis.set_title(name)
        axis.set_xlabel("labels given, % of all")
    axes[0].set_ylabel("test mAP, % of that with all labels", color=MUTED_COLOR)
    figure.legend(*axes[0].get_legend_handles_labels(), frameon=False, fontsize=9, loc="outside lower center", ncols=5)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Run all orders on all data, print a table for each, and draw the figure."""
    given = {"data": "voc,emotions,scene,yeast", "archives": Path("archives"), "seeds": 3, "figure": Path}
    arguments = parse_arguments(__doc__, orders=",".join(ORDERS), **given)
    curves: dict[str, dict[str, list[Curve]]] = {}
    whole: dict[str, float] = {}
    for name in arguments.data.split(","):
        started = time.perf_counter()
        made = [load(name, arguments.archives, seed) for seed in range(arguments.seeds)]
        ceilings = [whole_value(data) for data in made]
        whole[name] = float(np.mean(ceilings))
        orders = arguments.orders.split(",")
        curves[name] = {order: [simulate(order, data, seed) for seed, data in enumerate(made)] for order in orders}
        head = " | ".join(f"{100 * share:.0f} %" for share in SHARES)
        print(
            f"\n{name}: mAP {100 * whole[name]:.2f} with all labels; percent of it by their share, {len(made)} seeds\n"
        )
        print(f"| order | {head} | labels for 98 % | presents among a tenth |\n|---|{'---|' * (len(SHARES) + 2)}")
        for order, seeds in curves[name].items():
            print(f"| {order} | {' | '.join(row(seeds, ceilings))} |", flush=True)
        print(f"\n{time.perf_counter() - started:.0f} s", flush=True)
    if arguments.figure is not None:
        draw(arguments.figure, curves, whole)


def whole_value(data: Data) -> float:
    """Return the mAP with all labels."""
    heads = Heads(
        data, np.ones(data.truth.shape, dtype=bool), logit(np.clip((data.truth == 1).mean(axis=0), 0.01, 0.99))
    )
    return float(np.mean(lg.average_precision(heads.log_odds(data.test), data.test_truth)))


def row(seeds: Sequence[Curve], ceilings: Sequence[float]) -> list[str]:
    """Return the cells of an order."""
    cells = []
    for share in SHARES:
        reached = [
            100 * np.interp(share, curve.share, curve.value) / all_ for curve, all_ in zip(seeds, ceilings, strict=True)
        ]
        cells.append(f"{np.mean(reached):.1f} ± {np.std(reached):.1f}")
    shares = [100 * needed(curve, 0.98 * all_) for curve, all_ in zip(seeds, ceilings, strict=True)]
    found = np.mean([np.interp(0.1, curve.share, curve.found) for curve in seeds])
    return [*cells, f"{np.mean(shares):.1f} %" if np.isfinite(shares).all() else "not reached", f"{found:,.0f}"]


if __name__ == "__main__":
    main()
