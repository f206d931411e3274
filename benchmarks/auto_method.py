"""Which method is best for which known labels, on several kinds of data: the evidence behind ``method="auto"``.

    python benchmarks/auto_method.py --tables music.csv --results auto.jsonl                   # linear heads
    python benchmarks/auto_method.py --data digits --protocol end-to-end --results auto.jsonl  # the whole network

Data: "voc", features of a ResNet-50 of all of VOC 2012; "photos", a sample of its photos through efficientnet-lite0;
"digits", the embedded images; "cells"; and tables of numbers, in which each column of zeros and ones is a class and all
others are features. Labels of train are hidden as ``PATTERNS`` says, three times; val and test stay complete. Every
method trains linear heads at several learning rates and weight decays (`lg.compare`), and val selects among them; end-
to-end it trains once, with the defaults. Test is evaluated once, for what val selected. A line of ``--results`` is one
method on one draw: what is in the file is not measured again. The Markdown tables of all lines are printed at the end.

In a table, `auto` marks what the rule takes, bold the best val mean, and * the simplest method (in the order of
``METHODS``) whose val mean is behind the best by no more than both standard deviations over the draws, combined.

"cells" is made of scikit-learn's bundled breast cancer data: 20 features are the means and the errors of ten
measurements of cell nuclei; the classes are "malignant" and, for each measurement, whether its worst value is among the
highest quarter. The table of docs/results/auto.md is the emotions of 593 pieces of music (Trohidis et al., ISMIR 2008):

    pip download --no-deps --only-binary :all: --python-version 3.7 --abi cp37m --implementation cp \\
        --platform manylinux1_x86_64 scikit-multiflow==0.2.0 && unzip -j scikit_multiflow-0.2.0-*.whl '*/music.csv'
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer

import labelgap as lg
from labelgap.core.seeds import numpy_generator
from labelgap.data.feature_vectors import FeatureVectors
from labelgap.labels import LabelTable
from labelgap.training.config.auto_method import choose_method

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
METHODS = ("iu", "an", "wan", "an-ls", "em", "gr", "epr", "ll-r", "ll-ct", "role")
"""The simplest first: no unknown labels, a weight, a target, a shape of the loss; a number that must be known; a
schedule over the epochs; a state for every label."""
DRAWS = 3
SOURCES = ("voc", "photos", "digits", "cells")
GRID = {"learning_rates": (1e-2, 1e-3, 1e-4), "weight_decays": (0.0, 1e-4, 1e-3)}
LARGE = {"batch_sizes": (64,), "learning_rates": (2e-3, 2e-4), "weight_decays": (0.0, 1e-3)}
"""The grid of the images: a batch size and a few settings that two CPU cores can train in minutes."""
ALL_PRESENT = "all present"
Draw = Callable[[lg.Dataset, int], lg.Dataset]


def keep_share(share: float) -> Draw:
    """Return a draw that keeps a share of all labels, whatever they are."""

    def draw(data: lg.Dataset, seed: int) -> lg.Dataset:
        truth = data.train.evaluation_labels
        return replace(data, train=replace(data.train, labels=truth.drop(1 - share, seed=seed), truth=truth))

    return draw


PATTERNS: dict[str, Draw] = {
    "1 present": lambda data, seed: data.observe(positives=1, negatives=0, seed=1200 + seed),
    "1 present, 1 absent": lambda data, seed: data.observe(positives=1, negatives=1, seed=1200 + seed),
    ALL_PRESENT: lambda data, seed: data.observe(positives="all", negatives=0, seed=1200 + seed),
    "a tenth": keep_share(0.1),
    "a quarter": keep_share(0.25),
    "half": keep_share(0.5),
}


class Case(NamedTuple):
    """One measurement."""

    data: str
    protocol: str
    pattern: str
    draw: int
    method: str


def split_rows(
    name: str, features: NDArray[np.float64], labels: NDArray[np.bool_], classes: Sequence[str]
) -> lg.Dataset:
    """Return a data set of vectors; three fifths of the rows are train, a fifth val, a fifth test."""
    order = numpy_generator(0, "table", name).permutation(len(features))
    splits: dict[str, lg.Split] = {}
    cuts = np.split(order, [int(0.6 * len(order)), int(0.8 * len(order))])
    for split, part in zip(("train", "val", "test"), cuts, strict=True):
        ids = [str(row) for row in part]
        table = LabelTable.from_dense(labels[part].astype(np.int8), classes=classes, images=ids)
        splits[split] = lg.Split(split, FeatureVectors(features[part].astype(np.float32), ids), table)
    return lg.Dataset(name, splits["train"], splits["val"], splits["test"], backbone="features", protocol="linear")


def read_table(path: Path) -> lg.Dataset:
    """Read a CSV file of numbers."""
    names = path.read_text(encoding="utf-8").partition("\n")[0].split(",")
    values = np.loadtxt(path, delimiter=",", skiprows=1)
    label = np.array([set(column) <= {0.0, 1.0} for column in values.T])
    classes = [name for name, chosen in zip(names, label, strict=True) if chosen]
    return split_rows(path.stem, values[:, ~label], values[:, label] == 1, classes)


def cells() -> lg.Dataset:
    """Return the classes made of the breast cancer data."""
    bunch = load_breast_cancer()
    worst = bunch.data[:, 20:]
    labels = np.column_stack([bunch.target == 0, worst > np.quantile(worst, 0.75, axis=0)])
    return split_rows("cells", bunch.data[:, :20], labels, ["malignant", *bunch.feature_names[20:]])


def load(name: str, tables: Sequence[Path]) -> lg.Dataset:
    """Return a data set with all of its labels."""
    if name == "voc":
        return lg.load("features", DATA / "voc2012_resnet50_448.npz").reveal()
    if name == "photos":
        return replace(lg.load("voc2012", DATA / "VOCdevkit"), backbone="efficientnet-lite0")
    if name == "digits":
        return lg.load("digits").reveal()
    if name == "cells":
        return cells()
    return read_table(next(path for path in tables if path.stem == name))


def linear(data: lg.Dataset, cases: Sequence[Case], table: bool) -> list[dict[str, Any]]:
    """Train linear heads of several methods on the same labels, each with its grid."""
    grid: dict[str, Any] = GRID if table else LARGE
    with tempfile.TemporaryDirectory() as folder:
        names, out = [case.method for case in cases], Path(folder) / "compare"
        found = lg.compare(data, names, out=out, seeds=1, standardize=table, device="cpu", quiet=True, **grid)
    assert found.metric.name == "test mAP", found.metric
    rows = {row.method: row for row in found.methods}
    return [
        {
            "val": rows[case.method].seeds[0].score,
            "test": rows[case.method].seeds[0].value,
            "lr": rows[case.method].lr,
            "weight_decay": rows[case.method].weight_decay,
        }
        for case in cases
    ]


def network(data: lg.Dataset, case: Case, device: str) -> dict[str, Any]:
    """Train the whole network with one method and the default settings."""
    with tempfile.TemporaryDirectory() as folder:
        settings: dict[str, Any] = {"protocol": case.protocol, "seed": case.draw, "device": device}
        run = lg.fit(data, case.method, out=Path(folder) / "run", trace="off", quiet=True, **settings)
    return {split: run.metrics[split]["map"] for split in ("val", "test")} | {"lr": run.config.lr, "weight_decay": 0.0}


def measure(cases: Sequence[Case], data: lg.Dataset, known: dict[Case, dict[str, Any]], arguments: Any) -> None:
    """Measure the cases of one draw that are not known yet, and append them to the results."""
    first = cases[0]
    drawn = PATTERNS[first.pattern](data, first.draw)
    auto = choose_method(drawn.train.labels, first.protocol, pretrained=first.protocol == "linear").method
    absent = drawn.train.labels.counts().total[1]
    missing = [case for case in cases if case not in known and (absent or case.method != "iu")]
    missing = [] if arguments.print_only else missing
    groups = [missing] if first.protocol == "linear" else [[case] for case in missing]
    for group in filter(None, groups):
        if first.protocol == "linear":
            lines = linear(drawn, group, table=data.backbone == "features" and first.data != "voc")
        else:
            lines = [network(drawn, group[0], arguments.device)]
        for case, line in zip(group, lines, strict=True):
            known[case] = line
            if arguments.results:
                with arguments.results.open("a", encoding="utf-8") as stream:
                    stream.write(json.dumps({**case._asdict(), **line}) + "\n")
        print(f"{first.data}, {first.protocol}, {first.pattern}, draw {first.draw}: ", end="")
        print(", ".join(f"{c.method} {100 * x['val']:.1f}" for c, x in zip(group, lines, strict=True)), flush=True)
    for case in cases:
        if case in known:
            known[case]["auto"] = auto


def simplest(val: dict[str, list[float]]) -> str:
    """Return the first method that is not behind the best by more than the combined deviation."""
    mean = {name: statistics.fmean(values) for name, values in val.items()}
    spread = {name: statistics.stdev(values) if len(values) > 1 else 0.0 for name, values in val.items()}
    best = max(mean, key=lambda name: mean[name])
    return next(name for name in val if mean[best] - mean[name] <= np.hypot(spread[best], spread[name]))


def print_tables(known: dict[Case, dict[str, Any]]) -> None:
    """Print a table for each data set and protocol: val / test, mean ± standard deviation over the draws."""
    for data, protocol in dict.fromkeys((case.data, case.protocol) for case in known):
        own = {case: line for case, line in known.items() if case[:2] == (data, protocol)}
        patterns = [name for name in PATTERNS if any(case.pattern == name for case in own)]
        print(f"\n### {data}, {protocol}\n\n| method | {' | '.join(patterns)} |\n|{'---|' * (len(patterns) + 1)}")
        cells: dict[tuple[str, str], str] = {}
        for pattern in patterns:
            lines = {name: [own[c] for c in own if c.pattern == pattern and c.method == name] for name in METHODS}
            val = {name: [100 * line["val"] for line in found] for name, found in lines.items() if found}
            best, taken = max(val, key=lambda name: statistics.fmean(val[name])), simplest(val)
            for name in val:
                text = f"{describe(val[name])} / {describe([100 * line['test'] for line in lines[name]])}"
                text = f"**{text}**" if name == best else text
                text += " *" if name == taken else ""
                chosen = sum(line.get("auto") == name for line in lines[name])
                cells[name, pattern] = text + (" `auto`" if chosen else "")
        for name in METHODS:
            row = [cells.get((name, pattern), "–") for pattern in patterns]
            if set(row) != {"–"}:
                print(f"| `{name}` | {' | '.join(row)} |")


def describe(values: Sequence[float]) -> str:
    """Return the mean and the standard deviation of some values."""
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.1f}{spread}"


def main() -> None:
    """Measure what is missing, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="*", choices=SOURCES, help="default: all of them")
    parser.add_argument("--tables", type=Path, nargs="*", default=[], help="CSV files")
    parser.add_argument("--patterns", nargs="+", choices=PATTERNS, default=list(PATTERNS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--protocol", default="linear", choices=("linear", "linear-init", "end-to-end"))
    parser.add_argument("--device", default="auto", help="of whole networks")
    parser.add_argument("--results", type=Path, help="lines of JSON; what is in this file is not measured again")
    parser.add_argument("--print-only", action="store_true", help="print the tables of --results, measure nothing")
    arguments = parser.parse_args()
    stored = arguments.results.read_text().splitlines() if arguments.results and arguments.results.exists() else []
    lines = list(map(json.loads, stored))
    known = {Case(*(line.pop(name) for name in Case._fields)): line for line in lines}
    names = list(SOURCES) if arguments.data is None else arguments.data
    read = cache(lambda name: load(name, arguments.tables))
    for draw in range(arguments.draws):
        for name in [*(path.stem for path in arguments.tables), *names]:
            for pattern in arguments.patterns:
                if pattern == ALL_PRESENT and draw:
                    continue  # nothing is drawn
                cases = [Case(name, arguments.protocol, pattern, draw, method) for method in arguments.methods]
                measure(cases, read(name), known, arguments)
    print_tables(known)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
