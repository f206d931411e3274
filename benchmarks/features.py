"""Images per second of the feature pass on a CPU: the networks as they are trained against those of inference.

    python benchmarks/features.py [--threads 2] [--seconds 60]

The networks get the same batches in alternation, in one process. Time is both processor time, so that other programs
disturb little, and wall time; of many rounds the fastest counts. A precision that this CPU does not compute with is
skipped: a small convolution is tried first. The ratios are those of the precision that labelgap uses on this CPU. Each
measurement takes ``--seconds``. The last part reads 500×375 JPEGs and computes their features, as ``labelgap train``
does, without the cache.
"""

from __future__ import annotations

import platform
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, get_args

import numpy as np
import torch
from torch import Tensor

from labelgap.data import FileImages
from labelgap.models import Backbone, EfficientNetLite
from labelgap.models.inference import FoldedEfficientNet, cpu_precision
from labelgap.models.info import LITE0, LITE2, LiteVariant, Precision
from labelgap.training.loop.inputs import ImageInputs

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.harness import Times, alternate, median_ratio, parse_arguments, print_ratios, timed, write_photos

COUNT: Final = 64
BATCH: Final = 32
TOO_SLOW: Final = 4.0
PLAIN: Final = "as trained"


def show(taken: Times, images: int, notes: dict[str, str]) -> None:
    for name, values in taken.items():
        cpu, wall = (min(value[part] for value in values) for part in (0, 1))
        print(
            f"  {name:<24}{1000 * cpu / images:>9.1f}{images / wall:>11.1f}{median_ratio(taken, name, 0):>12.2f}×"
            f"{median_ratio(taken, name, 1):>10.2f}×  {notes.get(name, '')}",
            flush=True,
        )


def computes_with(precision: Precision) -> bool:
    """Whether a convolution of this precision is not much slower than one of float32."""
    dtype, values = getattr(torch, precision), torch.randn(1, 32, 16, 16)
    weight = torch.randn(64, 32, 1, 1)

    def convolve(values: Tensor, weight: Tensor) -> float:
        return min(timed(lambda: torch.conv2d(values, weight))[1] for _ in range(20))

    try:
        return convolve(values.to(dtype), weight.to(dtype)) < TOO_SLOW * convolve(values, weight)
    except RuntimeError:
        return False


def networks(variant: LiteVariant, used: Precision) -> dict[str, Backbone]:
    plain = EfficientNetLite(variant).eval()
    found: dict[str, Backbone] = {PLAIN: plain}
    for precision in get_args(Precision):
        if precision == used or computes_with(precision):
            found[f"folded, {precision}"] = FoldedEfficientNet(plain, precision)
    return found


@torch.inference_mode()
def measure_networks(variant: LiteVariant, images: FileImages, seconds: float, used: Precision) -> None:
    """Print the speed of the network alone, and how far its features are apart."""
    compared = networks(variant, used)
    plain = compared[PLAIN]
    _, batch = next(ImageInputs(images, plain, torch.device("cpu")).batches(np.arange(BATCH), batch_size=BATCH))
    expected = plain.features(batch)
    works: dict[str, Callable[[], object]] = {
        name: partial(network.features, batch) for name, network in compared.items()
    }
    notes = {
        name: f"features at most {(network.features(batch) - expected).abs().max():.1e} of {expected.max():.1f} apart"
        for name, network in compared.items()
    }
    print(f"\n{variant.name}, {variant.size} px, batches of {BATCH}, network only")
    print(f"  {'':<24}{'CPU ms':>9}{'images/s':>11}{'CPU ratio':>13}{'ratio':>11}", flush=True)
    taken = alternate(works, seconds=seconds)
    show(taken, BATCH, notes)
    print_ratios({f"network_{variant.name}": median_ratio(taken, f"folded, {used}", 1)})


@torch.inference_mode()
def measure_pass(variant: LiteVariant, images: FileImages, seconds: float, used: Precision) -> None:
    """Print the speed from JPEGs to features."""
    device = torch.device("cpu")
    plain = EfficientNetLite(variant).eval()
    fast = FoldedEfficientNet(plain, used)

    def run(network: Backbone) -> None:
        for _, values in ImageInputs(images, plain, device).batches(np.arange(len(images)), batch_size=BATCH):
            network.features(values)

    taken = alternate({PLAIN: lambda: run(plain), "inference": lambda: run(fast)}, seconds=seconds)
    print(f"\n{variant.name}, {variant.size} px, from JPEGs to features")
    show(taken, len(images), {})
    print_ratios({f"features_{variant.name}": median_ratio(taken, "inference", 1)})


def main() -> None:
    given = parse_arguments(__doc__, threads=2, seconds=60.0)
    torch.set_num_threads(given.threads)
    used = cpu_precision()
    print(f"{platform.machine()}, {given.threads} threads, torch {torch.__version__}, inference in {used}")
    print(f"capability {torch.backends.cpu.get_cpu_capability()}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        images = FileImages(folder, [path.name for path in write_photos(Path(folder), COUNT)])
        for variant in (LITE2, LITE0):
            measure_networks(variant, images, given.seconds, used)
            measure_pass(variant, images, given.seconds, used)


if __name__ == "__main__":
    main()
