"""Every method on the embedded digits, with several seeds: the table in docs/digits.md.

    python benchmarks/digits_methods.py --seeds 3 --processes 2 [--device cuda]

Of every training scene one positive is known and nothing else. Methods that cannot learn from that are listed
separately, with the labels they see. Where an option depends on the data, the first seed tries a few values and the one
with the best val mAP is taken; test is evaluated once, at the end.
"""

from __future__ import annotations

import multiprocessing
import statistics
import sys
import tempfile
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import labelgap as lg

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.harness import describe, parse_arguments

GRID: dict[str, list[dict[str, Any]]] = {
    **{name: [{"delta_rel": value} for value in (0.2, 1, 2, 4)] for name in ("ll-r", "ll-ct", "ll-cp")},
    **{
        name: [{"r0": r0, "delta_abs": step} for r0 in (1, 2) for step in (0.1, 0.15)]
        for name in ("ll-r-abs", "ll-ct-abs", "ll-cp-abs")
    },
    "em": [{"alpha": value} for value in (0.01, 0.1, 0.2, 0.4)],
    "em-apl": [{"alpha": a, "beta": b} for a in (0.1, 0.2) for b in (0.02, 0.2, 0.9)],
    "imcl": [{"lambda_features": value} for value in (0, 0.005, 0.5)],
    "dw": [{"weight": value} for value in (0.02, 0.1, 0.4)],
    "entmin": [{"weight": value} for value in (0.01, 0.1, 0.4)],
    "n-ls": [{"smoothing": value} for value in (0.1, 0.2, 0.3)],
    "focal": [{"alpha": value} for value in (0.25, 0.5, 0.75)],
    "asl": [{"gamma_neg": g, "margin": m} for g in (1, 2) for m in (0, 0.05, 0.2)],
    **{name: [{"unknown": "negative"}] for name in ("two-way", "two-way-sample", "two-way-class")},
}
OBSERVED = {
    "bce": "all labels",
    "bce-ls": "all labels",
    "iun": "1 present, all absent",
    "iu": "1 present, 1 absent",
    "curriculum": "1 present, 1 absent",
    "imcl": "1 present, 1 absent",
}
NEGATIVES: dict[str, int | str] = {"1 present, all absent": "all", "1 present, 1 absent": 1}
PLAIN = "1 present"


def measure(task: tuple[str, dict[str, Any], int, str]) -> dict[str, Any]:
    """Train once and return the metrics."""
    method, options, seed, device = task
    warnings.simplefilter("ignore")
    data = lg.load("digits")
    seen = OBSERVED.get(method, PLAIN)
    if seen == "all labels":
        data = data.reveal()
    elif seen != PLAIN:
        data = data.observe(positives=1, negatives=NEGATIVES[seen])  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        run = lg.fit(data, method, options, out=out, seed=seed, device=device, trace="off", quiet=True)
    found = {"val": run.metrics["val"]["map"], "test": run.metrics["test"]["map"], "seconds": run.metrics["seconds"]}
    return {"method": method, "options": options, "seed": seed, "revisions": run.metrics.get("revisions"), **found}


def rows(results: list[dict[str, Any]], chosen: dict[str, dict[str, Any]]) -> list[str]:
    """Return the table in Markdown, best first, methods that see more labels last."""
    lines = [
        "| method | options | labels | test mAP | revised labels: precision | recall | seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    summary = []
    for method, options in chosen.items():
        own = [r for r in results if r["method"] == method and r["options"] == options]
        scores = [100 * r["test"] for r in own]
        revised = [r["revisions"] for r in own if r["revisions"]]
        quality = [
            f"{100 * statistics.mean(r[name] for r in revised):.1f}"
            if revised and revised[0][name] is not None
            else "–"
            for name in ("precision", "recall")
        ]
        seconds = statistics.mean(r["seconds"] for r in own)
        settings = " ".join(f"{key}={value}" for key, value in options.items()) or "–"
        labels = OBSERVED.get(method, PLAIN)
        cells = f"{settings} | {labels} | {describe(scores)} | {quality[0]} | {quality[1]} | {seconds:.0f}"
        summary.append((labels != PLAIN, -statistics.mean(scores), f"| `{method}` | {cells} |"))
    return [*lines, *(line for _, _, line in sorted(summary))]


def main() -> None:
    """Choose on val with the first seed, then run the other seeds, then print."""
    arguments = parse_arguments(__doc__, seeds=3, processes=2, device="auto")
    names = [name for name in lg.methods() if name != "ls"]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.processes, mp_context=context) as pool:
        first = [(name, options, 0, arguments.device) for name in names for options in GRID.get(name, [{}])]
        results = list(pool.map(measure, first))
        chosen = {
            name: max((r for r in results if r["method"] == name), key=lambda r: r["val"])["options"] for name in names
        }
        rest = [(n, chosen[n], seed, arguments.device) for n in names for seed in range(1, arguments.seeds)]
        results += pool.map(measure, rest)
    print("\n".join(rows(results, chosen)))


if __name__ == "__main__":
    main()
