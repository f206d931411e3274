"""Losses that keep state for every training image and class, on the device.

The labels that a loop passes are always the observed ones. What such a loss has decided about a label is in its own
state, is found by the row number of the image, and so can never be stale in a loader process.
"""

from __future__ import annotations

import math
from abc import ABC

import torch
from torch import Tensor

from labelgap.core.errors import InputError
from labelgap.core.system import available_memory, format_bytes
from labelgap.labels import LabelTable
from labelgap.losses.base.loss import ReducedLoss, TrainingScores
from labelgap.losses.base.multi_head import MultiHead

MAX_DENSE_ENTRIES = 100_000_000
"""Images × classes up to which state is a dense array, where a method has another form for more."""


def free_memory(device: torch.device) -> int | None:
    """Return how many bytes are free on a device; None where the system does not say.

    Example:
        >>> free_memory(torch.device("meta")) is None
        True
    """
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return available_memory() if device.type == "cpu" else None


class PerImageState(MultiHead, ReducedLoss, ABC):
    """A loss that keeps ``(…, N, K)`` values for the images it is prepared with. Abstract.

    Attributes:
        table: the observed labels it was prepared with.
        epochs: how many will be trained.
    """

    needs = frozenset({"index"})
    table: LabelTable | None = None
    epochs: int = 0

    def prepare(self, table: LabelTable, epochs: int = 10, seed: int = 0) -> None:
        """Store the table; a subclass continues with ``allocate``."""
        super().prepare(table, epochs, seed)
        self.table, self.epochs, self.state_bytes = table, epochs, 0

    @property
    def is_large(self) -> bool:
        """Whether images × classes are too many for a dense array; it depends on nothing else."""
        return math.prod(self.prepared_table().shape) > MAX_DENSE_ENTRIES

    def reserve(self, bytes_per_entry: int, temporary: int = 0) -> None:
        """Add to ``state_bytes``, or raise ``InputError`` where the memory is not free on the device.

        Both numbers are bytes for each image and class; ``temporary`` ones are needed besides, at times.
        """
        images, classes = self.prepared_table().shape
        entries = math.prod((*self.heads, images, classes))
        heads = f" × {math.prod(self.heads):,} heads" if self.heads else ""
        self.require_memory(
            entries * (bytes_per_entry + temporary),
            f"keeps state for each of {images:,} images × {classes:,} classes{heads}",
            "Take fewer images or classes, or a method without state per image (ll-ct, em).",
        )
        self.state_bytes += entries * bytes_per_entry

    def require_memory(self, needed: int, purpose: str, remedy: str) -> None:
        """Raise ``InputError`` where fewer than ``needed`` bytes are free on the device."""
        free = free_memory(self.epoch_tensor.device)
        if free is not None and needed > free:
            self.table = None
            raise InputError(
                f"'{self.name}' {purpose}: {format_bytes(needed)}, and {format_bytes(free)} are free. {remedy}"
            )

    def require_known_states(self) -> None:
        """Raise ``InputError`` where no label is known to be present, or none to be absent."""
        present, absent, _ = self.prepared_table().counts().total
        if not present or not absent:
            missing, predicted = ("absent", "present") if present else ("present", "absent")
            raise InputError(
                f"'{self.name}' learns from known labels, and none is known to be {missing}: it would predict "
                f"everything as {predicted}. Take a method for such labels (em, role, ll-ct)."
            )

    def allocate(self, dtype: torch.dtype, fill: float, *, temporary: int = 0) -> Tensor:
        """Return ``(…, N, K)`` full of one value on the device, or raise ``InputError``; see ``reserve``."""
        self.reserve(dtype.itemsize, temporary)
        return self._full(dtype, fill)

    def _full(self, dtype: torch.dtype, value: float) -> Tensor:
        shape = (*self.heads, *self.prepared_table().shape)
        return torch.full(shape, value, dtype=dtype, device=self.epoch_tensor.device)

    def prepared_table(self) -> LabelTable:
        """Return the table, or raise an error that asks for ``prepare``."""
        if self.table is None:
            raise InputError(f"'{self.name}' keeps state per image: call prepare(table, epochs=…) before training.")
        return self.table

    def state_rows(self, name: str, index: Tensor | None) -> Tensor:
        """Return the ``(…, B, K)`` values of a buffer or parameter in some rows ``(B,)``.

        A row that is not in the table is refused. Row numbers that are on a GPU are not checked, since that would wait
        for it: there a wrong one ends in an error of the GPU.
        """
        self.prepared_table()
        if index is None:
            raise InputError(f"'{self.name}' keeps state per image: pass the rows of the table, index=…")
        return self._rows(getattr(self, name), index)

    def check_rows(self, index: Tensor) -> None:
        """Refuse rows that are not in the table; the host reads them."""
        images = len(self.prepared_table())
        outside = index[(index < 0) | (index >= images)]
        if len(outside):
            raise InputError(f"'{self.name}' was prepared with {images:,} images: there is no row {int(outside[0])}.")

    def check_logits(self, logits: Tensor) -> None:
        """Refuse logits whose axes of heads are not those that the state was allocated for."""
        if logits.shape[:-2] != self.heads:
            raise InputError(
                f"'{self.name}' keeps state per image for heads {self.heads}, and logits have shape "
                f"{tuple(logits.shape)}: set its attribute heads to {tuple(logits.shape[:-2])} before prepare."
            )

    def _rows(self, state: Tensor, index: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            return state.index_select(-2, index.to(state.device))
        try:
            if index.device != state.device and index.device.type == "cpu":
                torch.empty(state.shape[-2]).index_select(0, index)
            return state.index_select(-2, index.to(state.device))
        except IndexError:
            self.check_rows(index)
            raise

    def all_logits(self, scores: TrainingScores | None, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the ``(…, N, K)`` logits of all training images from what the loop supplies."""
        images = len(self.prepared_table())
        if scores is None:
            raise InputError(
                f"'{self.name}' scores all training images after an epoch: end_epoch(scores) needs scores."
            )
        if not callable(scores):
            raise InputError(
                f"'{self.name}': scores must be a function without arguments that yields (rows, logits): pass the "
                "function itself, end_epoch(scores), not what it returns."
            )
        gathered = self._full(dtype, torch.nan)
        seen = torch.zeros(images, dtype=torch.bool, device=gathered.device)
        invalid = torch.zeros((), dtype=torch.bool, device=gathered.device)
        for index, logits in scores():
            self._rows(seen[:, None], index)
            rows = index.to(gathered.device)
            gathered[..., rows, :] = logits.to(gathered)
            seen[rows] = True
            invalid |= logits.to(gathered.device).isnan().any()
        if not bool(seen.all()):
            raise InputError(
                f"'{self.name}' scores all training images after an epoch: scores left out {int((~seen).sum()):,} of "
                f"{images:,}."
            )
        if bool(invalid):
            raise InputError(
                f"'{self.name}' cannot rank the training images: the network's logits are not numbers (NaN). Training "
                "has diverged; try a lower learning rate."
            )
        return gathered

    def known_mask(self) -> Tensor:
        """Return the ``(N, K)`` mask of the observed labels, on the device."""
        table = self.prepared_table()
        known = torch.zeros(table.shape, dtype=torch.bool)
        known[torch.from_numpy(table.rows), torch.from_numpy(table.columns.astype("int64"))] = True
        return known.to(self.epoch_tensor.device)

    def extra_repr(self) -> str:
        """Show the name, and the size once prepared."""
        return f"{self.name}, {'not prepared' if self.table is None else format_bytes(self.state_bytes)}"
