"""Copies of batches from the CPU to the device of a training, ahead of their use."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import torch
from torch import Tensor

from labelgap.core.errors import LabelGapError

S = TypeVar("S")
T = TypeVar("T")

COPIED_AHEAD = 2
"""Batches that are copied to a GPU before the one that is computed is complete."""


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor of the CPU to a device; to a GPU through page-locked memory, so that the host does not wait."""
    if device.type != "cuda":
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)


def copy_ahead(batches: Iterable[tuple[Tensor, Tensor]], device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield ``(index, pixels)`` with the pixels on the device.

    To a GPU, ``COPIED_AHEAD`` batches are copied before they are needed, on a stream of their own: neither the host nor
    the computation waits for a copy.
    """
    if device.type != "cuda":
        yield from ((index, values.to(device)) for index, values in batches)
        return
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def start(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, torch.cuda.Event]:
        with torch.cuda.stream(stream):
            pixels = batch[1].to(device, non_blocking=True)
        return batch[0], pixels, stream.record_event()

    for index, pixels, copied in start_ahead(batches, start, COPIED_AHEAD):
        torch.cuda.current_stream(device).wait_event(copied)
        pixels.record_stream(torch.cuda.current_stream(device))
        yield index, pixels


def start_ahead(items: Iterable[T], start: Callable[[T], S], count: int) -> Iterator[S]:
    """Yield what ``start`` returns for every item; it was called for the ``count`` items that follow as well.

    Where an item cannot be read, those before it are yielded first.

    Example:
        >>> started = []
        >>> next(start_ahead("abcdef", started.append, 2)), started
        (None, ['a', 'b', 'c'])
    """
    source, waiting, more = iter(items), deque[S](), True
    failure: LabelGapError | None = None
    while more or waiting:
        try:
            while more and len(waiting) <= count:
                waiting.append(start(next(source)))
        except StopIteration:
            more = False
        except LabelGapError as error:
            more, failure = False, error
        if waiting:
            yield waiting.popleft()
    if failure is not None:
        raise failure
