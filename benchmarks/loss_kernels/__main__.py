"""See the package."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import partial

try:
    import triton
except ImportError:
    print("Triton is not installed. It comes with PyTorch for CUDA on Linux; else: pip install triton", file=sys.stderr)
    sys.exit(2)

import benchmarks.loss_kernels
import torch
from benchmarks.harness import parse_arguments
from benchmarks.loss_kernels import measure
from benchmarks.loss_kernels.checks import METHODS, TOLERANCE, check

COMPARED = ["an", "an-ls", "bce", "wan", "em", "focal", "hill", "splc", "asl", "gr", "ll-r", "ll-ct", "csl"]
"""What is measured; the other methods have the kernel of one of these."""
IN_ENGINE = ["an", "em", "asl", "gr", "ll-r", "csl"]
"""What is measured in the linear engine: a method of every kind."""
LEAST_SAVING = 0.01


def run_checks(device: str) -> bool:
    """Print the worst error of every method; return whether all are within the tolerance."""
    print(f"{'method':9}{'cases':>7}{'loss':>10}{'slope':>10}{'of float64':>12}{'left out':>10}")
    accepted = True
    for name, errors in check(METHODS, device):
        mark = "" if errors.accepted else f"   more than {TOLERANCE:g}"
        accepted &= errors.accepted
        print(
            f"{name:9}{errors.cases:7}{errors.value:10.1e}{errors.slope:10.1e}{errors.slope_float64:12.1e}"
            f"{errors.borderline:10}{mark}",
            flush=True,
        )
    return accepted


def run_measurements(methods: list[str], network: bool) -> list[str]:
    """Print times, and what the kernels save of real steps; return the lines of ratios."""
    ratios: list[str] = []
    savings: dict[str, dict[str, float]] = {method: {} for method in methods}
    for shape in measure.SHAPES:
        ratios += measure_shape(methods, shape, savings)
        torch.cuda.empty_cache()
    if network:
        attempt("ResNet-50", partial(measure_network, methods, savings))
    print()
    for method, found in savings.items():
        listed = ", ".join(f"{share:.2%} of {name}" for name, share in found.items())
        print(
            f"{method:9}saves {listed}" + ("" if max(found.values(), default=0) >= LEAST_SAVING else ": does not pay")
        )
        ratios += [f"ratio {method}-saved-{name} {share:.4f}" for name, share in found.items()]
    return ratios


def measure_shape(methods: list[str], shape: tuple[int, int], savings: dict[str, dict[str, float]]) -> list[str]:
    """Print the times at one shape; return the lines of ratios."""
    logits, labels = measure.batch(shape)
    copy, ratios, name = measure.copy_ms(shape), list[str](), f"{shape[0]}x{shape[1]}"
    print(f"\n{name}: a copy takes {copy:.4f} ms, {1e-9 * measure.COPY_BYTES * logits.numel() / copy:.2f} TB/s")
    titles = ("ms", "kernel", "ratio", "of copy", "MiB", "kernel", "step ms", "saved", "engine ms", "saved")
    print(f"{'method':9}" + "".join(f"{title:>10}" if title == "engine ms" else f"{title:>9}" for title in titles))
    data = measure.engine_data(labels)

    def measure_method(method: str) -> None:
        (ours, our_extra), (kernel, extra) = measure.loss_times(method, logits, labels)
        share = measure.BYTES / measure.COPY_BYTES * copy / kernel
        step, shorter = measure.linear_steps(method, labels)
        saved = 1 - shorter / step
        savings[method][f"linear-{shape[0]}"] = saved
        line = f"{ours:9.4f}{kernel:9.4f}{ours / kernel:9.1f}{share:9.0%}{our_extra:9.1f}{extra:9.1f}"
        line += f"{step:9.3f}{saved:9.1%}"
        if method in IN_ENGINE:
            step, shorter = (measure.engine_ms(method, *data, kernels) for kernels in (False, True))
            savings[method][f"engine-{shape[0]}"] = 1 - shorter / step
            line += f"{step:10.3f}{1 - shorter / step:9.1%}"
        print(f"{method:9}{line}", flush=True)
        ratios.append(f"ratio {method}-kernel-{name} {ours / kernel:.2f}")
        ratios.append(f"ratio {method}-of-copy-{name} {share:.3f}")

    for method in methods:
        attempt(method, partial(measure_method, method))
    return ratios


def measure_network(methods: list[str], savings: dict[str, dict[str, float]]) -> None:
    """Print the time of a step of a network, and note what the kernels would save of it."""
    size, rows = measure.NETWORK
    step = measure.network_step_ms()
    print(f"\nResNet-50, {size} px, batch {rows}: a step takes {step:.2f} ms")
    logits, labels = measure.batch((rows, measure.SHAPES[0][1]))
    for method in methods:
        (ours, _), (kernel, _) = measure.loss_times(method, logits, labels)
        savings[method]["network"] = (ours - kernel) / step


def attempt(name: str, work: Callable[[], None]) -> None:
    """Run a part; what fails is printed, and the next part follows."""
    try:
        work()
    except Exception as error:
        print(f"{name:9}failed: {type(error).__name__}: {error}", flush=True)


def main() -> None:
    """Check, and measure where there is a GPU."""
    arguments = parse_arguments(benchmarks.loss_kernels.__doc__ or "", network=False)
    started, cuda = time.perf_counter(), torch.cuda.is_available()
    if not cuda and os.environ.get("TRITON_INTERPRET") != "1":
        sys.exit("there is no GPU: set TRITON_INTERPRET=1 to check without one")
    device = torch.cuda.get_device_name() if cuda else "interpreted"
    print(f"torch {torch.__version__}, Triton {triton.__version__}, {device}")
    accepted = run_checks("cuda" if cuda else "cpu")
    ratios = run_measurements(COMPARED, arguments.network) if cuda else []
    print("\n".join(["", *ratios, f"{time.perf_counter() - started:.0f} s"]))
    sys.exit(not accepted)


if __name__ == "__main__":
    main()
