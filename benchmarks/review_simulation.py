"""How many reviewed labels make up for all that are missing? Train, audit, review, train again, on VOC 2012.

    python benchmarks/review_simulation.py [FEATURES.npz] [--figure FIGURE.png]

One positive of each training image is known. A simulated reviewer answers from the truth, in the order of an audit or
at random; after each round a linear head on ResNet-50 features is trained, with the learning rate of 1e-3 and 1e-4 that
has the better val mAP.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import labelgap as lg
from labelgap.training.config import RunConfig

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.harness import feature_arguments, print_ratios
from benchmarks.simulated_review import SimulationPoint, linear_config, simulate_review, train_and_measure

METHODS = ("an-ls", "gr", "em")
REVIEWS = (1000, 2000, 4000, 8000, 16000)
FIRST = 500
"""Where the axis of the figure has its zero."""
RATES = (1e-3, 1e-4)


def head_configs(method: str) -> list[RunConfig]:
    options = {"alpha": 0.2} if method == "em" else {}
    return [linear_config(method, options, rate, epochs=25, batch_size=16) for rate in RATES]


def reviews_needed(points: Sequence[SimulationPoint], test: float) -> float | None:
    """Return how many reviews bring the test mAP to a value, by linear interpolation; None if no point reaches it."""
    before: SimulationPoint | None = None
    for point in points:
        if point.test >= test:
            if before is None:
                return float(point.reviewed)
            part = (test - before.test) / (point.test - before.test)
            return round(before.reviewed + part * (point.reviewed - before.reviewed), 6)
        before = point
    return None


def draw(path: Path, curves: dict[str, dict[str, list[SimulationPoint]]], ceilings: dict[str, float]) -> None:
    """Draw mAP against reviewed labels."""
    from labelgap.reporting.style import COLOR_CYCLE, MUTED_COLOR, make_figure

    figure, (axis,) = make_figure(width=7.6, height=4.4)
    figure.patch.set(alpha=1, facecolor="white")
    for (method, curve), (color, marker) in zip(curves.items(), COLOR_CYCLE, strict=False):
        for order, points in curve.items():
            x = [max(point.reviewed, FIRST) for point in points]
            y = [100 * point.test for point in points]
            audited = order == "audit"
            label = f"{method}, {'in the order of the audit' if audited else 'at random'}"
            axis.plot(x, y, "-" if audited else ":", color=color, marker=marker, markersize=5, label=label)
        axis.axhline(100 * ceilings[method], color=color, linewidth=1, linestyle=(0, (6, 4)))
    for ceiling in sorted(set(ceilings.values())):
        names = ", ".join(method for method in ceilings if ceilings[method] == ceiling)
        axis.text(
            FIRST, 100 * ceiling + 0.07, f"all labels known ({names})", color=MUTED_COLOR, fontsize=9, va="bottom"
        )
    axis.set_xscale("log", base=2)
    axis.set_xticks([FIRST, *REVIEWS], ["0", *(f"{count:,}" for count in REVIEWS)])
    axis.minorticks_off()
    axis.set_xlabel("labels reviewed, of 86,906 unknown ones (2,091 of them present)")
    axis.set_ylabel("test mAP", color=MUTED_COLOR)
    axis.legend(frameon=False, fontsize=9, loc="lower left", ncols=1)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Run the loops, print the table, draw the figure."""
    arguments, started = feature_arguments(__doc__, figure=Path), time.perf_counter()
    data = lg.load("features", arguments.features)
    truth = data.train.truth
    assert truth is not None
    print("| method | order | reviewed | found | val mAP | test mAP |\n|---|---|---|---|---|---|", flush=True)
    curves: dict[str, dict[str, list[SimulationPoint]]] = {}
    ceilings: dict[str, float] = {}
    for method in METHODS:
        whole = train_and_measure(data, head_configs(method), truth)
        ceilings[method] = whole.test
        print(f"| {method} | all labels known | | | {100 * whole.val:.2f} | {100 * whole.test:.2f} |", flush=True)
        for order in ("audit", "random"):

            def callback(point: SimulationPoint, method: str = method, order: str = order) -> None:
                cells = [f"{point.reviewed:,}", f"{point.found:,}", f"{100 * point.val:.2f}", f"{100 * point.test:.2f}"]
                print(f"| {method} | {order} | {' | '.join(cells)} |", flush=True)

            points = simulate_review(data, head_configs(method), REVIEWS, order, callback=callback)
            curves.setdefault(method, {})[order] = points
    for method, curve in curves.items():
        needed = {order: reviews_needed(points, ceilings[method]) for order, points in curve.items()}
        words = {order: "not reached" if count is None else f"{count:,.0f}" for order, count in needed.items()}
        print(f"\n{method}: reviewed labels to the mAP of all labels: {words['audit']}; at random: {words['random']}")
    print(f"\n{time.perf_counter() - started:.0f} s")
    if arguments.figure is not None:
        draw(arguments.figure, curves, ceilings)
    for method, curve in curves.items():
        start, gap = curve["audit"][0].test, ceilings[method] - curve["audit"][0].test
        closed = {order: (points[2].test - start) / gap for order, points in curve.items()}
        share = f"{100 * closed['audit']:.0f} % of the gap closed by {REVIEWS[1]:,} reviews"
        print(f"{method}: {share}; at random {100 * closed['random']:.0f} %")
    for method, curve in curves.items():
        start, after = curve["audit"][0].test, curve["audit"][2].test
        if after > start:
            print_ratios({f"review_{method}_gap_closed": (after - start) / (ceilings[method] - start)})


if __name__ == "__main__":
    main()
