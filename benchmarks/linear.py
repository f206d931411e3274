"""Linear heads on fixed features: the engine, all heads at once, against plain PyTorch loops, one head at a time.

    python benchmarks/linear.py [--epochs 25]

Twelve methods, each with lr 1e-3 and 1e-4, batch 16, 25 epochs: 24 heads on the features of VOC 2012 (2048 numbers an
image, 4,574 training images, 20 classes), or on random features of the same size if that file is missing. The plain
loop is what a good script does: ``nn.Linear``, the loss from its formula with everything that depends on labels alone
computed in advance, ``torch.optim.Adam`` with its defaults, batches by index. Both see the same batches and score val
after every epoch with the same function. They alternate epoch by epoch, so that other load on the machine slows both,
and each runs with one thread or with all, whichever is faster for it on this machine. Nothing is extrapolated: ratios
are over the epochs that both have trained, all 25 unless the machine is too slow.

On a GPU the grid of Cole et al. follows: nine losses × batch 8 and 16 × four learning rates, 72 heads, 25 epochs. There
the plain loops are timed for one epoch of every loss and batch size, and extrapolated.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy
from torch.nn.functional import logsigmoid

import labelgap as lg
from labelgap.core.seeds import numpy_generator
from labelgap.labels import PRESENT, UNKNOWN, LabelTable
from labelgap.metrics import average_precision
from labelgap.training.heads import HeadPlan, HeadResult, LinearEngine, train_heads
from labelgap.training.heads.train import BestEpochs, ValScorer
from labelgap.training.selection import choose_selection

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.harness import FEATURES, parse_arguments, print_ratios

RATES: Final = (1e-3, 1e-4)
GRID_RATES: Final = (1e-2, 1e-3, 1e-4, 1e-5)
KAPPA: Final = 1.5
ALPHA: Final = 0.2
DELTA: Final = 0.2
SMOOTHING: Final = 0.1

METHODS: Final[dict[str, dict[str, Any]]] = {
    **{name: {} for name in ("bce", "bce-ls", "iun", "iu", "an", "an-ls", "wan")},
    "epr": {"expected_positives": KAPPA},
    "role": {"expected_positives": KAPPA},
    "em": {"alpha": ALPHA},
    "ll-r": {"delta_rel": DELTA},
    "ll-ct": {"delta_rel": DELTA},
}
SPLITS: Final = ("train", "val", "test")
TIME_LIMIT: Final = 400.0
"""Seconds after which the plain loops stop, so that a slow machine finishes in ten minutes."""


@dataclass(frozen=True)
class Data:
    """Features, the observed labels of each method, and the truth of val and test."""

    features: dict[str, Tensor]
    tables: dict[str, LabelTable]
    truth: dict[str, NDArray[np.int8]]

    def table(self, method: str) -> LabelTable:
        """Return the labels that a method sees in the papers."""
        return self.tables[method if method in ("iun", "iu") else "all" if method.startswith("bce") else "one"]

    def to(self, device: str) -> Data:
        """Return the same with features on a device."""
        return Data({name: values.to(device) for name, values in self.features.items()}, self.tables, self.truth)


def read() -> Data:
    data = lg.load("features", FEATURES).reveal()
    features = {name: torch.from_numpy(values) for name, values in lg.features(data).items()}
    labels = {split.name: split.evaluation_labels for split in data.splits}
    return Data(features, observed(labels["train"]), {name: table.to_dense() for name, table in labels.items()})


def random_data() -> Data:
    """Random labels, and features of the same size that depend on them."""
    random = np.random.default_rng(0)
    sizes = zip(SPLITS, (4574, 1143, 5823), strict=True)
    labels = {name: (random.random((size, 20)) < 0.03).astype(np.int8) for name, size in sizes}
    for codes in labels.values():
        codes[np.arange(len(codes)), random.integers(20, size=len(codes))] = PRESENT
    looks = random.normal(size=(20, 2048))
    features = {
        name: torch.from_numpy(np.maximum(codes @ looks * 0.3 + random.normal(size=(len(codes), 2048)), 0)).float()
        for name, codes in labels.items()
    }
    return Data(features, observed(LabelTable.from_dense(labels["train"])), labels)


def observed(full: LabelTable) -> dict[str, LabelTable]:
    """The labels that a draw leaves, by setting."""
    amounts: dict[str, tuple[Any, Any]] = {"all": ("all", "all"), "iun": (1, "all"), "iu": (1, 1), "one": (1, 0)}
    return {name: full.observe(*amount, seed=1200) for name, amount in amounts.items()}


Loss = Callable[[Tensor, Tensor, int], Tensor]


def plain_loss(method: str, codes: Tensor, estimate: nn.Parameter | None) -> Loss:
    """The loss of a method as a script has it: a function of logits, rows and epoch."""
    present = (codes == PRESENT).float()
    known = (codes != UNKNOWN).float()
    smooth = present * (1 - 2 * SMOOTHING) + SMOOTHING
    weak = torch.where(codes == UNKNOWN, 1.0 / (codes.shape[1] - 1), 1.0)
    unknown = 1 - known

    def expected(logits: Tensor) -> Tensor:
        return ((logits.sigmoid().sum(dim=1).mean() - KAPPA) / logits.shape[1]) ** 2

    def entropy(x: Tensor, rows: Tensor, epoch: int) -> Tensor:
        p = x.sigmoid()
        undecided = -(p * logsigmoid(x) + (1 - p) * logsigmoid(-x))
        return (
            known[rows] * cross_entropy(x, present[rows], reduction="none") - ALPHA * unknown[rows] * undecided
        ).mean()

    def estimating(x: Tensor, rows: Tensor, epoch: int) -> Tensor:
        assert estimate is not None
        q, target, mask = estimate[rows], present[rows], known[rows]
        loss = (
            cross_entropy(x, q.sigmoid().detach()) + cross_entropy(q, x.sigmoid().detach()) + expected(x) + expected(q)
        )
        return 0.5 * (loss + cross_entropy(x, target, weight=mask) + cross_entropy(q, target, weight=mask))

    def large(x: Tensor, rows: Tensor, epoch: int) -> Tensor:
        target, free = present[rows], unknown[rows]
        loss = cross_entropy(x, target, reduction="none")
        count = int(np.ceil(round(float(free.sum()) * (epoch - 1) * DELTA / 100, 9)))
        if not count:
            return loss.mean()
        level = torch.where(free > 0, loss.detach(), 0.0).flatten().topk(count).values[-1]
        big = (free > 0) & (loss.detach() >= level)
        if method == "ll-r":
            return (loss * ~big).mean()
        return torch.where(big, -logsigmoid(x), loss).mean()

    losses: dict[str, Loss] = {
        "bce": lambda x, rows, epoch: cross_entropy(x, present[rows]),
        "bce-ls": lambda x, rows, epoch: cross_entropy(x, smooth[rows]),
        "iun": lambda x, rows, epoch: cross_entropy(x, present[rows], weight=known[rows]),
        "iu": lambda x, rows, epoch: cross_entropy(x, present[rows], weight=known[rows]),
        "an": lambda x, rows, epoch: cross_entropy(x, present[rows]),
        "an-ls": lambda x, rows, epoch: cross_entropy(x, smooth[rows]),
        "wan": lambda x, rows, epoch: cross_entropy(x, present[rows], weight=weak[rows]),
        "epr": lambda x, rows, epoch: cross_entropy(x, present[rows], weight=known[rows]) + expected(x),
        "em": entropy,
        "role": estimating,
    }
    return losses.get(method, large)


class PlainHead:
    """One head in a plain loop."""

    def __init__(self, method: str, lr: float, data: Data, batch_size: int) -> None:
        self.method, self.data, self.batch_size = method, data, batch_size
        self.features = data.features["train"]
        device = self.features.device
        codes = torch.from_numpy(data.table(method).to_dense()).to(device)
        torch.manual_seed(0)
        self.head = nn.Linear(self.features.shape[1], codes.shape[1]).to(device)
        groups: list[dict[str, Any]] = [{"params": self.head.parameters()}]
        self.estimate: nn.Parameter | None = None
        if method == "role":
            spread = torch.empty(codes.shape, device=device).uniform_(-float(np.log(1.5)), float(np.log(1.5)))
            start = torch.where(codes == PRESENT, float(np.log(199)), spread)
            self.estimate = nn.Parameter(start)
            groups.append({"params": [self.estimate], "lr": 10 * lr})
        self.loss = plain_loss(method, codes, self.estimate)
        self.optimizer = torch.optim.Adam(groups, lr=lr)
        self.best, self.weights = -1.0, self.head.state_dict()

    def train_epoch(self, epoch: int, images: int | None = None) -> None:
        """Train on every image once, or on a number of them."""
        order = torch.from_numpy(numpy_generator(0, "order", epoch).permutation(len(self.features))[:images])
        order = order.to(self.features.device)
        for rows in torch.split(order, self.batch_size):
            loss = self.loss(self.head(self.features[rows]), rows, epoch)
            self.optimizer.zero_grad()
            torch.autograd.backward(loss)
            self.optimizer.step()

    def rank_val(self) -> None:
        """Score val, and keep the weights if they are the best so far."""
        with torch.no_grad():
            score = average_precision(self.head(self.data.features["val"]), self.data.truth["val"])
        if score > self.best:
            self.best = score
            self.weights = {name: value.clone() for name, value in self.head.state_dict().items()}


@dataclass
class Clock:
    """Wall-clock and processor seconds."""

    wall: float = 0.0
    processors: float = 0.0
    _started: tuple[float, float] = field(default=(0.0, 0.0))

    def __enter__(self) -> None:
        self._started = time.perf_counter(), time.process_time()

    def __exit__(self, *_: object) -> None:
        self.wall += time.perf_counter() - self._started[0]
        self.processors += time.process_time() - self._started[1]


def plans_of(methods: list[str], rates: tuple[float, ...], data: Data) -> list[HeadPlan]:
    return [HeadPlan(name, METHODS[name], lr, data.table(name)) for name in methods for lr in rates]


def test_map(weight: Tensor, bias: Tensor, data: Data) -> float:
    scores = data.features["test"].cpu() @ weight.cpu().t() + bias.cpu()
    return 100 * average_precision(scores, data.truth["test"])


def faster_threads(work: Callable[[], object]) -> int:
    """Return the number of threads, one or all, with which some work is faster."""
    choices = sorted({1, torch.get_num_threads()})
    taken: dict[int, float] = dict.fromkeys(choices, float("inf"))
    for _ in range(3):
        for threads in choices:
            torch.set_num_threads(threads)
            started = time.perf_counter()
            work()
            taken[threads] = min(taken[threads], time.perf_counter() - started)
    torch.set_num_threads(choices[-1])
    return min(choices, key=taken.__getitem__)


def choose_threads(data: Data) -> tuple[int, int]:
    """Return the number of threads of the plain loops, and of the engine."""
    some = [PlainHead(name, 1e-3, data, 16) for name in ("an", "em", "role")]

    def plain_loops() -> None:
        for head in some:
            head.train_epoch(2, images=640)

    plain = faster_threads(plain_loops)
    few = {name: labels.select(np.arange(640)) for name, labels in data.tables.items()}
    plans = plans_of(list(METHODS), RATES, replace(data, tables=few))
    engine = LinearEngine(data.features["train"][:640], plans, epochs=2, batch_size=16)
    return plain, faster_threads(lambda: engine.train_epoch(2))


@dataclass
class Timings:
    """The time of training all heads both ways, over the same epochs."""

    plain: Clock = field(default_factory=Clock)
    engine: Clock = field(default_factory=Clock)
    done: int = 0  # number of epochs of the plain loops
    threads: tuple[int, int] = (1, 1)  # of the plain loops and of the engine


def train_both_ways(data: Data, epochs: int) -> tuple[Timings, list[HeadResult], list[PlainHead]]:
    """Train all heads both ways, alternating epoch by epoch."""
    times, ended = Timings(threads=choose_threads(data)), False
    print(f"threads: plain loops {times.threads[0]}, engine {times.threads[1]}")
    with times.plain:
        heads = [PlainHead(name, lr, data, 16) for name in METHODS for lr in RATES]
    with times.engine:
        plans = plans_of(list(METHODS), RATES, data)
        engine = LinearEngine(data.features["train"], plans, epochs=epochs, batch_size=16)
        val = LabelTable.from_dense(data.truth["val"], classes=plans[0].labels.classes)
        scorer, best = (
            ValScorer(data.features["val"], choose_selection(val, None, "clean"), engine),
            BestEpochs(engine, None),
        )
    for epoch in range(1, epochs + 1):
        torch.set_num_threads(times.threads[1])
        with Clock() if ended else times.engine:
            losses = engine.train_epoch(epoch)
            engine.end_epoch(list_revisions=False)
            best.update(epoch, losses, scorer.scores())
        torch.set_num_threads(times.threads[0])
        for head in [] if ended else heads:
            with times.plain:
                head.train_epoch(epoch)
                head.rank_val()
        times.done += not ended
        print(f"epoch {epoch}/{epochs}: plain {times.plain.wall:.1f} s, engine {times.engine.wall:.1f} s", flush=True)
        if not ended and epoch < epochs and times.plain.wall > TIME_LIMIT:
            ended = True
            print(f"this machine is slow: the plain loops stop after {epoch} epochs, the engine continues")
    return times, best.results(), heads


def table(results: list[HeadResult], heads: list[PlainHead], data: Data) -> None:
    """Print every method's test mAP both ways, at the learning rate that is best on val."""
    print(f"\n{'test mAP':<10}{'engine':>8}{'plain':>8}")
    for number, name in enumerate(METHODS):
        ours = max(results[2 * number : 2 * number + 2], key=lambda result: result.best_score or 0.0)
        theirs = max(heads[2 * number : 2 * number + 2], key=lambda head: head.best)
        found = test_map(torch.from_numpy(ours.weight), torch.from_numpy(ours.bias), data)
        plain = test_map(theirs.weights["weight"], theirs.weights["bias"], data)
        print(f"{name:<10}{found:>8.2f}{plain:>8.2f}")


