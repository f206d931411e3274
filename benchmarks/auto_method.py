"""Which method is best for which known labels, on several kinds of data: the evidence behind ``method="auto"``.

    python benchmarks/auto_method.py --tables music.csv --results auto.jsonl                            # linear heads
    python benchmarks/auto_method.py --tables music.csv --results auto.jsonl --protocol linear-no-val   # no val
    python benchmarks/auto_method.py --data digits --protocol end-to-end --jobs 8 --results auto.jsonl  # from nothing
    python benchmarks/auto_method.py --data images --images VOCdevkit --weights resnet50.pth --size 224 --epochs 8 \\
        --protocol linear-init --jobs 8 --results auto.jsonl                                            # pretrained

Data: "voc", features of a ResNet-50 of all of VOC 2012; "photos", a sample of its photos through efficientnet-lite0;
"digits", the embedded images; "cells"; tables of numbers, in which each column of zeros and ones is a class and all
others are features; "images", a folder in VOC's layout. Labels of train are hidden as ``PATTERNS`` says, three times;
val and test stay complete. Every method trains linear heads at several learning rates and weight decays (`lg.compare`),
and val selects among them; a whole network is trained once, with the defaults. Without val ("linear-no-val") each
method's weight decay is cross-validated by `lg.fit`, "auto" chooses the method too, and val is a second test.
Test is evaluated once, for what was selected. A line of ``--results`` is one method on one draw: what is in the file is
not measured again, and several processes may append to it. The Markdown tables of all lines are printed at the end.

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
import os
import statistics
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import labelgap as lg
from labelgap.training.auto import choose_method

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.auto_data import ALL, ALL_PRESENT, FIXED, PATTERNS, SOURCES, load
from benchmarks.harness import append_lines, describe, parse_arguments, stored_lines

METHODS = ("iu", "an", "wan", "an-ls", "em", "gr", "epr", "ll-r", "ll-ct", "role")
"""The simplest first: no unknown labels, a weight, a target, a shape of the loss; a number that must be known; a
schedule over the epochs; a state for every label."""
COMPLETE = ("bce", "bce-ls", "asl", "two-way")
"""Methods where all labels are known, the simplest first; of ``METHODS`` most are then `bce` or `bce-ls`."""
NO_VAL = "linear-no-val"
NEWTON = ("iu", "an", "wan", "an-ls", "em", "gr", "bce", "bce-ls")
"""Methods that are measured without val."""
DRAWS = 3
GRID = {"learning_rates": (1e-2, 1e-3, 1e-4), "weight_decays": (0.0, 1e-4, 1e-3)}
LARGE = {"batch_sizes": (64,), "learning_rates": (2e-3, 2e-4), "weight_decays": (0.0, 1e-3)}
"""The grid of the images: a batch size and a few settings that two CPU cores can train in minutes."""


class Case(NamedTuple):
    """One measurement."""

    data: str
    protocol: str
    pattern: str
    draw: int
    method: str


class Settings(NamedTuple):
    """What all measurements of a call share."""

    tables: tuple[Path, ...]
    images: Path | None
    weights: Path | None
    backbone: str | None
    size: int | None
    epochs: int | None
    device: str
    threads: int
    workers: int


read = cache(load)


def linear(data: lg.Dataset, cases: Sequence[Case], table: bool) -> list[dict[str, Any]]:
    """Train linear heads of several methods on the same labels, each with its grid."""
    grid: dict[str, Any] = GRID if table else LARGE
    with tempfile.TemporaryDirectory() as folder:
        names, out = [case.method for case in cases], Path(folder) / "compare"
        settings = {"seeds": 1, "standardize": table, "grid": "small", "baseline": False, **grid}
        found = lg.compare(data, names, out=out, device="cpu", quiet=True, **settings)
    assert found.metric.name == "test mAP", found.metric
    rows = {row.method: row for row in found.methods}
    own = [rows[case.method] for case in cases]
    scores = [{"val": row.seeds[0].score, "test": row.seeds[0].value} for row in own]
    return [{**each, "lr": row.lr, "weight_decay": row.weight_decay} for each, row in zip(scores, own, strict=True)]


def cross_validated(data: lg.Dataset, case: Case) -> dict[str, Any]:
    """Train a linear head on data without val, and measure it on the images of val and of test."""
    own = replace(data, val=None, backbone="efficientnet-lite0" if case.data == "digits" else data.backbone)
    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, Any] = {"protocol": "linear", "seed": case.draw, "device": "cpu", "quiet": True}
        run = lg.fit(own, case.method, out=Path(folder) / "run", **options)
        val = run.evaluate(data, "val", device="cpu", resamples=0)["map"]
    chosen = {"chosen": run.config.method, "weight_decay": run.config.weight_decay}
    return {"val": val, "test": run.metrics["test"]["map"], **chosen}


def network(data: lg.Dataset, case: Case, settings: Settings) -> dict[str, Any]:
    """Train the whole network with one method and the default settings."""
    given: dict[str, Any] = {"protocol": case.protocol, "seed": case.draw, "device": settings.device}
    given |= {"size": settings.size, "epochs": settings.epochs, "workers": settings.workers}
    given |= {"weights": settings.weights, "trace": "off", "quiet": True}
    backbone = settings.backbone if settings.weights is None else "resnet50-v1"
    with tempfile.TemporaryDirectory() as folder:
        run = lg.fit(data, case.method, None, backbone, out=Path(folder) / "run", **given)
    scores = {split: run.metrics[split]["map"] for split in ("val", "test")}
    kept = {"epoch": run.metrics["best_epoch"], "epochs": run.config.epochs}
    return {**scores, "lr": run.config.lr, "weight_decay": run.config.weight_decay, **kept}


def measure(cases: Sequence[Case], settings: Settings) -> list[dict[str, Any]]:
    """Measure cases of one draw: several methods of linear heads at once, else one."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(settings.threads)
    started, first = time.perf_counter(), cases[0]
    data = read(first.data, settings.tables, settings.images)
    drawn = PATTERNS[first.pattern](data, first.draw)
    if first.protocol == "linear":
        lines = linear(drawn, cases, table=data.backbone == "features" and first.data != "voc")
    else:
        lines = [cross_validated(drawn, first) if first.protocol == NO_VAL else network(drawn, first, settings)]
    common = {"auto": rule(drawn, first), "seconds": round((time.perf_counter() - started) / len(cases), 1)}
    return [{**line, **common} for line in lines]


