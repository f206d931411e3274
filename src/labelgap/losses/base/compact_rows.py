"""Logits for each training image and class in memory that grows with the images that training has seen.

Of an image that was seen, the M highest logits are stored with their classes, and one value that all other classes
share: four bytes for each of the M, instead of four for each class. The arrays have room for all images, but an
operating system gives memory only to what was written, and images are stored in the order in which they are first seen.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn


class EstimateRows(NamedTuple):
    """The logits of some images.

    Attributes:
        classes: ``(…, B, M)`` class numbers, int64.
        values: ``(…, B, M)`` their logits.
        rest: ``(…, B, 1)`` the logit of all other classes.
    """

    classes: Tensor
    values: Tensor
    rest: Tensor

    def dense(self, count: int, values: Tensor | None = None, rest: Tensor | None = None) -> Tensor:
        """Return ``(…, B, K)``: the logits, or what was computed from ``values`` and from ``rest``."""
        values, rest = self.values if values is None else values, self.rest if rest is None else rest
        return rest.expand(*rest.shape[:-1], count).contiguous().scatter_(-1, self.classes, values)


def compress_rows(logits: Tensor, kept: int, excluded: Tensor) -> EstimateRows:
    """Keep the highest logits ``(…, B, K)`` of each image, and the mean of the others; ``logits`` is overwritten.

    Entries at the places ``row · K + class`` of ``excluded`` are not part of the mean, and kept only where there are
    too few others.

    Example:
        >>> rows = compress_rows(torch.tensor([[3.0, 1.0, 2.0, 9.0]]), 1, torch.tensor([3]))
        >>> rows.classes.tolist(), rows.values.tolist(), rows.rest.tolist()
        ([[0]], [[3.0]], [[1.5]])
    """
    count = logits.shape[-1]
    flat = logits.flatten(-2)
    flat.index_fill_(-1, excluded, -math.inf)
    values, classes = torch.topk(logits, min(kept, count), dim=-1, sorted=False)
    values = values.nan_to_num_(neginf=0.0)
    flat.index_fill_(-1, excluded, 0.0)
    free = count - torch.bincount(excluded // count, minlength=logits.shape[-2])[:, None]
    total = logits.sum(-1, keepdim=True) - values.sum(-1, keepdim=True)
    return EstimateRows(classes, values, total / (free - values.shape[-1]).clamp(min=1))


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return zeros; on a CPU they take memory only once they are written to (``torch.zeros`` writes them)."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.zeros((*shape[:-1], shape[-1] * dtype.itemsize), dtype=np.uint8)).view(dtype)


class CompactRows(nn.Module):
    """The storage of ``EstimateRows`` for N images; an image that was not yet seen has the logit 0 in all classes.

    Args:
        heads: leading axes.
        images: N.
        classes: K.
        kept: M, how many classes of an image have a logit of their own.
        device: of all tensors.

    The ``state_dict`` has the images that were seen, and its size is theirs.
    """

    slot: Tensor
    used: Tensor
    classes: Tensor
    values: Tensor
    rest: Tensor

    def __init__(self, heads: tuple[int, ...], images: int, classes: int, kept: int, device: torch.device) -> None:
        super().__init__()
        shape = (*heads, images, min(kept, classes))
        number = torch.int16 if classes <= 1 << 15 else torch.int32
        buffers = {
            "slot": torch.full((images,), -1, dtype=torch.int32, device=device),
            "used": torch.zeros((), dtype=torch.int64, device=device),
            "classes": _zeros(shape, number, device),
            "values": _zeros(shape, torch.float16, device),
            "rest": _zeros((*shape[:-1], 1), torch.float32, device),
        }
        for name, values in buffers.items():
            self.register_buffer(name, values, persistent=False)

    @property
    def nbytes(self) -> int:
        """Memory once all images were seen."""
        return sum(values.nbytes for values in self.buffers())

    def rows(self, index: Tensor) -> EstimateRows:
        """Return the logits of some images ``(B,)``, single precision or wider."""
        slot = self.slot.index_select(0, index)
        seen, place = (slot >= 0)[:, None], slot.clamp(min=0)
        classes, values, rest = (part.index_select(-2, place) for part in (self.classes, self.values, self.rest))
        first = torch.arange(classes.shape[-1], dtype=classes.dtype, device=classes.device)
        classes, values = torch.where(seen, classes, first), torch.where(seen, values, 0.0)
        return EstimateRows(classes.long(), values.to(rest.dtype), torch.where(seen, rest, 0.0))

    def store(self, index: Tensor, rows: EstimateRows) -> None:
        """Replace the logits of some images ``(B,)``; a device is not synchronized for it."""
        again = (index[:, None] == index).tril(-1).any(1)  # an image that is twice in the batch
        fresh = (self.slot.index_select(0, index) < 0) & ~again
        place = torch.where(fresh, self.used + fresh.cumsum(0) - 1, -1).to(self.slot.dtype)
        self.slot.scatter_reduce_(0, index, place, "amax")
        self.used += fresh.sum()
        place = self.slot.index_select(0, index).long()
        for part, values in zip((self.classes, self.values, self.rest), rows, strict=True):
            part.index_copy_(-2, place, values.to(part.dtype))

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        used = int(self.used)
        destination[prefix + "slot"] = self.slot
        for name in ("classes", "values", "rest"):
            part: Tensor = getattr(self, name)
            destination[prefix + name] = part if used == part.shape[-2] else part[..., :used, :].clone()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        missing = arguments[2]
        for name in ("slot", "classes", "values", "rest"):
            if (stored := state_dict.get(prefix + name)) is None:
                missing.append(prefix + name)
            elif name == "slot":
                self.slot.copy_(stored)
            else:
                getattr(self, name)[..., : stored.shape[-2], :].copy_(stored)
                self.used.fill_(stored.shape[-2])