def grid(data: Data, epochs: int) -> float:
    """Train Cole's grid on the GPU; return the speed-up over plain loops."""
    there, methods = data.to("cuda"), list(METHODS)[:9]
    engine_seconds = plain_seconds = 0.0
    for batch_size in (8, 16):
        plans = plans_of(methods, GRID_RATES, data)
        torch.cuda.synchronize()
        started = time.perf_counter()
        results = train_heads(
            there.features["train"],
            plans,
            epochs=epochs,
            batch_size=batch_size,
            val_features=there.features["val"],
            val_labels=data.truth["val"],
            device="cuda",
        )
        torch.cuda.synchronize()
        engine_seconds += time.perf_counter() - started
        print(f"batch {batch_size}: {len(results)} heads, {epochs} epochs in {time.perf_counter() - started:.2f} s")
        for name in methods:
            head = PlainHead(name, 1e-3, there, batch_size)
            head.train_epoch(1)
            torch.cuda.synchronize()
            started = time.perf_counter()
            head.train_epoch(2)
            head.rank_val()
            torch.cuda.synchronize()
            plain_seconds += (time.perf_counter() - started) * epochs * len(GRID_RATES)
    print(f"the grid: engine {engine_seconds:.2f} s; plain loops {plain_seconds:.0f} s (extrapolated)")
    return plain_seconds / engine_seconds


def main() -> None:
    epochs, real = parse_arguments(__doc__, epochs=25).epochs, FEATURES.exists()
    data = read() if real else random_data()
    what = "VOC 2012 features" if real else "random features of the same size (the file of VOC features is missing)"
    print(f"{what}; torch {torch.__version__}, up to {torch.get_num_threads()} threads")
    times, results, heads = train_both_ways(data, epochs)
    table(results, heads, data)
    print(f"\n{f'seconds, {times.done} epochs':<28}{'wall':>8}{'processors':>12}")
    for name, clock in (("plain, one at a time", times.plain), ("engine, all at once", times.engine)):
        print(f"{name:<28}{clock.wall:>8.1f}{clock.processors:>12.1f}")
    ratios = {
        "linear_24_heads": times.plain.wall / times.engine.wall,
        "linear_24_heads_processor_time": times.plain.processors / times.engine.processors,
    }
    if torch.cuda.is_available():
        ratios["linear_grid_on_gpu"] = grid(data, epochs)
    print_ratios(ratios)


if __name__ == "__main__":
    main()
