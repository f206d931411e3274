"""A plain training loop with every hook: each method ranks held-out images better than the network it started from."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import labelgap as lg

IMAGES, INPUTS, HIDDEN, CLASSES, EPOCHS = 400, 16, 32, 8, 4
OPTIONS: dict[str, dict[str, Any]] = {
    "epr": {"expected_positives": 2.5},
    "role": {"expected_positives": 2.5},
    "em-apl": {"warmup": 1},
    # On randomly initialized features this term makes all features equal.
    "imcl": {"lambda_features": 0},
    **{name: {"unknown": "negative"} for name in ("two-way", "two-way-sample", "two-way-class")},
}
# These learn from known labels only, and positives alone teach nothing: they also see one absent label per image.
NEED_ABSENT = ("iu", "bce", "iun", "bce-ls", "curriculum", "imcl", "entmin")


class Network(nn.Module):
    """Two layers; returns logits and the features before the head."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.ReLU())
        self.head = nn.Linear(HIDDEN, CLASSES)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        features = self.backbone(inputs)
        return self.head(features), features


@pytest.fixture(scope="module")
def problem() -> tuple[Tensor, lg.LabelTable]:
    """Inputs, and full labels that a linear rule gives: about 2.5 present labels per image."""
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((2 * IMAGES, INPUTS))
    scores = inputs @ rng.standard_normal((INPUTS, CLASSES)) / 4
    present = scores > np.quantile(scores, 0.7)
    present[np.arange(2 * IMAGES), scores.argmax(axis=1)] = True
    return torch.tensor(inputs, dtype=torch.float32), lg.LabelTable.from_dense(present.astype(np.int8))


@pytest.mark.parametrize("method", lg.methods())
def test_four_epochs_beat_the_untrained_network(method: str, problem: tuple[Tensor, lg.LabelTable]) -> None:
    inputs, truth = problem
    table = truth.observe(positives=1, negatives=1 if method in NEED_ABSENT else 0).select(np.arange(IMAGES))
    torch.manual_seed(0)
    network = Network()

    def held_out_map() -> float:
        with torch.no_grad():
            return float(lg.average_precision(network(inputs[IMAGES:])[0].numpy(), truth.to_dense()[IMAGES:]))

    def scores() -> Iterator[tuple[Tensor, Tensor]]:
        with torch.no_grad():
            yield torch.arange(IMAGES), network(inputs[:IMAGES])[0]

    untrained = held_out_map()
    loss_fn = lg.loss(method, **OPTIONS.get(method, {}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # absolute thresholds may reach zero
        loss_fn.prepare(table, epochs=EPOCHS)
    groups = [{"params": list(network.parameters()), "lr": 3e-3}, *loss_fn.parameter_groups(3e-3)]
    optimizer = torch.optim.Adam(groups)
    for epoch in range(1, EPOCHS + 1):
        loss_fn.set_epoch(epoch)
        for index in torch.split(torch.randperm(IMAGES), 16):
            logits, features = network(inputs[index])
            loss = loss_fn(logits, table.batch(index), index=index, features=features)
            optimizer.zero_grad()
            (loss + loss_fn.penalty(network.parameters())).backward()
            optimizer.step()
            loss_fn.after_step()
        loss_fn.end_epoch(scores)
    assert held_out_map() > untrained + 0.1
