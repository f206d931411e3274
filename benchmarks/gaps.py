"""Which method holds under which kind of gap: labels hidden as people leave them out, on VOC 2012.

    python benchmarks/gaps.py                                   # a sample, one draw: minutes on two CPU cores
    python benchmarks/gaps.py --annotations VOCdevkit --draws 3 --results gaps.jsonl      # the whole of VOC 2012

Linear heads on features of a ResNet-50, trained by `lg.compare` with every method under every kind of gap (see
``labelgap.labels.masking``). Labels of train are hidden, val and test stay complete; val selects the learning rate, the
weight decay and the epoch, and test is evaluated once, for what was selected. `iu` sees one absent label of every image
beside, `bce` every label. With a devkit that has the boxes of some images only (the sample), the others are left out.

A line of ``--results`` is one method under one gap; what is in the file is not measured again. The tables show
val / test mAP; in each column bold is the best val mean, and `auto` what the rule takes. The last table is the mean
average precision on test over the ten classes with the fewest labels in train, before any is hidden.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import labelgap as lg
from labelgap.labels.codes import PRESENT
from labelgap.training.auto import choose_method

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.harness import DEVKIT, FEATURES, append_lines, describe, parse_arguments, print_ratios, stored_lines

GAPS: dict[str, dict[str, Any]] = {
    "1 of each image": {"positives": 1},
    "salient": {"positives": "salient"},
    "random": {"positives": "random", "share": 0.686},
    "small-overlooked": {"positives": "small-overlooked", "share": 0.686},
    "rare-overlooked": {"positives": "rare-overlooked", "share": 0.686},
    "annotators": {"positives": "annotators", "known": 0.7},
    "random, 30 %": {"positives": "random", "share": 0.3},
    "small-overlooked, 30 %": {"positives": "small-overlooked", "share": 0.3},
    "rare-overlooked, 30 %": {"positives": "rare-overlooked", "share": 0.3},
    "annotators, 30 %": {"positives": "annotators", "known": 0.3},
}
"""On the whole of VOC 2012 one label of each image is 0.686 of the present labels."""
OPTIONS: dict[str, dict[str, Any]] = {
    "em": {"alpha": 0.2},
    "em-apl": {"alpha": 0.2, "beta": 0.02},
    "ll-r": {"delta_rel": 0.2},
    "ll-ct": {"delta_rel": 0.2},
    "epr": {"expected_positives": 1.5},
    "role": {"expected_positives": 1.5},
}
"""As the papers state them for VOC 2012."""
METHODS = ("iu", "an", "wan", "an-ls", "em", "em-apl", "gr", "epr", "ll-r", "ll-ct", "role")
ALL_LABELS = "bce"
GRID: dict[str, Any] = {
    "grid": "small",
    "baseline": False,
    "batch_sizes": (64,),
    "learning_rates": (2e-3, 5e-4),
    "weight_decays": (0.0, 1e-3),
}
EPOCHS = 15
RARE = 10
SEED = 1200
Line = dict[str, Any]


def load(features: Path, annotations: Path, folder: Path) -> lg.Dataset:
    """Return the images of a feature file whose boxes are known."""
    with np.load(features) as stored:
        arrays = dict(stored)
    files = {path.stem for path in annotations.rglob("*.xml")}
    sizes = [len(arrays[f"{split}_ids"]) for split in ("train", "val", "test")]
    for split in ("train", "val", "test"):
        kept = np.array([image in files for image in arrays[f"{split}_ids"].tolist()])
        for name in [name for name in arrays if name.startswith(f"{split}_")]:
            arrays[name] = arrays[name][kept]
    if sizes != [len(arrays[f"{split}_ids"]) for split in ("train", "val", "test")]:
        features = folder / "sample.npz"
        np.savez(features, **arrays)
    return lg.load("features", features, annotations=annotations).reveal()


def measure(
    data: lg.Dataset, gap: Mapping[str, Any] | None, methods: Sequence[str], draws: int, folder: Path
) -> dict[str, Line]:
    """Train methods under a gap, once for each draw of the labels, and return what val selected, by method."""
    started, rare = time.perf_counter(), rare_classes(data)
    settings: dict[str, Any] = {"seeds": draws, "observe": gap, "label_seed": SEED, "epochs": EPOCHS, **GRID}
    settings["options"] = {method: OPTIONS[method] for method in methods if method in OPTIONS}
    out = folder / f"{time.monotonic_ns()}"
    found = lg.compare(data, methods, out=out, device="cpu", quiet=True, **settings)
    seconds = round((time.perf_counter() - started) / len(methods), 1)
    lines: dict[str, Line] = {}
    for row in found.methods:
        each_class = [(seed.test or {})["average_precision"] for seed in row.seeds]
        line: Line = {"val": [seed.score for seed in row.seeds], "test": row.values}
        line |= {"rare": [statistics.fmean(values[name] for name in rare) for values in each_class]}
        line |= {"epoch": [seed.epoch for seed in row.seeds], "lr": row.lr, "weight_decay": row.weight_decay}
        lines[row.method] = line | {"options": dict(row.options), "seconds": seconds}
    return lines


def rare_classes(data: lg.Dataset) -> list[str]:
    """Return the classes with the fewest present labels in train."""
    counts = data.train.evaluation_labels.counts().present
    return [data.classes[column] for column in np.argsort(counts, kind="stable")[:RARE]]


def shown(data: lg.Dataset, gap: Mapping[str, Any], draws: int) -> tuple[list[str], str]:
    """Return what the draws show, as the cells of a row, and what `auto` takes."""
    truth, boxes = data.train.evaluation_labels, data.train.boxes
    assert boxes is not None
    tables = [data.observe(**gap, seed=SEED + draw).train.labels for draw in range(draws)]
    present = truth.values == PRESENT
    rows, columns, areas = truth.rows[present], truth.columns[present], boxes.largest_areas(truth)[present]
    rare = np.isin(columns, [data.classes.index(name) for name in rare_classes(data)])
    low, high = np.quantile(areas, (0.25, 0.75))
    kept = np.stack([table.codes_at(rows, columns) == PRESENT for table in tables])
    shares = [f"{100 * kept[:, group].mean():.0f} %" for group in (areas <= low, areas >= high, rare, ~rare)]
    empty = [int((np.diff(table.starts) == 0).sum()) for table in tables]
    counts = (", ".join(f"{number:,}" for number in numbers) for numbers in (kept.sum(axis=1).tolist(), empty))
    return [*counts, *shares], choose_method(tables[0], "linear")[0]


def cells(lines: Mapping[tuple[str, str], Line], gap: str, auto: str, keys: tuple[str, ...]) -> dict[str, str]:
    """Return the cells of one column, by method."""
    own = {method: line for (name, method), line in lines.items() if name == gap}
    best = max((method for method in own if method != "iu"), key=lambda m: statistics.fmean(own[m]["val"]), default="")
    made = {}
    for method, line in own.items():
        text = " / ".join(describe([100 * value for value in line[key]]) for key in keys)
        text = f"**{text}**" if method == best and "val" in keys else text
        made[method] = text + (" `auto`" if method == auto and "val" in keys else "")
    return made


def print_tables(data: lg.Dataset, lines: Mapping[tuple[str, str], Line], gaps: Sequence[str], draws: int) -> None:
    """Print what the draws of some gaps show, and the tables."""
    total = data.train.evaluation_labels.counts().total[0]
    facts = {gap: shown(data, GAPS[gap], draws) for gap in gaps}
    print(f"\n| gap | present labels shown of {total:,} | images without a label | shown of the smallest", end="")
    print(f" quarter | of the largest quarter | of the {RARE} rarest classes | of the others |\n|{'---|' * 7}")
    for gap, (row, _) in facts.items():
        print(f"| {gap} | {' | '.join(row)} |")
    full = lines.get(("all", ALL_LABELS))
    for title, keys in (("val / test mAP", ("val", "test")), (f"test, {RARE} rarest classes", ("rare",))):
        print(f"\n{title}", end="")
        if full is not None:
            values = " / ".join(describe([100 * value for value in full[key]]) for key in keys)
            print(f"; `bce` on all labels: {values}", end="")
        print(f"\n\n| method | {' | '.join(facts)} |\n|{'---|' * (len(facts) + 1)}")
        columns = [cells(lines, gap, auto, keys) for gap, (_, auto) in facts.items()]
        for method in METHODS:
            if any(method in column for column in columns):
                print(f"| `{method}` | {' | '.join(column.get(method, '–') for column in columns)} |")


def main() -> None:
    """Measure what is missing, and print the tables."""
    options: dict[str, Any] = {"gaps": (*GAPS,)[:6], "methods": METHODS, "draws": 1, "results": Path}
    given = parse_arguments(__doc__, features=FEATURES, annotations=DEVKIT, **options)
    known = {(line.pop("gap"), line.pop("method")): line for line in stored_lines(given.results)}
    with tempfile.TemporaryDirectory() as folder:
        data = load(given.features, given.annotations, Path(folder))
        for gap in ("all", *given.gaps):
            names = [ALL_LABELS] if gap == "all" else given.methods
            missing = [method for method in names if (gap, method) not in known]
            lines = measure(data, GAPS.get(gap), missing, given.draws, Path(folder)) if missing else {}
            for method, line in lines.items():
                known[gap, method] = line
                print(f"{gap}, {method}: {100 * statistics.fmean(line['val']):.1f} ({line['seconds']} s)", flush=True)
            append_lines(given.results, [{"gap": gap, "method": method, **line} for method, line in lines.items()])
    print_tables(data, known, given.gaps, given.draws)
    for gap in given.gaps:
        if (gap, "gr") in known and (gap, "an") in known:
            gr, an = (statistics.fmean(known[gap, method]["test"]) for method in ("gr", "an"))
            print_ratios({f"gr_to_an_{gap.replace(' ', '_').replace(',', '').replace('_%', '')}": gr / an}, 3)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
