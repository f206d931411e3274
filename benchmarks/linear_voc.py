"""Why linear heads on VOC 2012 stay behind the paper with few labels: one thing changed at a time.

    python benchmarks/linear_voc.py [--data FILE.npz] [--seeds 3] [--only NAME …] [--store RESULTS.json]

The baseline is the Linear protocol of Cole et al. (CVPR 2021) on the features of VOC 2012: Adam, batch 16, 25 epochs,
one known positive per image (`iu`: and one known absent), and the epoch with the highest val mAP. Each row changes one
thing and keeps the rest; ``bce``, which sees every label, is the control: a change that explains the difference must
raise the others and not it. Nothing is chosen on test. The last rows are the paper's numbers. Changes that share their
batches and features train together; ``--store`` keeps results in a file, and ``--only`` trains the changes whose name
contains a text. All changes with one seed, the default, are about 120 heads; three seeds take three times as long.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelgap.labels import ABSENT, UNKNOWN, LabelTable, paper_split
from labelgap.losses import register_method
from labelgap.losses.role import OnlineLabelEstimation
from labelgap.metrics import average_precision
from labelgap.training.heads import HeadPlan, HeadResult, LinearEngine
from labelgap.training.heads.train import BestEpochs, ValScorer
from labelgap.training.selection import Selection

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.harness import FEATURES, parse_arguments

EPOCHS: Final = 25
RATES: Final = {"bce": 1e-3, "an": 1e-3, "role": 1e-3, "iu": 1e-4}
"""Of 1e-3 and 1e-4 at batch 16 the better on val: the row "the other rate" has the other."""
OTHER_RATES: Final = {"bce": 1e-4, "an": 1e-4, "role": 1e-4, "iu": 1e-3}
AMOUNTS: Final[dict[str, tuple[Any, Any]]] = {"bce": ("all", "all"), "iu": (1, 1), "an": (1, 0), "role": (1, 0)}
PAPER: Final = {"bce": (86.7, None), "an": (84.2, 85.8), "role": (86.5, 90.3), "iu": (82.6, None)}
"""Tables 1 and 2 of the paper, Linear VOC12: mAP on test, and on the training images against their full labels."""
FEW: Final = ("an", "role", "iu")

Labels = Callable[["Data", str, int], LabelTable]


@dataclass(frozen=True)
class Data:
    """The official training images in their order, the test images, and the rows of train and val."""

    features: Tensor
    truth: LabelTable
    test_features: Tensor
    test_truth: NDArray[np.int8]
    rows: tuple[NDArray[np.int64], NDArray[np.int64]]


def papers_draw(data: Data, method: str, seed: int) -> LabelTable:
    return data.truth.observe(*AMOUNTS[method], seed=1200)


def other_draw(data: Data, method: str, seed: int) -> LabelTable:
    return data.truth.observe(*AMOUNTS[method], seed=seed)


def independent_absent(data: Data, method: str, seed: int) -> LabelTable:
    """Return the papers' positives, and one absent label of each image by a generator of its own."""
    return _with_absent(data, data.truth.to_dense() == ABSENT, seed)


def unverified_absent(data: Data, method: str, seed: int) -> LabelTable:
    """Return the papers' positives, and one unobserved label of each image taken as absent, true or not."""
    return _with_absent(data, papers_draw(data, "an", 0).to_dense() == UNKNOWN, seed)


def _with_absent(data: Data, candidates: NDArray[np.bool_], seed: int) -> LabelTable:
    codes = papers_draw(data, "an", 0).to_dense()
    draw = np.where(candidates, np.random.default_rng(seed).random(codes.shape), -1).argmax(axis=1)
    codes[np.arange(len(codes)), draw] = ABSENT
    return LabelTable.from_dense(codes)


@dataclass(frozen=True)
class Setting:
    """What heads that train together share."""

    batch_size: int = 16
    features: str = "as they are"
    dropout: float = 0.0
    split_seed: int = 1200
    with_val: bool = False


