"""Average precision of many classes: labelgap against scikit-learn and torchmetrics, in the same run.

    python benchmarks/average_precision.py [--threads 2] [--cuda-only]

Two sizes that all of them can do, 40,137 images × 80 classes (COCO's val) and 5,000 × 1,000, in turn, fully labeled:
the peers know no unknown labels. Then 125,000 × 5,000 (OpenImages' test), float32 scores, in a process of its own that
reports its peak memory: once with every label known, once with 2 %. There the peers are measured on 20 of the classes,
and their time is multiplied. With a GPU the same size is measured on it, in the same way, against torchmetrics.

Scores depend on the labels as those of a classifier do: classes are long-tailed, with 3 % presents on the average. A
ratio is the time of the peer / the time of labelgap; on a busy machine that of the processors says more.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score

import labelgap as lg
from labelgap.core.system import available_memory
from labelgap.models.timm import import_timm

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.harness import parse_arguments, print_ratios

SMALL: Final = ((40_137, 80), (5_000, 1_000))
LARGE: Final = (125_000, 5_000)
KNOWN: Final = {"complete": 1.0, "partial": 0.02}
ROUNDS: Final = 3
SAMPLE: Final = 20
NEEDED: Final = 7 << 30
TOLERANCE: Final = 1e-12
PROCESSORS: Final = "_processor_time"

Scores = NDArray[np.float32]
Codes = NDArray[np.int8]


def make(images: int, classes: int, known: float = 1.0, seed: int = 0) -> tuple[Scores, Codes]:
    """Return scores from 0 to 1 and labels ``(N, K)``, filled by blocks of rows so that memory stays small."""
    random = np.random.default_rng(seed)
    scores = np.empty((images, classes), dtype=np.float32)
    codes = np.empty((images, classes), dtype=np.int8)
    share = 1 / np.arange(1, classes + 1) ** 0.7
    share = np.minimum(share * 0.03 * classes / share.sum(), 0.5).astype(np.float32)
    for start in range(0, images, 1000):
        part = slice(start, min(start + 1000, images))
        shape = (part.stop - part.start, classes)
        present = random.random(shape, dtype=np.float32) < share
        scores[part] = random.random(shape, dtype=np.float32) * (0.6 + 0.4 * present) + 0.2 * present
        np.minimum(scores[part], 1, out=scores[part])
        codes[part] = present
        if known < 1:
            codes[part][random.random(shape, dtype=np.float32) >= known] = -1
    codes[0], codes[1] = 1, 0
    return scores, codes


def labelgap_values(scores: Any, codes: Any) -> NDArray[np.float64]:
    return lg.average_precision(scores, codes, average=None)


def sklearn_values(scores: Scores, codes: Codes) -> NDArray[np.float64]:
    """Return what a careful script computes: of each class its known labels."""
    if (codes >= 0).all():
        return np.asarray(average_precision_score(codes, scores, average=None))
    known = [column >= 0 for column in codes.T]
    columns = zip(known, scores.T, codes.T, strict=True)
    return np.array([average_precision_score(code[each], score[each]) for each, score, code in columns])


def torchmetrics_values(scores: Any, codes: Any) -> NDArray[np.float64]:
    """Return torchmetrics' exact values; unknown labels are left out by its ``ignore_index``."""
    from torchmetrics.functional.classification import multilabel_average_precision

    score, code = torch.as_tensor(scores), torch.as_tensor(codes).long()
    ignored = -1 if bool((code < 0).any()) else None
    value = multilabel_average_precision(score, code, num_labels=code.shape[1], average=None, ignore_index=ignored)
    return np.asarray(value.double().cpu())


PEERS: Final = {"scikit-learn": sklearn_values, "torchmetrics": torchmetrics_values}


