"""What the benchmarks share: data, arguments, photos, a peer, stored results, and the lines ``ratio NAME VALUE``."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

DATA: Final = Path(__file__).resolve().parents[2] / "shared" / "data"
FEATURES: Final = DATA / "voc2012_resnet50_448.npz"
DEVKIT: Final = DATA / "VOCdevkit"
WIDTH, HEIGHT = 500, 375
T = TypeVar("T")
Times = dict[str, list[tuple[float, float]]]


def parse_arguments(description: str, *places: str, **options: Any) -> argparse.Namespace:
    """Parse the command line, whose help is the docstring of a benchmark.

    ``places`` are names of paths that are given without a name. Every other name is an option of the type of its
    default: False for one without a value, a tuple for several values, and a type where the default is None.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in places:
        parser.add_argument(name, type=Path, nargs="?" if name in options else None, default=options.pop(name, None))
    for name, default in options.items():
        option = f"--{name.replace('_', '-')}"
        if default is False:
            parser.add_argument(option, action="store_true")
        elif isinstance(default, tuple):
            parser.add_argument(option, nargs="*", type=type(default[0]), default=default)
        elif isinstance(default, type):
            parser.add_argument(option, type=default)
        else:
            parser.add_argument(option, type=type(default), default=default)
    return parser.parse_args()


def feature_arguments(description: str, **options: Any) -> argparse.Namespace:
    """Parse a command line that names a file of features, by default that of VOC 2012 beside the project."""
    return parse_arguments(description, "features", features=FEATURES, **options)


def timed(work: Callable[[], T]) -> tuple[T, float, float]:
    """Return what a function returns, its seconds of the processor, which others disturb little, and of the clock."""
    wall, processor = time.perf_counter(), time.process_time()
    found = work()
    return found, time.process_time() - processor, time.perf_counter() - wall


def alternate(works: Mapping[str, Callable[[], object]], *, rounds: int = 3, seconds: float = 0.0) -> Times:
    """Run everything in alternation, once to warm up, then so many rounds and so long at least.

    Returns the seconds of the processor and of the clock of each round.
    """
    taken: Times = {name: [] for name in works}
    started = time.perf_counter()
    for work in works.values():
        work()
    while min(map(len, taken.values())) < rounds or time.perf_counter() - started < seconds:
        for name, work in works.items():
            taken[name].append(timed(work)[1:])
    return taken


def median_ratio(taken: Times, name: str, part: int = 0) -> float:
    """Return how much faster than the first something is, the median of the rounds; ``part`` 1 is by the clock."""
    first = next(iter(taken.values()))
    return statistics.median(plain[part] / value[part] for plain, value in zip(first, taken[name], strict=True))


def print_ratios(ratios: Mapping[str, float], digits: int = 2) -> None:
    """Print the last lines of a benchmark."""
    for name, value in ratios.items():
        print(f"ratio {name} {value:.{digits}f}", flush=True)


def describe(values: Sequence[float]) -> str:
    """Return the mean and the standard deviation of some values."""
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.1f}{spread}"


def stored_lines(path: Path | None) -> list[dict[str, Any]]:
    """Return the results in a file of JSON lines; none where there is no file yet."""
    stored = path.read_text(encoding="utf-8").splitlines() if path is not None and path.exists() else []
    return list(map(json.loads, filter(None, stored)))


def append_lines(path: Path | None, lines: Sequence[Mapping[str, Any]]) -> None:
    """Append results in one write, which no other process can divide."""
    if path is not None:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, "".join(json.dumps(line) + "\n" for line in lines).encode())
        finally:
            os.close(descriptor)


def logistic_regression(
    features: NDArray[np.float32], present: NDArray[np.bool_], others: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return the logits of other images by scikit-learn, a class at a time; those of a class without presents are low.

    What many people do with features: ``StandardScaler`` and ``LogisticRegression`` with C = 0.01, unknown as absent.
    """
    scaler = StandardScaler().fit(features)
    logits = np.full((len(others), present.shape[1]), -10.0, dtype=np.float32)
    inputs, targets = scaler.transform(features), scaler.transform(others)
    for column in np.flatnonzero(present.any(axis=0)).tolist():
        head = LogisticRegression(C=0.01, max_iter=200, tol=1e-3).fit(inputs, present[:, column])
        logits[:, column] = head.decision_function(targets)
    return logits


def write_photos(folder: Path, count: int) -> list[Path]:
    """Write JPEGs with the spectrum of photos: amplitude falls with frequency, colors are correlated."""
    random, paths = np.random.default_rng(0), [folder / f"{number:03d}.jpg" for number in range(count)]
    frequency = np.hypot(np.fft.fftfreq(HEIGHT)[:, None], np.fft.rfftfreq(WIDTH)[None])
    fall = 1 / np.maximum(frequency, 1 / WIDTH) ** 1.2
    for path in paths:
        noise = np.fft.irfft2(fall * np.fft.rfft2(random.normal(size=(4, HEIGHT, WIDTH))), s=(HEIGHT, WIDTH))
        gray, *colors = noise / noise.std((1, 2), keepdims=True)
        pixels = 120 + 50 * np.stack([gray + 0.3 * color for color in colors], axis=-1)
        Image.fromarray(np.clip(np.rint(pixels), 0, 255).astype(np.uint8)).save(path, quality=90)
    return paths
