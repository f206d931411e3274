"""Losses that keep state for every training image and class, on the device, and where they store it.

The labels that a loop passes are always the observed ones. What such a loss has decided about a label is in its own
state, is found by the row number of the image, and so can never be stale in a loader process. Where images × classes
are too many for a dense array, ``EntryLog`` stores single entries and ``CompactRows`` the highest logits of an image.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labelgap.core.errors import InputError
from labelgap.core.system import available_memory, format_bytes
from labelgap.labels import LabelTable, Revisions
from labelgap.losses.base.loss import MultiHead, ReducedLoss, TrainingScores
from labelgap.losses.base.terms import Number, exact_fractions

MAX_DENSE_ENTRIES = 100_000_000
"""Images × classes up to which state is a dense array, where a method has another form for more."""


def free_memory(device: torch.device) -> int:
    """Return how many bytes are free on a GPU, or in the main memory, which other devices share."""
    return int(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else available_memory()


class PerImageState(MultiHead, ReducedLoss, ABC):
    """A loss that keeps ``(…, N, K)`` values for the images of the ``table`` it is prepared with. Abstract."""

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
        purpose = f"keeps state for each of {images:,} images × {classes:,} classes{heads}"
        remedy = "Take fewer images or classes, or a method without state per image (ll-ct, em)."
        self.require_memory(entries * (bytes_per_entry + temporary), purpose, remedy)
        self.state_bytes += entries * bytes_per_entry

    def require_memory(self, needed: int, purpose: str, remedy: str) -> None:
        """Raise ``InputError`` where fewer than ``needed`` bytes are free on the device."""
        free = free_memory(self.epoch_tensor.device)
        if needed > free:
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

    def tables_of_heads(self) -> Sequence[LabelTable]:
        """Return the table of every head, or the one that all heads share."""
        return self.tables or (self.prepared_table(),)

    def state_rows(self, name: str, index: Tensor | None) -> Tensor:
        """Return the ``(…, B, K)`` values of a buffer or parameter in some rows ``(B,)`` of the table.

        Row numbers on a GPU are not checked, since that would wait for it: a wrong one ends in an error of the GPU.
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
        if not callable(scores):
            raise InputError(
                f"'{self.name}' scores all training images after an epoch: end_epoch(scores) needs scores, a function "
                "without arguments that yields (rows, logits); pass the function itself, not what it returns."
            )
        gathered = self._full(dtype, torch.nan)
        seen = torch.zeros(images, dtype=torch.bool, device=gathered.device)
        for index, logits in scores():
            self._rows(seen[:, None], index)
            rows = index.to(gathered.device)
            gathered.index_copy_(-2, rows, logits.to(gathered))
            seen[rows] = True
        if not bool(seen.all()):
            raise InputError(
                f"'{self.name}' scores all training images after an epoch: scores left out {int((~seen).sum()):,} of "
                f"{images:,}."
            )
        if bool(gathered.amax().isnan()):
            raise InputError(
                f"'{self.name}' cannot rank the training images: the network's logits are not numbers (NaN). Training "
                "has diverged; try a lower learning rate."
            )
        return gathered

    def known_mask(self) -> Tensor:
        """Return the mask of the observed labels, ``(N, K)``, or ``(n, N, K)`` of several tables, on the device."""
        tables, masks = self.tables_of_heads(), dict[int, Tensor]()
        for key, table in {id(each): each for each in tables}.items():
            masks[key] = known = torch.zeros(table.shape, dtype=torch.bool)
            known[torch.from_numpy(table.rows), torch.from_numpy(table.columns.astype("int64"))] = True
        found = torch.stack([masks[id(table)] for table in tables]) if self.tables else masks[id(self.table)]
        return found.to(self.epoch_tensor.device)


class PseudoLabelRounds(PerImageState, ABC):
    """A loss that assigns pseudo-labels to unknown labels at the end of epochs, permanently. Abstract."""

    needs = frozenset({"index", "scores"})
    epoch_dependent = True
    takes_tables = True
    warmup: Number  # epochs before the first round; the last epoch has none
    _assigned: tuple[Tensor, Tensor] | None = None

    @abstractmethod
    def assign(self, scores: TrainingScores | None, due: Tensor) -> tuple[Tensor, Tensor]:
        """Assign pseudo-labels in those heads ``(…)`` where a round is ``due``.

        Returns a row (head, image, class) for each that the revisions list, and the states there.
        """

    def soft_targets(self, places: tuple[Any, ...]) -> NDArray[np.float32] | None:
        """Return the soft targets at some places of the state; None where they are hard."""
        return None

    def end_epoch(self, scores: TrainingScores | None = None) -> Revisions:
        """Hold a round, if one is due, and return its pseudo-labels; of many heads, see ``revisions_of``."""
        self.revise(scores)
        return Revisions() if self.heads else self.revisions_of(())

    @torch.no_grad()
    def revise(self, scores: TrainingScores | None = None) -> None:
        """Hold a round, if one is due."""
        self._assigned = None
        early = np.all(exact_fractions(self.warmup) > self.epoch)
        if self.epoch < self.epochs and not early and not all(table.complete for table in self.tables_of_heads()):
            due = torch.as_tensor(self.warmup, device=self.epoch_tensor.device) <= self.epoch_tensor
            self._assigned = self.assign(scores, due)

    def revisions_of(self, head: tuple[int, ...]) -> Revisions:
        """Return the pseudo-labels of the last round."""
        if self._assigned is None:
            return Revisions()
        places, values = self._assigned
        own = (places[:, :-2] == places.new_tensor(head)).all(dim=1)
        rows, columns = places[own, -2], places[own, -1]
        entries = rows.cpu().numpy(), columns.cpu().numpy()
        states, targets = values[own].cpu().numpy(), self.soft_targets((*head, rows, columns))
        return Revisions.from_arrays(
            self.tables_of_heads()[head[0] if self.tables else 0],
            *entries,
            values=states,
            targets=targets,
            source=self.name,
            epoch=self.epoch,
        )


