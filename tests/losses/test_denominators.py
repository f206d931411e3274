"""What a mean divides by, as the docs state it, and how that differs from another public implementation.

The numbers of mlcpl 0.1.7 (PyPI) were read off its losses, run on ``batch()``; the formulas beside them are NumPy's.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from labelgap.labels import ABSENT, PRESENT, UNKNOWN
from labelgap.losses import loss

Array = NDArray[np.float64]
MLCPL_MEANS = {"iu": 1.0243406, "csl": 0.4498682}
MLCPL_LARGE = {"ll-r": (1.0369105, 1.0031964, 0.9270605), "ll-ct": (1.0371314, 1.0037669, 0.9288791)}


def batch() -> tuple[Array, NDArray[np.int8]]:
    """20 × 10 logits and labels: 20 present, 116 absent, 64 unknown, so that 68 % are known."""
    random = np.random.default_rng(0)
    labels = np.repeat(np.array([PRESENT, ABSENT, UNKNOWN], dtype=np.int8), [20, 116, 64])
    return random.normal(0.0, 2.0, (20, 10)), random.permutation(labels).reshape(20, 10)


def cost(name: str, **options: float) -> float:
    logits, labels = batch()
    loss_fn = loss(name, **{key: value for key, value in options.items() if key != "epoch"})
    loss_fn.set_epoch(int(options.get("epoch", 1)))
    return float(loss_fn(torch.from_numpy(logits), torch.from_numpy(labels)))


def softplus(values: Array) -> Array:
    return np.logaddexp(0.0, values)


def test_iu_divides_by_all_entries_and_mlcpl_by_the_known_ones() -> None:
    logits, labels = batch()
    entries = np.where(labels == PRESENT, softplus(-logits), softplus(logits)) * (labels != UNKNOWN)
    assert cost("iu") == pytest.approx(entries.sum() / labels.size)
    assert MLCPL_MEANS["iu"] == pytest.approx(entries.sum() / (labels != UNKNOWN).sum(), rel=1e-5)
    assert cost("iu") / MLCPL_MEANS["iu"] == pytest.approx(0.68, rel=1e-5)


def test_csl_divides_by_all_entries_and_mlcpl_by_those_that_are_not_left_out() -> None:
    logits, labels = batch()
    p, unknown = 1 / (1 + np.exp(-logits)), labels == UNKNOWN
    left_out = unknown & (logits >= np.sort(logits[unknown])[-20])  # one for each image of the batch
    entries = np.where(labels == PRESENT, softplus(-logits), p**4 * softplus(logits)) * ~left_out
    found = cost("csl", gamma_neg=4.0, gamma_unknown=4.0, likelihood_topk=1)
    assert found == pytest.approx(entries.sum() / labels.size)
    assert MLCPL_MEANS["csl"] == pytest.approx(entries.sum() / 180, rel=1e-5)


@pytest.mark.parametrize("name", ["ll-r", "ll-ct"])
def test_large_losses_are_counted_up_to_the_next_number_and_mlcpl_modifies_fewer(name: str) -> None:
    logits, labels = batch()
    unknown, assumed = labels == UNKNOWN, np.where(labels == PRESENT, softplus(-logits), softplus(logits))
    for epoch, theirs in zip((2, 3, 5), MLCPL_LARGE[name], strict=True):
        share = 64 * (epoch - 1) * 4 / 100
        for modified, expected in (
            (math.ceil(share), cost(name, delta_rel=4.0, epoch=epoch)),
            (round(share) - 1, theirs),  # above the k-th largest; its epochs are counted from 0
        ):
            large = unknown & (assumed >= np.sort(assumed[unknown])[-modified]) if modified else unknown & False
            entries = np.where(large, softplus(-logits) if name == "ll-ct" else 0.0, assumed)
            assert expected == pytest.approx(entries.mean(), rel=1e-5), (epoch, modified)


def test_losses_over_pairs_divide_by_images() -> None:
    logits, labels = (torch.from_numpy(each) for each in batch())
    with_positive = int((labels == PRESENT).any(dim=1).sum())
    for name, count in (("warp", 20), ("rml", 20), ("softmax", with_positive), ("pr", 200)):
        mean, total = (float(loss(name, reduction=each)(logits, labels)) for each in ("mean", "sum"))
        assert mean == pytest.approx(total / count) and with_positive < 20, name
