"""Two epochs on scenes of digits: every method ranks val better than the network it began with."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import labelgap as lg
from labelgap.core.seeds import numpy_generator, seed_everything
from labelgap.data.dataset import Dataset
from labelgap.models import Classifier, create_backbone
from labelgap.training.loop.inputs import ImageInputs
from labelgap.training.loop.trainer import predict_logits

CPU = torch.device("cpu")
OPTIONS: dict[str, dict[str, Any]] = {
    "epr": {"expected_positives": 2.5},
    "role": {"expected_positives": 2.5},
    "em-apl": {"warmup": 1},
    # A network that starts at random loses its features to this term.
    "imcl": {"lambda_features": 0},
    **{name: {"unknown": "negative"} for name in ("two-way", "two-way-sample", "two-way-class")},
}
# These learn from known labels alone, and positives alone teach nothing: they also see one absent label per image.
NEED_ABSENT = ("iu", "bce", "iun", "bce-ls", "curriculum", "imcl", "entmin")


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return lg.load("digits", train=800, val=300, test=0)


def val_map(network: Classifier, data: Dataset) -> float:
    assert data.val is not None
    scores = predict_logits(network, ImageInputs(data.val.images, network.backbone, CPU))
    return float(lg.average_precision(scores, data.val.labels))


@pytest.mark.parametrize("method", lg.methods())
def test_two_epochs_beat_the_untrained_network(method: str, digits: Dataset) -> None:
    data = digits.observe(1, 1) if method in NEED_ABSENT else digits
    table = data.train.labels
    seed_everything(0)
    network = Classifier(create_backbone("small-cnn"), len(data.classes))
    untrained = val_map(network, data)
    loss_fn = lg.loss(method, **OPTIONS.get(method, {}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # absolute thresholds may reach zero; that is their business
        loss_fn.prepare(table, epochs=2)
    groups = [{"params": list(network.parameters()), "lr": 3e-3}, *loss_fn.parameter_groups(3e-3)]
    optimizer = torch.optim.Adam(groups)
    inputs = ImageInputs(data.train.images, network.backbone, CPU)

    def scores() -> Iterator[tuple[Tensor, Tensor]]:
        for index, values in inputs.batches(batch_size=256):
            yield index, network(values).detach()

    for epoch in (1, 2):
        loss_fn.set_epoch(epoch)
        for index, values in inputs.batches(numpy_generator(0, epoch).permutation(len(table)), batch_size=16):
            logits, features = network(values, return_features=True)
            loss = loss_fn(logits, table.batch(index), index=index, features=features)
            optimizer.zero_grad()
            (loss + loss_fn.penalty(network.parameters())).backward()
            optimizer.step()
            loss_fn.after_step()
        loss_fn.end_epoch(scores)
    assert val_map(network, data) > untrained + 0.02
