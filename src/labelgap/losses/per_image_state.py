"""What objectives with a memory share: something kept for every training image and class, on the device.

The labels that a loop hands over are always the observed ones. What such an objective has decided about a label lies in
its own state, is found by the row number of the image, and so can never be stale in a loader process.
"""

from __future__ import annotations

import math
from abc import ABC
from typing import Any

import torch
from torch import Tensor

from labelgap.core.errors import InputError
from labelgap.core.system import available_memory, format_bytes
from labelgap.labels import LabelTable
from labelgap.losses.base import ReducedLoss, TrainingScores

__all__ = ["PerImageState", "free_memory"]


def free_memory(device: torch.device) -> int | None:
    """Return how many bytes a device can still give; None where nobody says.

    Example:
        >>> free_memory(torch.device("meta")) is None
        True
    """
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return available_memory() if device.type == "cpu" else None


class PerImageState(ReducedLoss, ABC):
    """An objective that keeps ``(…, N, K)`` values for the images it is prepared with. Abstract.

    Attributes:
        table: the observed labels it was prepared with.
        epochs: how many will be trained.
        heads: the leading axes, ``()`` for one head.
    """

    needs = frozenset({"index"})
    table: LabelTable | None = None
    epochs: int = 0
    heads: tuple[int, ...] = ()

    def prepare(self, table: LabelTable, epochs: int = 10, seed: int = 0, heads: tuple[int, ...] = ()) -> None:
        """Remember what is trained on; a subclass goes on to ``allocate`` what it keeps."""
        super().prepare(table, epochs, seed, heads)
        self.table, self.epochs, self.heads, self.state_bytes = table, epochs, heads, 0

    def reserve(self, kept: int, passing: int = 0) -> None:
        """Count the memory that will be needed where the objective is, or refuse what cannot fit.

        Args:
            kept: bytes for each image and class, as long as training lasts; ``state_bytes`` grows by them.
            passing: bytes for each image and class that are needed besides, at times.
        """
        images, classes = self.prepared().shape
        entries = math.prod((*self.heads, images, classes))
        free = free_memory(self.clock.device)
        if free is not None and entries * (kept + passing) > free:
            self.table = None
            heads = f" × {math.prod(self.heads):,} heads" if self.heads else ""
            raise InputError(
                f"'{self.name}' keeps something for each of {images:,} images × {classes:,} classes{heads}: "
                f"{format_bytes(entries * (kept + passing))}, and {format_bytes(free)} are free. Take fewer images or classes, "
                "or a method without memory per image (ll-ct, em)."
            )
        self.state_bytes += entries * kept

    def allocate(self, dtype: torch.dtype, fill: float, *, passing: int = 0) -> Tensor:
        """Return ``(…, N, K)`` full of one value, where the objective is, or refuse what cannot fit.

        Args:
            dtype: of the values.
            fill: the value.
            passing: see ``reserve``.
        """
        self.reserve(kept=dtype.itemsize, passing=passing)
        return self.filled(dtype, fill)

    def filled(self, dtype: torch.dtype, value: float) -> Tensor:
        """Return ``(…, N, K)`` full of one value, for a moment."""
        return torch.full((*self.heads, *self.prepared().shape), value, dtype=dtype, device=self.clock.device)

    def prepared(self) -> LabelTable:
        """Return the table, or say that ``prepare`` comes first."""
        if self.table is None:
            raise InputError(f"'{self.name}' keeps something per image: call prepare(table, epochs=…) before training.")
        return self.table

    def recall(self, name: str, index: Tensor | None) -> Tensor:
        """Return the ``(…, B, K)`` values of some rows.

        Args:
            name: of the buffer or parameter.
            index: ``(B,)`` row numbers of the table.

        A row that is not in the table is refused. Row numbers that lie on a GPU are not looked at, since that would
        wait for it: there a wrong one ends in an error of the GPU.
        """
        self.prepared()
        if index is None:
            raise InputError(f"'{self.name}' keeps something per image: give the rows of the table, index=…")
        return self._rows(getattr(self, name), index)

    def _rows(self, state: Tensor, index: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            return state.index_select(-2, index.to(state.device))
        try:
            if index.device != state.device and index.device.type == "cpu":
                torch.empty(state.shape[-2]).index_select(0, index)
            return state.index_select(-2, index.to(state.device))
        except IndexError:
            outside = [row for row in index.tolist() if not 0 <= row < state.shape[-2]]
            raise InputError(
                f"'{self.name}' was prepared with {state.shape[-2]:,} images: there is no row {outside[0]}."
            ) from None

    def all_logits(self, scores: TrainingScores | None) -> Tensor:
        """Return the ``(…, N, K)`` logits of all training images from what the loop supplies, float32."""
        images = len(self.prepared())
        if scores is None:
            raise InputError(
                f"'{self.name}' looks at all training images after an epoch: end_epoch(scores) needs scores."
            )
        gathered = self.filled(torch.float32, torch.nan)
        seen = torch.zeros(images, dtype=torch.bool, device=gathered.device)
        for index, logits in scores():
            self._rows(seen[:, None], index)
            rows = index.to(gathered.device)
            gathered[..., rows, :] = logits.to(gathered)
            seen[rows] = True
        if not bool(seen.all()):
            raise InputError(
                f"'{self.name}' looks at all training images after an epoch: scores left out {int((~seen).sum()):,} of "
                f"{images:,}."
            )
        if bool(gathered.isnan().any()):
            raise InputError(
                f"'{self.name}' cannot rank the training images: the network's logits are not numbers (NaN). Training "
                "has diverged; try a lower learning rate."
            )
        return gathered

    def known_mask(self) -> Tensor:
        """Return the ``(N, K)`` mask of the observed labels, on the device."""
        table = self.prepared()
        known = torch.zeros(table.shape, dtype=torch.bool)
        known[torch.from_numpy(table.rows), torch.from_numpy(table.columns.astype("int64"))] = True
        return known.to(self.clock.device)

    def extra_repr(self) -> str:
        """Show the name, and the size once prepared."""
        size: Any = "not prepared" if self.table is None else format_bytes(self.state_bytes)
        return f"{self.name}, {size}"
