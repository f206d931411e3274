"""What one process, and two together, make of the same data; ``test_distributed_training.py`` compares."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from tests.audit.small_runs import write
from tests.training.some_prior import teach, with_prior
from torch import Tensor, nn
from torch.nn.functional import softplus

import labelgap as lg
from labelgap.core.distributed import is_distributed, is_main_process, rank
from labelgap.core.errors import InputError, LabelGapError
from labelgap.inference.predict import predict_to_file
from labelgap.losses import ElementwiseLoss
from labelgap.models import Classifier, InputSpec, as_backbone
from labelgap.training.features import extract_features
from labelgap.training.loop import processes
from labelgap.training.loop.processes import barrier
from labelgap.training.progress import Reporter

METHODS: dict[str, dict[str, Any]] = {
    "ll-r": {"delta_rel": 5},
    "epr": {"expected_positives": 2.5},
    "two-way": {"unknown": "negative"},
    "role": {"expected_positives": 2.5},
    "ll-cp": {"delta_rel": 5},
    "em-apl": {"warmup": 1, "alpha": 0.1},
}
NORMS = ("local", "sync", "frozen")
SETTINGS: dict[str, Any] = {"device": "cpu", "quiet": True, "optimizer": "sgd", "select": "last", "lr": 0.05}
# 41 images in batches of 8: six steps an epoch; the last batch has one image, so one of two processes has none.
BATCH = 8


class Breaks(ElementwiseLoss):
    """Costs NaN in the second epoch for a known image, which is in one of the two processes."""

    needs = frozenset({"index"})

    def entries(self, logits: Tensor, labels: Tensor) -> Tensor:
        return softplus(logits) - logits * (labels == 1)

    def cost(self, logits: Tensor, labels: Tensor, index: Tensor | None, features: Tensor | None) -> Tensor:
        assert index is not None
        bad = self.epoch == 2 and bool((index == 7).any())
        return super().cost(logits, labels, index, features) * (float("nan") if bad else 1.0)


class SmallNetwork(nn.Module):
    """A network for images of the digits, with normalization if asked for."""

    input_spec = InputSpec(size=16, mean=(0.5,), std=(0.16,), channels=1)

    def __init__(self, norm: Callable[..., nn.Module] = nn.Identity) -> None:
        super().__init__()
        torch.manual_seed(3)
        first, second = nn.Conv2d(1, 6, 5, stride=3), nn.Conv2d(6, 8, 3)
        self.layers = nn.Sequential(first, norm(6), nn.Tanh(), second, norm(8, momentum=None))

    def forward(self, images: Tensor) -> Tensor:
        maps: Tensor = self.layers(images)
        return maps


@contextmanager
def double_precision() -> Iterator[None]:
    """Build networks in float64, where the order of sums does not show."""
    building: Any = import_module("labelgap.training.network")
    building.Classifier = lambda *arguments, **options: Classifier(*arguments, **options).double()
    try:
        yield
    finally:
        building.Classifier = Classifier


def digits() -> lg.Dataset:
    return lg.load("digits", train=41, val=10, test=10)


def train_networks(out: Path) -> None:
    """Train networks in float64: every method, every kind of batch normalization, and a loss that breaks."""
    data = digits()
    settings: dict[str, Any] = {**SETTINGS, "batch_size": BATCH, "epochs": 2, "protocol": "end-to-end"}
    for method, options in METHODS.items():
        lg.fit(data, method, options, SmallNetwork(), out=out / method, **settings)
    for norm in NORMS:
        lg.fit(data, "an", {}, SmallNetwork(nn.BatchNorm2d), out=out / norm, batchnorm=norm, **settings)  # type: ignore[arg-type]
    seen = with_prior(data, teacher=teach(data, noise=0.3))
    lg.fit(seen, "gpr", {}, SmallNetwork(), out=out / "prior", **settings)
    lg.fit(data, Breaks(), {}, SmallNetwork(), out=out / "breaks", **{**settings, "epochs": 3, "batch_size": 20})
    linear: dict[str, Any] = {"epochs": 1, "linear_epochs": 2, "select": "auto", "protocol": "linear-init"}
    lg.fit(data, "role", METHODS["role"], SmallNetwork(), out=out / "linear-init", **{**settings, **linear})


def train_until(out: Path, batches: int | None = None) -> None:
    """Train or resume a run, and stop it after so many more batches, as a Ctrl-C does; every step has a checkpoint."""
    left = iter(range(1000 if batches is None else batches - 1))

    def advance(*_: object, **__: object) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt

    resume = (out / "config.json").exists()
    barrier()
    settings: dict[str, Any] = {**SETTINGS, "batch_size": BATCH, "epochs": 3, "protocol": "end-to-end"}
    settings |= {"out": out, "resume": resume, "checkpoint_minutes": 1e-9}
    with double_precision(), suppress(KeyboardInterrupt), patch.object(Reporter, "move_to", advance):
        lg.fit(digits(), "ll-cp", METHODS["ll-cp"], SmallNetwork(), **settings)


def use_runs(out: Path, trained: Path) -> None:
    """Predict, evaluate and audit with runs that one process trained; also with fewer images than processes."""
    data, network, head = digits(), lg.open_run(trained / "network"), lg.open_run(trained / "head")
    every = [split.images for split in data.splits]
    with patch("labelgap.inference.predict.MAX_IMAGES", 16):
        summaries = [predict_to_file(network, every, out / "all.csv", batch_size=8, device="cpu")]
        summaries += [predict_to_file(network, data.test.images.select([0]), out / "one.csv", device="cpu")]  # type: ignore[union-attr]
    measured = network.evaluate(data, device="cpu", resamples=0)
    audits = [lg.find_missing(head, splits="all", folds=3, out=out / "heads", device="cpu", quiet=True)]
    audits += [lg.find_missing(network, folds=2, out=out / "networks", device="cpu", quiet=True)]
    rows = [audit.table.to_pylist() for audit in audits]
    seen = {"images": [summary.images for summary in summaries], "measured": measured, "audits": rows}
    (out / f"uses-{rank()}.json").write_text(json.dumps(seen))


def features(out: Path) -> None:
    """Extract the features of 41 + 10 + 1 images, of which two are equal."""
    data, backbone = digits(), as_backbone(SmallNetwork())
    sources = [data.train.images, data.test.images, data.train.images.select([5])]  # type: ignore[union-attr]
    found = extract_features(sources, backbone, device=torch.device("cpu"), reporter=Reporter(quiet=True))
    np.savez(out / f"features-{rank()}.npz", *found)
    first = extract_features(sources, backbone, device=torch.device("cpu"), reporter=Reporter(True), everywhere=False)
    assert [len(part) for part in first] == ([41, 10, 1] if is_main_process() else [0, 0, 0])


def errors(out: Path) -> None:
    """Write the message that each process gets where something is wrong in one."""

    def one_fails() -> None:
        with processes.fail_together():
            if rank() == 1:
                raise InputError("tags.csv does not exist.")

    def both_fail() -> None:
        with processes.fail_together():
            raise InputError("a typing error.")

    def other_seeds() -> None:
        lg.fit(digits(), "an", out=out / "seeds", epochs=1, seed=rank(), device="cpu", quiet=True)

    def other_folders() -> None:
        waits = patch.object(processes, "FOLDER_SECONDS", 0.3)
        with waits, processes.lock_together(out / f"folder-{rank()}", "training"):
            raise AssertionError

    def small_batch() -> None:
        lg.fit(digits(), "an", out=out / "small", epochs=1, batch_size=1, device="cpu", quiet=True)

    said = {}
    for case in (one_fails, both_fail, other_seeds, other_folders, small_batch):
        try:
            case()
        except LabelGapError as error:
            said[case.__name__] = [type(error).__name__, str(error)]
    assert not (out / "seeds" / "last.pt").exists()
    (out / f"errors-{rank()}.json").write_text(json.dumps(said))


def main(folder: Path) -> None:
    """In the second process of two, or in the only one: everything that both do."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    out = folder / ("two" if is_distributed() else "one")
    if is_main_process():
        out.mkdir()
    barrier()
    with double_precision():
        train_networks(out)
    features(out)
    if not is_distributed():
        vectors = lg.load("features", write(out))
        lg.fit(vectors, "em", out=out / "head", epochs=3, device="cpu", quiet=True)
        lg.fit(digits(), "an", out=out / "network", epochs=1, batch_size=20, device="cpu", quiet=True)
    train_until(folder / "resumed", 7 if is_distributed() else 8)
    use_runs(out, folder / "one")
    if is_distributed():
        errors(out)
