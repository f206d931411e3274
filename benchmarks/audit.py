"""Which order finds missing labels soonest? Every method's audit on VOC 2012, against plain scores and cleanlab.

    python benchmarks/audit.py [FEATURES.npz] [--variants]

Of every training image one positive is known (the papers' draw); the others, which are known to us, are to be found
among all unknown labels. Scores come from five folds of linear heads on ResNet-50 features. Differences come with an
interval of a paired bootstrap over images, and "ahead" is said only where it excludes zero. ``--variants`` shows on val
images, which nothing else here looks at, how the scores were chosen.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit

import labelgap as lg
from labelgap.audit.calibration import ScoreSample, fit_calibration, platt_line, sample_scores
from labelgap.audit.candidates import MAX_SAMPLED_SCORES, CandidateLimits, rank_candidates
from labelgap.audit.scorers import HeadScorer, train_head_scorers
from labelgap.core.seeds import numpy_generator
from labelgap.labels import PRESENT, UNKNOWN
from labelgap.metrics.bootstrap import WeightedRanking
from labelgap.training.folds import assign_folds, equal_row_groups
from labelgap.training.selection import choose_selection

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.harness import feature_arguments, print_ratios
from benchmarks.simulated_review import linear_config

METHODS: dict[str, tuple[dict[str, Any], float]] = {
    "an": ({}, 1e-3),
    "an-ls": ({}, 1e-4),
    "wan": ({}, 1e-3),
    "epr": ({"expected_positives": 1.5}, 1e-3),
    "role": ({"expected_positives": 1.5}, 1e-3),
    "em": ({"alpha": 0.2}, 1e-4),
    "em-apl": ({"alpha": 0.2, "beta": 0.02}, 1e-4),
    "ll-r": ({"delta_rel": 0.2}, 1e-3),
    "ll-ct": ({"delta_rel": 0.2}, 1e-3),
    "gr": ({}, 1e-4),
}
"""Options are the papers' for VOC; of the rates 1e-3 and 1e-4 the one with the better val mAP (docs/voc2012.md)."""
DRAWS = 500
ENSEMBLE = ("em", "role", "ll-r")
BEST_METHOD = "em"
AGGREGATIONS: dict[str, dict[str, Any]] = {
    "images by exponential moving average (alpha 0.8)": {"method": "exponential_moving_average", "alpha": 0.8},
    "images by softmin (temperature 0.1)": {"method": "softmin", "temperature": 0.1},
}

Matrix = NDArray[np.floating[Any]]
Measure = Callable[[NDArray[np.bool_], NDArray[np.int64]], float]
"""From hits in the order of review, and how often each counts, to a number."""


class Unknown:
    """The unknown labels of a split, and which of them are there."""

    def __init__(self, split: lg.Split) -> None:
        assert split.truth is not None
        self.mask = split.labels.to_dense() == UNKNOWN
        self.hits = split.truth.to_dense()[self.mask] == PRESENT
        self.images = np.nonzero(self.mask)[0]
        self.missing = int(self.hits.sum())

    def order(self, scores: Matrix) -> NDArray[np.int64]:
        """Return the unknown labels, the highest score first."""
        return np.argsort(-scores[self.mask], kind="stable")

    def precision(self, scores: Matrix) -> float:
        """Return the average precision over all unknown labels."""
        return ranked_average_precision(self.hits[self.order(scores)], np.ones(self.hits.size, dtype=np.int64))


def precision_at_k(hits: NDArray[np.bool_], k: int, times: NDArray[np.int64]) -> float:
    """Return the share of hits among the first ``k`` candidates, each of which counts so many times."""
    return float(np.repeat(hits, times)[:k].mean())


def recall_at_k(hits: NDArray[np.bool_], k: float, times: NDArray[np.int64]) -> float:
    """Return which share of all hits lies among the first ``k`` candidates."""
    repeated = np.repeat(hits, times)
    return float(repeated[: round(k)].sum() / max(int(repeated.sum()), 1))


def ranked_average_precision(hits: NDArray[np.bool_], times: NDArray[np.int64]) -> float:
    """Return the average precision of candidates in the order of a ranking."""
    ranking = WeightedRanking(-np.arange(len(hits), dtype=np.float64), hits.astype(np.int8))
    return float(ranking(times[:, None].astype(np.float32))[0])