def rule(drawn: lg.Dataset, case: Case) -> str:
    """Return what the rule takes for the labels of a draw."""
    protocol = "linear" if case.protocol == NO_VAL else case.protocol
    return choose_method(drawn.train.labels, protocol, pretrained=protocol == "linear" or case.data != "digits")[0]


def jobs(arguments: argparse.Namespace, known: dict[Case, dict[str, Any]]) -> Iterator[tuple[Case, ...]]:
    """Yield the cases that are not known yet, in groups that are measured together."""
    label = f"images, {arguments.size} px, {arguments.epochs} epochs"
    names = [
        *(path.stem for path in arguments.tables),
        *(label if name == "images" else name for name in arguments.data),
    ]
    for draw in range(arguments.draws):
        for name in names:
            for pattern in arguments.patterns:
                if pattern in FIXED and draw:
                    continue
                chosen = [method for method in arguments.methods if applies(method, pattern, arguments.protocol)]
                cases = [Case(name, arguments.protocol, pattern, draw, method) for method in chosen]
                missing = tuple(case for case in cases if case not in known)
                yield from filter(None, [missing] if arguments.protocol == "linear" else [(case,) for case in missing])


def applies(method: str, pattern: str, protocol: str) -> bool:
    """Return whether a method is measured: `iu` learns nothing from presents alone."""
    if protocol == NO_VAL and method not in (*NEWTON, "auto"):
        return False
    if method == "auto":
        return protocol == NO_VAL
    if pattern == ALL:
        return method in COMPLETE
    return method in METHODS and (method != "iu" or pattern not in ("1 present", ALL_PRESENT))


