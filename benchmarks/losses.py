"""Time of every loss, forward and backward, against torch's ``binary_cross_entropy_with_logits`` in the same run.

    python benchmarks/losses.py                       # every method, on one CPU thread and, if there is one, on a GPU
    python benchmarks/losses.py --methods an,em,ll-r --device cpu

On the CPU the batches are 288 × 5,000 and 256 × 80; the two sides run in alternation, and every time is the processor
time of the fastest repeat. On a GPU the batch is 4,096 × 5,000: a step is captured as a CUDA graph and replayed, so
that the time is that of the kernels alone. Copying the logits is the floor there, and the memory is what a step takes
at its peak, beyond the logits and their gradient. A tenth of the labels is known, and the epoch is the fifth of ten.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

import labelgap as lg
from labelgap.labels import ABSENT, PRESENT, UNKNOWN

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.harness import parse_arguments, timed

CPU_SHAPES: Final = ((288, 5000), (256, 80))
GPU_SHAPE: Final = (4096, 5000)
FEATURES: Final = 512
SECONDS: Final = 1.5
"""How long a method and its peer are repeated for, at least ``MIN_ROUNDS`` times."""
MIN_ROUNDS: Final = 5
REPLAYS: Final = 20
OPTIONS: Final = {"epr": {"expected_positives": 2.9}, "role": {"expected_positives": 2.9}}
EPOCH, EPOCHS = 5, 10

Step = Callable[[], None]


def some_labels(shape: tuple[int, int]) -> np.ndarray[tuple[int, ...], np.dtype[np.int8]]:
    """Draw labels of which a tenth is known, and a twentieth of those present."""
    random = np.random.default_rng(0)
    labels = np.where(random.random(shape) < 0.05, PRESENT, ABSENT).astype(np.int8)
    labels[random.random(shape) < 0.9] = UNKNOWN
    return labels


def some_logits(shape: tuple[int, int], device: str) -> Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 2 - 2
    return values.to(device).requires_grad_()


def torch_step(logits: Tensor, labels: Tensor) -> Step:
    """Return a step of torch's own loss, unknown labels as absent."""
    target = (labels == PRESENT).float()

    def step() -> None:
        logits.grad = None
        torch.autograd.backward(binary_cross_entropy_with_logits(logits, target))

    return step


def method_step(name: str, logits: Tensor, labels: Tensor) -> Step:
    """Return a step of a method that has taken one step before, which commits what was marked."""
    rows = len(labels)
    loss_fn = lg.loss(name, **OPTIONS.get(name, {})).to(logits.device)
    loss_fn.prepare(lg.LabelTable.from_dense(labels.cpu().numpy()), epochs=EPOCHS, seed=0)
    loss_fn.eval().set_epoch(EPOCH)  # no training: this epoch does not end
    index = torch.arange(rows, device=logits.device)
    features = torch.randn(rows, FEATURES, generator=torch.Generator().manual_seed(1)).to(logits.device)
    leaves = [logits, *loss_fn.parameters()]

    def step() -> None:
        for leaf in leaves:
            leaf.grad = None
        loss_fn.skip_step()
        torch.autograd.backward(loss_fn(logits, labels, index=index, features=features))

    step()
    loss_fn.after_step()
    return step


def on_cpu(names: list[str], shape: tuple[int, int]) -> list[str]:
    """Print a table for one shape; return the lines of ratios."""
    torch.set_num_threads(1)
    labels, logits = torch.from_numpy(some_labels(shape)), some_logits(shape, "cpu")
    peer = torch_step(logits, labels)
    print(f"\n{shape[0]} × {shape[1]:,}, one CPU thread\n{'method':16}{'ms':>9}{'torch ms':>10}{'ratio':>8}")
    ratios = []
    for name in names:
        try:
            step = method_step(name, logits, labels)
            times: list[tuple[float, float]] = []
            started = time.perf_counter()
            while len(times) <= MIN_ROUNDS or time.perf_counter() - started < SECONDS:
                times.append((timed(peer)[1], timed(step)[1]))
        except Exception as error:
            print(f"{name:16}failed: {error}", flush=True)
            continue
        theirs, ours = (1e3 * min(side) for side in zip(*times[1:], strict=True))
        print(f"{name:16}{ours:9.3f}{theirs:10.3f}{ours / theirs:8.2f}", flush=True)
        ratios.append(f"ratio {name}-{shape[0]}x{shape[1]} {ours / theirs:.2f}")
    return ratios


def replay_ms(step: Step) -> float:
    """Capture a step as a CUDA graph and return the milliseconds of a replay."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return fastest_replay(graph)


def fastest_replay(graph: torch.cuda.CUDAGraph) -> float:
    """Return the milliseconds of a replay, the fastest of several groups."""
    best = float("inf")
    for _ in range(5):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        for _ in range(REPLAYS):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        best = min(best, start.elapsed_time(end) / REPLAYS)
    return best


def extra_mebibytes(step: Step, logits: Tensor) -> float:
    """Return the peak memory of a step beyond the logits and their gradient."""
    step()
    logits.grad = None
    gc.collect()  # what earlier measurements have left may be freed within the step otherwise
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before - logits.nbytes) / 2**20


def on_gpu(names: list[str]) -> list[str]:
    """Print a table for the GPU; return the lines of ratios."""
    labels, logits = torch.from_numpy(some_labels(GPU_SHAPE)).cuda(), some_logits(GPU_SHAPE, "cuda")
    target = torch.empty_like(logits, requires_grad=False)

    def copy() -> None:
        target.copy_(logits.detach())

    floor = replay_ms(copy)
    peer_step = torch_step(logits, labels)
    peer = replay_ms(peer_step)
    print(f"\n{GPU_SHAPE[0]:,} × {GPU_SHAPE[1]:,}, {torch.cuda.get_device_name()}, graph replay")
    print(
        f"copy {floor:.3f} ms, {2e-9 * logits.nbytes / floor:.2f} TB/s; the logits have {logits.nbytes / 2**20:.0f} MiB"
    )
    print(f"{'method':16}{'ms':>9}{'/ torch':>9}{'/ copy':>9}{'extra MiB':>11}")
    print(f"{'torch':16}{peer:9.3f}{1:9.2f}{peer / floor:9.1f}{extra_mebibytes(peer_step, logits):11.0f}")
    ratios = [f"ratio torch-copy-{GPU_SHAPE[0]}x{GPU_SHAPE[1]} {peer / floor:.2f}"]
    for name in names:
        try:
            step = method_step(name, logits, labels)
            extra = extra_mebibytes(step, logits)
            ours = replay_ms(step)
        except Exception as error:
            print(f"{name:16}failed: {type(error).__name__}: {error}", flush=True)
            continue
        print(f"{name:16}{ours:9.3f}{ours / peer:9.2f}{ours / floor:9.1f}{extra:11.0f}", flush=True)
        ratios.append(f"ratio {name}-cuda-{GPU_SHAPE[0]}x{GPU_SHAPE[1]} {ours / peer:.2f}")
        del step
        torch.cuda.empty_cache()
    return ratios


def main() -> None:
    arguments = parse_arguments(__doc__, methods=str, device=str)
    names = arguments.methods.split(",") if arguments.methods else lg.methods()
    ratios = []
    if arguments.device != "cuda":
        ratios += [line for shape in CPU_SHAPES for line in on_cpu(names, shape)]
    if arguments.device == "cuda" or (arguments.device is None and torch.cuda.is_available()):
        ratios += on_gpu(names)
    print("\n" + "\n".join(ratios))


if __name__ == "__main__":
    main()