def paired_bootstrap(
    unknown: Unknown, ours: NDArray[np.int64], theirs: NDArray[np.int64], measures: Mapping[str, Measure]
) -> dict[str, tuple[float, float, float]]:
    """Return how much better one order is than another, with the ends of a 95 % interval over resampled images."""
    hits, images = unknown.hits, unknown.images
    count, random = int(images.max()) + 1, numpy_generator(0, "bootstrap")

    def differences(times: NDArray[np.int64]) -> list[float]:
        pairs = [[measure(hits[o], times[images[o]]) for o in (ours, theirs)] for measure in measures.values()]
        return [mine - other for mine, other in pairs]

    draws = (np.bincount(random.integers(count, size=count), minlength=count) for _ in range(DRAWS))
    low, high = np.quantile([differences(times) for times in draws], [0.025, 0.975], axis=0).tolist()
    once = differences(np.ones(count, dtype=np.int64))
    return dict(zip(measures, zip(once, low, high, strict=True), strict=True))


def open_data(path: Path) -> lg.Dataset:
    return lg.load("features", path).observe(positives=1, negatives=0, seed=1200, splits=("train", "val"))


def vectors(split: lg.Split | None) -> NDArray[Any]:
    found: NDArray[Any] = split.images.vectors  # type: ignore[union-attr]
    return found


def train_scorers(data: lg.Dataset, labels: lg.LabelTable, *methods: str) -> list[HeadScorer]:
    """Train out-of-fold heads of each method."""
    assert data.val is not None
    features = {"train": vectors(data.train), "val": vectors(data.val)}
    fold = assign_folds(labels, 5, groups=equal_row_groups(features["train"]))
    selection = choose_selection(data.val.labels, data.val.truth, "clean")
    configs = [linear_config(name, *METHODS[name], epochs=25, batch_size=16) for name in methods]
    return train_head_scorers(features, labels, fold, selection, configs, device=torch.device("cpu"))


def whole(scorer: HeadScorer, split: lg.Split) -> NDArray[np.float32]:
    return scorer.logits(split.name, slice(0, len(split)))


def audited(data: lg.Dataset, scorers: list[HeadScorer]) -> tuple[Matrix, str]:
    """Return the log-odds of all labels of train, and how many are estimated to be missing."""
    ranking = rank_candidates({"train": data.train.labels}, scorers, CandidateLimits(random=0))
    assert ranking.estimate is not None
    logits = np.stack([whole(scorer, data.train) for scorer in scorers])
    return ranking.calibration.log_odds(logits), f"{ranking.estimate.missing:,.0f}"


def cleanlab_orders(scores: Matrix, labels: lg.LabelTable) -> dict[str, Matrix]:
    """Return scores that order labels as cleanlab does: the lowest label quality first.

    Where it ranks images, the worst label of each image comes first, then the second of each, and so on.
    """
    from cleanlab.multilabel_classification import get_label_quality_scores
    from cleanlab.multilabel_classification.rank import get_label_quality_scores_per_class

    probabilities = np.clip(scores.astype(np.float64), 1e-12, 1 - 1e-12)
    present = [np.flatnonzero(row == PRESENT).tolist() for row in labels.to_dense()]
    by_label = get_label_quality_scores_per_class(present, probabilities)
    found = {
        "labels, no aggregation (self-confidence)": -by_label,
        "labels, no aggregation, adjusted for classes": -get_label_quality_scores_per_class(
            present, probabilities, adjust_pred_probs=True
        ),
    }
    unknown = np.where(labels.to_dense() == UNKNOWN, by_label, np.inf)
    level = np.argsort(np.argsort(unknown, axis=1, kind="stable"), axis=1, kind="stable")
    for name, aggregation in AGGREGATIONS.items():
        images = get_label_quality_scores(present, probabilities, aggregator_kwargs=aggregation)
        place = np.argsort(np.argsort(images, kind="stable"), kind="stable")
        found[name] = -(level * len(place) + place[:, None])
    return found