@dataclass(frozen=True)
class Change:
    """What differs from the baseline.

    Attributes:
        name: of the row.
        methods: that it is tried with.
        rates: learning rates by method; the best on val counts.
        setting: what its heads share with others.
        variant: the name of a changed method.
        options: of the method.
        decay: weight decay.
        initial: "uniform" (``nn.Linear``), "zeros", "kaiming" or "frequencies".
        labels: which are known, by data, method and seed.
        redraw: draws the labels anew in each epoch.
        rule: that selects the epoch.
    """

    name: str
    methods: tuple[str, ...] = FEW
    rates: tuple[dict[str, float], ...] = (RATES,)
    setting: Setting = field(default_factory=Setting)
    variant: str = ""
    options: tuple[tuple[str, Any], ...] = ()
    decay: float = 0.0
    initial: str = "uniform"
    labels: Labels = papers_draw
    redraw: Labels | None = None
    rule: str = "clean"

    def plans(self, data: Data, rows: NDArray[np.int64], seeds: int) -> Iterator[HeadPlan]:
        """Yield the heads of the change."""
        for method in self.methods:
            options = {**({"expected_positives": 1.5} if method == "role" else {}), **dict(self.options)}
            for seed in range(seeds):
                first = self.labels(data, method, seed) if self.redraw is None else self.redraw(data, method, 99 + seed)
                table = first.select(rows)  # equal tables are stored once: a redrawn one must not be another's
                for rates in self.rates:
                    name = self.variant or method
                    yield HeadPlan(name, options, rates[method], table, seed, self.decay, f"{method}/{seed}")


class _VariedRole(OnlineLabelEstimation):
    """ROLE with another rate or another start of its estimate. Abstract."""

    factor, spread, probabilities = 10.0, 1.0, False

    def prepare(self, table: LabelTable, epochs: int = 10, seed: int = 0) -> None:
        super().prepare(table, epochs, seed)
        unknown = torch.from_numpy(table.to_dense() == UNKNOWN).expand(self.phi.shape)
        start = self.phi.detach() * self.spread
        if self.probabilities:  # uniform on 0 to 1
            start = torch.logit(
                torch.rand(table.shape, generator=torch.Generator().manual_seed(seed)).clamp(1e-5, 1 - 1e-5)
            )
        self.phi.data.copy_(torch.where(unknown, start, self.phi.detach()))

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        return [{**group, "lr": self.factor * lr} for group in super().parameter_groups(lr)]


def _role(name: str, **attributes: Any) -> str:
    register_method(name, type(name, (_VariedRole,), attributes), summary=name)
    return name


def changes() -> list[Change]:
    role, iu = ("role",), ("iu",)
    role_names = {
        "φ at the head's rate": _role("role-1x", factor=1.0),
        "φ at 100 times the rate": _role("role-100x", factor=100.0),
        "φ starts at 0": _role("role-zero", spread=0.0),
        "φ starts uniform in probability on 0…1": _role("role-wide", probabilities=True),
    }
    per_rate = [dict.fromkeys(RATES, rate) for rate in (1e-2, 1e-5)]
    settings = {
        "batch 8": Setting(batch_size=8),
        "batch 64": Setting(batch_size=64),
        "features divided by their length × 24": Setting(features="unit length"),
        "features standardized": Setting(features="standardized"),
        "features × 4": Setting(features="times 4"),
        "dropout 0.5 on the features": Setting(dropout=0.5),
    }
    return [
        Change("baseline", methods=tuple(RATES)),
        Change("the other rate of 1e-3 and 1e-4", methods=tuple(RATES), rates=(OTHER_RATES,)),
        Change("rate 1e-2", rates=(per_rate[0],)),
        Change("rate 1e-5", rates=(per_rate[1],)),
        Change("the head starts at 0", initial="zeros"),
        Change("the head starts as Kaiming normal", initial="kaiming"),
        Change("biases start at the log-odds of the labels", initial="frequencies"),
        *(Change(f"weight decay {decay:g}", (*FEW, "bce"), decay=decay) for decay in (1e-4, 3e-4, 1e-3, 1e-2)),
        Change("loss summed, not averaged", options=(("reduction", "sum"),)),
        Change("epoch chosen by observed labels of val", rule="observed"),
        Change("other draws of the labels", labels=other_draw),
        Change("absent label drawn apart", iu, labels=independent_absent),
        Change("absent label drawn from the unobserved", iu, labels=unverified_absent),
        Change("absent label drawn anew in each epoch", iu, redraw=independent_absent),
        Change("all observed labels drawn anew in each epoch", ("an", "iu"), redraw=other_draw),
        *(Change(name, role, variant=variant) for name, variant in role_names.items()),
        Change("expected positives 1.46, as in val", role, options=(("expected_positives", 1.46),)),
        *(Change(name, (*FEW, "bce"), (RATES, OTHER_RATES), setting) for name, setting in settings.items()),
        *(Change(f"another split, seed {seed}", setting=Setting(split_seed=seed)) for seed in (1, 2)),
        Change("trained on train and val, epochs as the baseline", (*FEW, "bce"), setting=Setting(with_val=True)),
    ]