class EntryLog(nn.Module):
    """Single entries of ``(…, N, K)``, each with the epoch in which it was recorded, on the host.

    The entries of a step are a sorted *run*; a run is merged with the one before that is not longer, so that there are
    few runs, and the entries of an image are found by bisection in each. Memory and ``state_dict`` are as large as what
    was recorded.
    """

    def __init__(self, heads: tuple[int, ...], images: int, classes: int) -> None:
        super().__init__()
        self.heads, self.images, self.classes = heads, images, classes
        self._runs: list[tuple[NDArray[np.int64], NDArray[np.int16]]] = []

    def epochs_of(self, index: Tensor) -> Tensor:
        """Return the epochs of the entries of some images, ``(…, B, K)`` int16; 0 where there is none."""
        rows = self._rows(index)
        found = np.zeros((len(rows), self.classes), dtype=np.int16)
        for places, epochs in self._runs:
            first, last = np.searchsorted(places, [rows * self.classes, (rows + 1) * self.classes])
            lengths = last - first
            entries = np.arange(lengths.sum()) + np.repeat(last - np.cumsum(lengths), lengths)
            found[np.repeat(np.arange(len(rows)), lengths), places[entries] % self.classes] = epochs[entries]
        return torch.from_numpy(found).view(*self.heads, len(index), self.classes).to(index.device)

    def record(self, index: Tensor, mask: Tensor, epoch: int) -> None:
        """Add the entries of a mask ``(…, B, K)``; those that were recorded before must not be in it.

        An image that is in the batch twice has the entries of either.
        """
        batch, columns = np.nonzero(mask.reshape(-1, self.classes).cpu().numpy())
        places = np.unique(self._rows(index)[batch] * self.classes + columns)
        epochs = np.full(len(places), epoch, dtype=np.int16)
        while self._runs and len(self._runs[-1][0]) <= len(places):
            places, epochs = self._sorted([self._runs.pop(), (places, epochs)])
        self._runs.append((places, epochs))

    def recorded_in(self, epoch: int, head: tuple[int, ...] = ()) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the images and classes of an epoch's entries, in ascending order."""
        number = int(np.ravel_multi_index(head, self.heads)) if head else 0
        places, epochs = self._sorted(self._runs)
        heads, places = np.divmod(places[epochs == epoch], self.images * self.classes)
        rows, columns = np.divmod(places[heads == number], self.classes)
        return rows, columns

    def _rows(self, index: Tensor) -> NDArray[np.int64]:
        """Return the rows of images, counted over all heads."""
        rows = index.cpu().numpy().astype(np.int64)
        return (np.arange(math.prod(self.heads))[:, None] * self.images + rows).ravel()

    @staticmethod
    def _sorted(runs: Sequence[tuple[NDArray[Any], NDArray[Any]]]) -> tuple[NDArray[np.int64], NDArray[np.int16]]:
        """Return the places (head · N + image) · K + class of all runs, and their epochs."""
        places = np.concatenate([np.empty(0, np.int64), *(run[0] for run in runs)])
        epochs = np.concatenate([np.empty(0, np.int16), *(run[1] for run in runs)])
        order = np.argsort(places, kind="stable")
        return places[order], epochs[order]

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        for name, values in zip(("places", "epochs"), self._sorted(self._runs), strict=True):
            destination[prefix + name] = torch.from_numpy(values)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        names = [prefix + name for name in ("places", "epochs")]
        if missing := [name for name in names if name not in state_dict]:
            arguments[2].extend(missing)
        else:
            places, epochs = (state_dict[name].cpu().numpy() for name in names)
            self._runs = [(places, epochs)]


class EstimateRows(NamedTuple):
    """The logits of some images."""

    classes: Tensor  # (…, B, M) class numbers, int64
    values: Tensor  # (…, B, M) their logits
    rest: Tensor  # (…, B, 1) the logit of all other classes


def compress_rows(logits: Tensor, kept: int, excluded: Tensor) -> EstimateRows:
    """Keep the highest logits ``(…, B, K)`` of each image, and the mean of the others; ``logits`` is overwritten.

    Entries at the places ``row · K + class`` of ``excluded`` are not part of the mean, and kept only where there are
    too few others.
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

    Of an image that was seen, the M highest logits (``kept``) are stored with their classes, and one value that all
    other classes share: four bytes for each of the M, instead of four for each class. The arrays have room for all
    images, but an operating system gives memory only to what was written, and images are stored in the order in which
    they are first seen. The ``state_dict`` has those, and its size is theirs.
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
        for name in ("slot", "classes", "values", "rest"):
            if (stored := state_dict.get(prefix + name)) is None:
                arguments[2].append(prefix + name)  # the missing keys
            elif name == "slot":
                self.slot.copy_(stored)
            else:
                getattr(self, name)[..., : stored.shape[-2], :].copy_(stored)
                self.used.fill_(stored.shape[-2])