def measures(unknown: Unknown) -> dict[str, Measure]:
    return {
        "AP": ranked_average_precision,
        "P@100": lambda hits, times: precision_at_k(hits, 100, times),
        "P@1000": lambda hits, times: precision_at_k(hits, 1000, times),
        "found 1x": lambda hits, times: recall_at_k(hits, float(times[hits].sum()), times),
        "found 2x": lambda hits, times: recall_at_k(hits, 2 * float(times[hits].sum()), times),
    }


def row(name: str, unknown: Unknown, order: NDArray[np.int64], estimate: str = "") -> str:
    hits, once = unknown.hits[order], np.ones(len(order), dtype=np.int64)
    values = " | ".join(f"{100 * measure(hits, once):.1f}" for measure in measures(unknown).values())
    return f"| {name} | {values} | {estimate} |"


def compared(unknown: Unknown, orders: Mapping[str, NDArray[np.int64]], pairs: list[tuple[str, str]]) -> list[str]:
    """Return the table of differences."""
    wanted = {name: measure for name, measure in measures(unknown).items() if name in ("AP", "found 1x")}
    lines = ["| | against | AP | found 1x | |", "|---|---|---|---|---|"]
    for ours, theirs in pairs:
        found = paired_bootstrap(unknown, orders[ours], orders[theirs], wanted)
        cells = [f"{100 * value:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]" for value, low, high in found.values()]
        ahead = [name for name, (_, low, _) in found.items() if low > 0]
        lines.append(f"| {ours} | {theirs} | {' | '.join(cells)} | {'ahead: ' + ', '.join(ahead) if ahead else ''} |")
    return lines


def variants(data: lg.Dataset, scorers: Mapping[str, HeadScorer]) -> list[str]:
    """Return the average precision on val of ways to make scores, which are fitted on train."""
    assert data.val is not None
    unknown, table = Unknown(data.val), data.train.labels
    rows: dict[str, list[float]] = {}
    for scorer in scorers.values():
        sample = sample_scores({"train": table}, [scorer], 0, MAX_SAMPLED_SCORES).map(lambda logits: logits[0])
        logits = whole(scorer, data.val)
        for name, scores in score_variants(sample, logits).items():
            rows.setdefault(name, []).append(100 * unknown.precision(scores))
    head = ["| AP on val | mean | " + " | ".join(scorers) + " |", "|---" * (len(scorers) + 2) + "|"]
    cells = {name: " | ".join(f"{value:.1f}" for value in (np.mean(values), *values)) for name, values in rows.items()}
    pooled = [f"{name} | {100 * unknown.precision(scores):.1f}" for name, scores in pools(data, scorers).items()]
    return [*head, *(f"| {name} | {text} |" for name, text in cells.items()), "", *(f"| {line} |" for line in pooled)]


def score_variants(sample: ScoreSample, logits: Matrix) -> dict[str, Matrix]:
    """Return scores by name: one line for all classes or one for each, and offsets of several kinds."""
    classes = sample.unknown.shape[-1]
    present, column = sample.known[sample.is_present], sample.column[sample.is_present]
    one = np.array(platt_line(sample))
    odds = one[0] * logits + one[1]
    each = np.array([platt_line(of_class(sample, k)) for k in range(classes)])
    own = each[:, 0] * logits + each[:, 1]
    known = np.bincount(column, minlength=classes)
    calibration = fit_calibration(sample.map(lambda values: values[None]))
    held_out = expit(each[column, 0] * present + each[column, 1])
    labelled = np.bincount(column, weights=held_out, minlength=classes) / known
    elkan = np.log((1 - labelled) / labelled)
    by_class = [np.sort(present[column == k]) for k in range(classes)]
    ranks = np.stack([np.searchsorted(each, logits[:, k]) / len(each) for k, each in enumerate(by_class)], axis=1)
    return {
        "logits as they are": logits,
        "a line for each class (Platt)": own,
        "… and Elkan-Noto's offset": own + elkan,
        "one line, Elkan-Noto's offset": odds + elkan,
        "one line, half of Elkan-Noto's offset": odds + 0.5 * elkan,
        "one line, offsets of the label model: ours": calibration.log_odds(logits[None]),
        "place among the class's known labels": ranks,
    }


