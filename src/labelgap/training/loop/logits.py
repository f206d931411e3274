"""The batches of a process, and the logits of a network for every row of its inputs, by all processes together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labelgap.training.loop.device_copies import to_device
from labelgap.training.loop.distributed import gather_all, shard_batches
from labelgap.training.loop.inputs import Inputs

MAX_ON_DEVICE = 2**24
"""Logits that stay on the device until they are copied together; every copy waits for it."""

Autocast = Callable[[torch.device], AbstractContextManager[Any]]
"""Returns the context of a precision."""


def iterate_batches(
    inputs: Inputs, rows: NDArray[np.int64], batch_size: int, epoch: int | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield ``(index, inputs)`` of this process's part of every batch.

    All processes take the same number of steps: where the last batch is too small for all, ``index`` is empty and one
    row of inputs comes along for the network, whose output must not count.
    """
    own, size, padded = shard_batches(rows, batch_size)
    last = -(-len(own) // size)
    for number, (index, values) in enumerate(inputs.batches(own, batch_size=size, epoch=epoch), 1):
        yield (index[:0] if padded and number == last else index), values


def predict_logits(
    network: nn.Module, inputs: Inputs, batch_size: int = 256, *, autocast: Autocast = nullcontext
) -> NDArray[np.float32]:
    """Return the logits of every row, in eval mode and without augmentation."""
    found: list[NDArray[np.float32]] = []
    on_device: list[Tensor] = []
    for _, logits in iterate_logits(network, inputs, batch_size, autocast=autocast):
        on_device.append(logits)
        if sum(part.numel() for part in on_device) > MAX_ON_DEVICE:
            found.append(torch.cat(on_device).cpu().numpy())
            on_device.clear()
    return np.concatenate([*found, *([torch.cat(on_device).cpu().numpy()] if on_device else [])])


def iterate_logits(
    network: nn.Module, inputs: Inputs, batch_size: int = 256, *, autocast: Autocast = nullcontext
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield ``(index, logits)`` of every row once, in eval mode and without augmentation.

    Several processes share the work, and each gets the logits of all.
    """
    was_training = network.training
    network.eval()
    try:
        for index, values in iterate_batches(inputs, np.arange(len(inputs)), batch_size):
            with torch.no_grad(), autocast(values.device):
                logits = network(values)[: len(index)].float()
            index, logits = gather_all(to_device(index, logits.device), logits)
            yield index, logits
    finally:
        network.train(was_training)
