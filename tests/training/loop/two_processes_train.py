"""Trains each method with the processes that torchrun started; run by ``test_parallel.py``."""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

import labelgap as lg
from labelgap.losses import ElementwiseLoss
from labelgap.models import Classifier

METHODS: dict[str, dict[str, Any]] = {
    "ll-cp": {"delta_rel": 5},
    "em-apl": {"warmup": 1, "alpha": 0.1},
    "role": {"expected_positives": 2.5},
    "two-way": {"unknown": "negative"},
}


class Breaks(ElementwiseLoss):
    """Costs NaN in the second epoch for a known image, which is in one of the two processes."""

    needs = frozenset({"index"})

    def entries(self, logits: Tensor, labels: Tensor) -> Tensor:
        return softplus(logits) - logits * (labels == 1)

    def cost(self, logits: Tensor, labels: Tensor, index: Tensor | None, features: Tensor | None) -> Tensor:
        assert index is not None
        bad = self.epoch == 2 and bool((index == 7).any())
        return super().cost(logits, labels, index, features) * (float("nan") if bad else 1.0)


def main(out: Path) -> None:
    """Train in float64, where the order of sums does not show; Adam's first steps magnify what rounding leaves."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    building: Any = import_module("labelgap.training.features.precomputed")
    building.Classifier = lambda *arguments, **options: Classifier(*arguments, **options).double()
    data = lg.load("digits", train=81, val=10, test=10)
    try:
        for method, options in METHODS.items():
            # 81 rows in batches of 20: the last batch has one row, so one of two processes gets none of it.
            lg.fit(data, method, options, out=out / method, epochs=2, batch_size=20, device="cpu", quiet=True)
        lg.fit(data, Breaks(), out=out / "breaks", epochs=3, batch_size=20, device="cpu", quiet=True)
        settings: dict[str, Any] = {"epochs": 1, "linear_epochs": 2, "batch_size": 20, "device": "cpu", "quiet": True}
        lg.fit(data, "ll-r", {"delta_rel": 5}, protocol="linear-init", out=out / "linear-init", **settings)
    finally:
        building.Classifier = Classifier


if __name__ == "__main__":
    main(Path(sys.argv[1]))