def of_class(sample: ScoreSample, number: int) -> ScoreSample:
    mine = np.flatnonzero(sample.is_present & (sample.column == number))
    known = sample.known[mine], np.zeros_like(mine), sample.is_present[mine], sample.others[mine]
    return ScoreSample(*known, sample.unknown[:, number : number + 1], sample.unknown_others)


def pools(data: lg.Dataset, scorers: Mapping[str, HeadScorer]) -> dict[str, Matrix]:
    """Return the scores of three runs on val, put together in several ways."""
    assert data.val is not None
    odds = []
    for scorer in (scorers[name] for name in ENSEMBLE):
        slope, shift = platt_line(
            sample_scores({"train": data.train.labels}, [scorer], 0, MAX_SAMPLED_SCORES).map(lambda logits: logits[0])
        )
        odds.append(slope * whole(scorer, data.val) + shift)
    ranks = [np.argsort(np.argsort(each, axis=None), kind="stable").reshape(each.shape) for each in odds]
    return {
        f"{' + '.join(ENSEMBLE)}, mean log-odds": np.mean(odds, axis=0),
        "mean probability": np.mean([expit(each) for each in odds], axis=0),
        "mean rank": np.mean(ranks, axis=0),
    }


def main() -> None:
    """Train, measure, compare, print."""
    arguments = feature_arguments(__doc__, variants=False)
    started = time.perf_counter()
    data = open_data(arguments.features)
    unknown = Unknown(data.train)
    trained = train_scorers(data, data.train.labels, *METHODS)
    scorers = dict(zip(METHODS, trained, strict=True))
    print(f"{len(METHODS)} methods, 5 folds: {time.perf_counter() - started:.0f} s", flush=True)
    if arguments.variants:
        print("\n".join(variants(data, scorers)))
        return
    print(f"{unknown.missing:,} labels are missing among {len(unknown.hits):,} unknown ones\n")
    print("| order | AP | P@100 | P@1000 | found 1x | found 2x | estimated missing |\n|---|---|---|---|---|---|---|")
    scores: dict[str, Matrix] = {"random": np.random.default_rng(0).random(unknown.mask.shape)}
    estimates: dict[str, str] = {}
    for name in METHODS:
        scores[name], estimates[name] = audited(data, [scorers[name]])
    both = " + ".join(ENSEMBLE)
    scores[both], estimates[both] = audited(data, [scorers[name] for name in ENSEMBLE])
    scores["plain AN scores"] = whole(scorers["an"], data.train)
    scores[f"plain {BEST_METHOD} scores"] = whole(scorers[BEST_METHOD], data.train)
    sources = {"plain AN": expit(scores["plain AN scores"]), f"our {BEST_METHOD}": expit(scores[BEST_METHOD])}
    theirs: dict[str, list[str]] = {}
    for source, probabilities in sources.items():
        for name, values in cleanlab_orders(probabilities, data.train.labels).items():
            scores[f"cleanlab on {source}: {name}"] = values
            theirs.setdefault(source, []).append(f"cleanlab on {source}: {name}")
    orders = {name: unknown.order(values) for name, values in scores.items()}
    for name, order in orders.items():
        print(row(name, unknown, order, estimates.get(name, "")))
    best = {source: max(names, key=lambda name: unknown.precision(scores[name])) for source, names in theirs.items()}
    mine = [*METHODS, both]
    pairs = [(name, other) for name in mine for other in ("random", "plain AN scores")]
    pairs += [(BEST_METHOD, f"plain {BEST_METHOD} scores"), (both, BEST_METHOD)]
    pairs += [(BEST_METHOD, name) for names in theirs.values() for name in names]
    print("\n" + "\n".join(compared(unknown, orders, pairs)))
    print(f"\n{time.perf_counter() - started:.0f} s")
    found = {
        name: recall_at_k(unknown.hits[orders[name]], unknown.missing, np.ones(unknown.hits.size, dtype=np.int64))
        for name in orders
    }
    others = {"random": "random", "plain_an": "plain AN scores", "cleanlab_on_an": best["plain AN"]}
    ours = found[BEST_METHOD]
    print_ratios({f"audit_{BEST_METHOD}_found_1x_vs_{label}": ours / found[other] for label, other in others.items()})


if __name__ == "__main__":
    main()