def measure(function: Callable[..., Any], *arguments: Any) -> tuple[NDArray[np.float64], Any]:
    """Return the seconds on the clock and of the processors, ``(2,)``, and the value."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    started = np.array([time.perf_counter(), time.process_time()])
    value = function(*arguments)
    return np.array([time.perf_counter(), time.process_time()]) - started, value


def require_equal(ours: NDArray[np.float64], theirs: NDArray[np.float64], tolerance: float = TOLERANCE) -> float:
    """Return the greatest difference; the benchmark ends where it is too large."""
    difference = float(np.abs(ours - theirs).max())
    if not difference <= tolerance:
        raise SystemExit(f"the values differ by {difference}")
    return difference


def compare_small(images: int, classes: int) -> dict[str, float]:
    """Measure all in turn; the least time of each counts."""
    scores, codes = make(images, classes)
    best: dict[str, NDArray[np.float64]] = {}
    values: dict[str, NDArray[np.float64]] = {}
    for _ in range(ROUNDS):
        for name, function in {"labelgap": labelgap_values, **PEERS}.items():
            took, values[name] = measure(function, scores, codes)
            best[name] = np.minimum(took, best.get(name, np.inf))
    difference = require_equal(values["labelgap"], values["scikit-learn"])
    times = ", ".join(f"{name} {wall * 1000:.0f} ({own * 1000:.0f}) ms" for name, (wall, own) in best.items())
    print(f"{images:,} × {classes:,}: {times}; from scikit-learn's values at most {difference:.0e}", flush=True)
    return named_ratios(f"{images}x{classes}", {name: best[name] / best["labelgap"] for name in PEERS})


def named_ratios(what: str, ratios: dict[str, NDArray[np.float64]]) -> dict[str, float]:
    names = ((f"{what}_{name}", pair) for name, pair in ratios.items())
    return {
        f"{name}{end}": float(value) for name, pair in names for end, value in zip(("", PROCESSORS), pair, strict=True)
    }


def measure_large(kind: str, threads: int) -> None:
    """Measure the large size in this process, and print the result as JSON."""
    torch.set_num_threads(threads)
    scores, codes = make(*LARGE, known=KNOWN[kind])
    took, values = measure(labelgap_values, scores, codes)
    found: dict[str, Any] = {"labelgap": took.tolist()}
    found["gigabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    columns = np.linspace(0, LARGE[1] - 1, SAMPLE).astype(int)
    some = np.ascontiguousarray(scores[:, columns]), np.ascontiguousarray(codes[:, columns])
    for name, function in PEERS.items():
        took, theirs = measure(function, *some)
        found[name] = (took * LARGE[1] / SAMPLE).tolist()
        if name == "scikit-learn":
            found["difference"] = require_equal(values[columns], theirs)
    print(json.dumps(found))


def compare_large(threads: int) -> dict[str, float]:
    """Run each kind of labels in a process of its own."""
    ratios: dict[str, float] = {}
    for kind, known in KNOWN.items():
        if available_memory() < NEEDED:
            print(f"{kind} skipped: {NEEDED >> 30} GB of free memory are needed")
            continue
        command = [sys.executable, __file__, "--large", kind, "--threads", str(threads)]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        wall, own = found["labelgap"]
        print(
            f"{LARGE[0]:,} × {LARGE[1]:,}, {known:.0%} known: labelgap {wall:.1f} ({own:.1f}) s, peak memory "
            f"{found['gigabytes']:.2f} GB with the input; "
            + ", ".join("{} about {:.0f} ({:.0f}) s".format(name, *found[name]) for name in PEERS)
            + f"; from scikit-learn's values at most {found['difference']:.0e}",
            flush=True,
        )
        ratios |= named_ratios(f"125000x5000_{kind}", {name: np.divide(found[name], (wall, own)) for name in PEERS})
    return ratios


def compare_on_gpu() -> dict[str, float]:
    """Measure the large size with scores and labels on the device, made there as ``make`` does, all presents at 3 %."""
    ratios: dict[str, float] = {}
    columns = torch.linspace(0, LARGE[1] - 1, SAMPLE, device="cuda").long()
    for kind, known in KNOWN.items():
        torch.manual_seed(0)
        scores, codes = torch.rand(LARGE, device="cuda"), (torch.rand(LARGE, device="cuda") < 0.03).to(torch.int8)
        scores.mul_(0.6).add_(codes, alpha=0.3)
        if known < 1:
            codes[torch.rand(LARGE, device="cuda") >= known] = -1
        codes[0], codes[1] = 1, 0
        some = scores[:, columns].contiguous(), codes[:, columns].contiguous()
        measure(torchmetrics_values, *some)
        before = torch.cuda.memory_allocated()
        times = []
        for _ in range(ROUNDS):
            torch.cuda.reset_peak_memory_stats()
            (took, _), values = measure(labelgap_values, scores, codes)
            peak = torch.cuda.max_memory_allocated() - before
            times.append((took, measure(torchmetrics_values, *some)[0][0] * LARGE[1] / SAMPLE))
        best, peer = np.min(times, axis=0)
        difference = require_equal(values[columns.cpu().numpy()], labelgap_values(*(each.cpu() for each in some)))
        print(
            f"{torch.cuda.get_device_name()}, {known:.0%} known: labelgap {best:.3f} s, {peak / 1e9:.2f} GB beyond the "
            f"input; torchmetrics about {peer:.1f} s; from the CPU's values at most {difference:.0e}",
            flush=True,
        )
        ratios[f"125000x5000_{kind}_cuda_torchmetrics"] = float(peer / best)
    return ratios


def main() -> None:
    arguments = parse_arguments(__doc__, threads=2, large=str, cuda_only=False)  # large: a kind, in this process
    import_timm()  # torchmetrics needs torchvision, which a CPU-only torch must be prepared for
    if arguments.large:
        measure_large(arguments.large, arguments.threads)
        return
    torch.set_num_threads(arguments.threads)
    print(f"torch {torch.__version__}, numpy {np.__version__}, {arguments.threads} threads; (time of the processors)")
    ratios: dict[str, float] = {}
    if not arguments.cuda_only:
        for size in SMALL:
            ratios |= compare_small(*size)
        ratios |= compare_large(arguments.threads)
    if torch.cuda.is_available():
        ratios |= compare_on_gpu()
    print_ratios({f"average_precision_{name}": value for name, value in ratios.items()})


if __name__ == "__main__":
    main()