def read(path: Path) -> Data:
    with np.load(path) as stored:
        arrays = dict(stored)
    order = np.argsort(np.concatenate([arrays["train_ids"], arrays["val_ids"]]))
    features, truth = (
        np.concatenate([arrays[f"{split}_{kind}"] for split in ("train", "val")])[order]
        for kind in ("features", "truth")
    )
    test = torch.from_numpy(arrays["test_features"].astype(np.float32))
    rows = paper_split(len(order))
    data = Data(
        torch.from_numpy(features.astype(np.float32)), LabelTable.from_dense(truth), test, arrays["test_truth"], rows
    )
    assert np.array_equal(papers_draw(data, "an", 0).select(rows[0]).to_dense(), arrays["train_observed"])
    return data


def transformed(features: Tensor, kind: str, train: Tensor) -> Tensor:
    if kind == "unit length":
        return 24 * torch.nn.functional.normalize(features)  # about their mean length: the rates stay comparable
    if kind == "standardized":
        return (features - train.mean(0)) / train.std(0).clamp(min=1e-6)
    return features * 4 if kind == "times 4" else features


def initial_heads(engine: LinearEngine, starts: list[str]) -> None:
    weight, bias = engine.heads
    for number, (start, plan) in enumerate(zip(starts, engine.plans, strict=True)):
        if start == "zeros":
            weight[number], bias[number] = 0.0, 0.0
        elif start == "kaiming":
            generator = torch.Generator().manual_seed(plan.seed)
            weight[number] = torch.randn(weight[number].shape, generator=generator) * (2 / weight.shape[2]) ** 0.5
            bias[number] = 0.0
        elif start == "frequencies":
            share = torch.from_numpy(plan.labels.counts().present / len(plan.labels)).float()
            bias[number] = torch.logit(share)
    engine.set_heads(weight, bias)


def train(
    setting: Setting, group: list[Change], data: Data, epochs_of: dict[str, int], seeds: int
) -> list[dict[str, Any]]:
    """Train the heads of changes together; return their scores."""
    rows, val = data.rows
    if setting.split_seed != 1200:
        order = np.random.RandomState(setting.split_seed).permutation(len(data.truth))
        rows, val = np.sort(order[: len(rows)]), np.sort(order[len(rows) :])
    rows = np.arange(len(data.truth)) if setting.with_val else rows
    plain = data.features[torch.from_numpy(rows)]
    inputs = {
        name: transformed(values, setting.features, plain)
        for name, values in {
            "train": plain,
            "val": data.features[torch.from_numpy(val)],
            "test": data.test_features,
        }.items()
    }
    members = [(change, plan) for change in group for plan in change.plans(data, rows, seeds)]
    engine = LinearEngine(inputs["train"], [plan for _, plan in members], epochs=EPOCHS, batch_size=setting.batch_size)
    initial_heads(engine, [change.initial for change, _ in members])
    rules = {
        "clean": Selection("clean", data.truth.select(val), ""),
        "observed": Selection("observed", papers_draw(data, "an", 0).select(val), ""),
    }
    scorers = {rule: (ValScorer(inputs["val"], rules[rule], engine), BestEpochs(engine, None)) for rule in rules}
    fixed: dict[int, tuple[Tensor, Tensor]] = {}
    for epoch in range(1, EPOCHS + 1):
        before_epoch(engine, members, setting, inputs["train"], data, rows, epoch)
        losses = engine.train_epoch(epoch)
        for scorer, best in scorers.values():
            best.update(epoch, losses, scorer.scores())
        for number, (_, plan) in enumerate(members if setting.with_val else ()):
            if epochs_of.get(plan.name.split("/")[0], EPOCHS) == epoch:
                fixed[number] = tuple(values[number].clone() for values in engine.heads)  # type: ignore[assignment]
    results = {rule: best.results() for rule, (_, best) in scorers.items()}
    for number, (weight, bias) in fixed.items():
        results["clean"][number].weight, results["clean"][number].bias = weight.numpy(), bias.numpy()
    truths = {"train": data.truth.select(rows).to_dense(), "test": data.test_truth}
    return [score(change, results[change.rule][number], inputs, truths) for number, (change, _) in enumerate(members)]