def run_all(arguments: argparse.Namespace, known: dict[Case, dict[str, Any]]) -> None:
    """Measure what is missing, in several processes, and append every result to the file as soon as it is there."""
    threads = max(1, (os.cpu_count() or 1) // arguments.jobs)
    workers = threads if torch.cuda.is_available() else 0
    given = {name: getattr(arguments, name) for name in Settings._fields if hasattr(arguments, name)}
    settings = Settings(**{**given, "tables": tuple(arguments.tables), "threads": threads, "workers": workers})
    groups = list(jobs(arguments, known))
    print(f"{len(groups)} trainings to do", flush=True)
    with ProcessPoolExecutor(arguments.jobs, mp_context=get_context("spawn")) as pool:
        futures = {pool.submit(measure, group, settings): group for group in groups}
        for future in as_completed(futures):
            group = futures[future]
            try:
                lines = future.result()
            except Exception:  # the others are measured all the same
                print(f"failed: {group}\n{traceback.format_exc()}", flush=True)
                continue
            known.update(zip(group, lines, strict=True))
            append_lines(arguments.results, [{**case._asdict(), **known[case]} for case in group])
            print(f"{', '.join(map(str, group[0][:4]))}: ", end="")
            scores = [f"{case.method} {100 * known[case]['val']:.1f}" for case in group]
            print(f"{', '.join(scores)} ({lines[0]['seconds'] * len(group):.0f} s)", flush=True)


def stored_results(path: Path | None) -> dict[Case, dict[str, Any]]:
    """Return the results of a file."""
    return {Case(*(line.pop(name) for name in Case._fields)): line for line in stored_lines(path)}


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
        columns = {name: column({c: own[c] for c in own if c.pattern == name}) for name in patterns}
        for method in (*METHODS, *COMPLETE, "auto"):
            row = [columns[pattern].get(method, "–") for pattern in patterns]
            if set(row) != {"–"}:
                print(f"| `{method}` | {' | '.join(row)} |")


def column(own: dict[Case, dict[str, Any]]) -> dict[str, str]:
    """Return the cells of one pattern by method."""
    order = [*METHODS, *COMPLETE, "auto"]
    lines = {name: [own[case] for case in own if case.method == name] for name in order}
    val = {name: [100 * line["val"] for line in found] for name, found in lines.items() if found}
    single = {name: values for name, values in val.items() if name != "auto"}
    best = max(single, key=lambda name: statistics.fmean(single[name]), default="auto")
    cells: dict[str, str] = {}
    for name in val:
        text = f"{describe(val[name])} / {describe([100 * line['test'] for line in lines[name]])}"
        text = f"**{text}**" if name == best else text
        if name == "auto":
            chosen = [str(line["chosen"]) for line in lines[name]]
            text += f" ({', '.join(dict.fromkeys(chosen))})"
        else:
            text += " *" if name == simplest(single) else ""
            text += " `auto`" if any(line.get("auto") == name for line in lines[name]) else ""
        cells[name] = text
    return cells


def main() -> None:
    """Measure what is missing, and print the tables."""
    options: dict[str, Any] = {"images": Path, "weights": Path, "backbone": str, "size": int, "epochs": int}
    options |= {"data": (*SOURCES,), "patterns": (*PATTERNS,), "methods": (*METHODS, *COMPLETE, "auto")}
    options |= {"protocol": "linear", "draws": DRAWS, "device": "auto", "jobs": 1, "results": Path}
    given = parse_arguments(__doc__, tables=(Path(),), **options)
    given.tables = [path for path in given.tables if path != Path()]
    known = stored_results(given.results)
    run_all(given, known)
    print_tables(known)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