def before_epoch(
    engine: LinearEngine,
    members: list[tuple[Change, HeadPlan]],
    setting: Setting,
    features: Tensor,
    data: Data,
    rows: NDArray[np.int64],
    epoch: int,
) -> None:
    """Draw what is drawn in each epoch; an image is seen once in an epoch, so that this is dropout."""
    if setting.dropout:
        kept = torch.rand(features.shape, generator=torch.Generator().manual_seed(epoch)) >= setting.dropout
        engine.features = features * kept / (1 - setting.dropout)
    for number, (change, plan) in enumerate(members):
        if change.redraw is not None and engine.tables.dense is not None:
            drawn = change.redraw(data, plan.method, 1000 * epoch + plan.seed).select(rows).to_dense()
            engine.tables.dense[engine.tables.number[number]].copy_(torch.from_numpy(drawn))


def score(
    change: Change, result: HeadResult, inputs: dict[str, Tensor], truths: dict[str, NDArray[np.int8]]
) -> dict[str, Any]:
    method, seed = result.plan.name.split("/")
    found = {
        "change": change.name,
        "method": method,
        "seed": int(seed),
        "lr": result.plan.lr,
        "epoch": result.best_epoch,
    }
    if result.failed is not None or result.best_score is None:
        return {**found, "val": 0.0, "test": 0.0, "train": 0.0}
    for name, truth in truths.items():
        logits = inputs[name].numpy() @ result.weight.T + result.bias
        found[name] = 100 * float(average_precision(logits, truth))
    return {**found, "val": 100 * result.best_score}


def print_table(results: list[dict[str, Any]], rows: list[Change]) -> None:
    """Print the mean over seeds, each method at the rate that is best on val."""
    print("\n| change | method | lr | epoch | val | test | ± | from the baseline | train |")
    print("|---|---|---|---|---|---|---|---|---|")
    base: dict[str, float] = {}
    for change in rows:
        for method in change.methods:
            found = [each for each in results if (each["change"], each["method"]) == (change.name, method)]
            by_rate = [[each for each in found if each["lr"] == lr] for lr in sorted({each["lr"] for each in found})]
            if not by_rate:
                continue
            best = max(by_rate, key=lambda heads: float(np.mean([head["val"] for head in heads])))
            mean = {name: float(np.mean([head[name] for head in best])) for name in ("val", "test", "train")}
            spread = float(np.std([head["test"] for head in best], ddof=1)) if len(best) > 1 else 0.0
            base.setdefault(method, mean["test"])
            epochs = " ".join(str(head["epoch"]) for head in best)
            cells = f"{best[0]['lr']:g} | {epochs} | {mean['val']:.2f} | {mean['test']:.2f} | {spread:.2f}"
            print(
                f"| {change.name} | `{method}` | {cells} | {mean['test'] - base[method]:+.2f} | {mean['train']:.2f} |"
            )
    for method, (test, fitted) in PAPER.items():
        print(f"| the paper | `{method}` | | | | {test} | | | {'' if fitted is None else fitted} |")


def main() -> None:
    arguments = parse_arguments(__doc__, data=FEATURES, seeds=1, only=("",), store=Path)
    data, every = read(arguments.data), changes()
    stored = json.loads(arguments.store.read_text()) if arguments.store and arguments.store.exists() else []
    done = {each["change"] for each in stored}
    groups: dict[Setting, list[Change]] = {}
    for change in every:
        if change.name not in done and any(text in change.name for text in arguments.only):
            groups.setdefault(change.setting, []).append(change)
    started = time.perf_counter()
    for setting, group in groups.items():
        epochs = {
            method: round(float(np.median([each["epoch"] for each in stored if _is_base(each, method)] or [EPOCHS])))
            for method in RATES
        }
        stored += train(setting, group, data, epochs, arguments.seeds)
        print(f"{', '.join(change.name for change in group)}: {time.perf_counter() - started:.0f} s in all", flush=True)
        if arguments.store:
            arguments.store.write_text(json.dumps(stored))
    print_table(stored, every)


def _is_base(each: dict[str, Any], method: str) -> bool:
    return bool(each["change"] == "baseline" and each["method"] == method)


if __name__ == "__main__":
    main()
