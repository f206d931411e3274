"""Metrics that are updated batch by batch, in the form of torchmetrics: ``update``, ``compute``, ``reset``.

Under ``torch.distributed`` every process updates with its own images, and ``compute`` is over those of all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
import torch.distributed as dist
from numpy.typing import ArrayLike
from torch import Tensor

from labelgap.core.distributed import all_max, gather_rows, world_size
from labelgap.core.errors import InputError
from labelgap.metrics.average_precision import average_precision
from labelgap.metrics.classification import f1, precision, recall
from labelgap.metrics.validation import (
    Average,
    Empty,
    Labels,
    Result,
    Scores,
    Unknown,
    format_pair,
    require_probabilities,
    validate_options,
)


class Metric:
    """The base of the classes below; ``options`` are the arguments of their functions."""

    function: ClassVar[Callable[..., Result]]

    def __init__(self, average: Average | None, empty: Empty, **options: object) -> None:
        validate_options(average, empty, options.get("unknown", "ignore"))
        self.options = {"average": average, "empty": empty, **options}
        self.reset()

    def reset(self) -> None:
        """Forget all batches."""
        self._scores: list[Tensor] = []
        self._codes: list[Tensor] = []

    def update(self, scores: Scores, labels: Labels) -> None:
        """Add a batch: scores ``(B, K)`` and labels ``(B, K)`` as arrays, tensors on any device, or nested lists."""
        formatted, codes = format_pair(scores, labels)
        if "threshold" in self.options:
            require_probabilities(formatted)
        if self._codes and (before := self._codes[0].shape[1]) != codes.shape[1]:
            raise InputError(f"a batch has {codes.shape[1]} classes, the batches before it had {before}.")
        self._scores.append(torch.from_numpy(formatted.copy()))
        self._codes.append(torch.from_numpy(codes.copy()))

    def compute(self) -> Result:
        """Return the value over all batches of all processes; every process must call it."""
        nccl = world_size() > 1 and dist.get_backend() == "nccl"
        device = torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")
        classes = self._codes[0].shape[1] if self._codes else 0
        wide = any(scores.dtype == torch.float64 for scores in self._scores)
        width, is_wide = all_max(torch.tensor([classes, int(wide)], device=device)).tolist()
        kinds = ((self._scores, torch.float64 if is_wide else torch.float32), (self._codes, torch.int8))
        own = [torch.cat([torch.empty((0, width), dtype=kind), *parts]).to(device, kind) for parts, kind in kinds]
        return type(self).function(*(gather_rows(values).cpu() for values in own), **self.options)


class AveragePrecision(Metric):
    """:func:`~labelgap.average_precision` over batches, with its options."""

    function = staticmethod(average_precision)

    def __init__(
        self,
        average: Average | None = "macro",
        empty: Empty = "skip",
        unknown: Unknown = "ignore",
        return_counted: bool = False,
    ) -> None:
        super().__init__(average, empty, unknown=unknown, return_counted=return_counted)


class _ThresholdMetric(Metric):
    def __init__(
        self,
        threshold: ArrayLike = 0.5,
        average: Average | None = "macro",
        empty: Empty = "skip",
        return_counted: bool = False,
    ) -> None:
        super().__init__(average, empty, threshold=threshold, return_counted=return_counted)


class F1(_ThresholdMetric):
    """:func:`~labelgap.f1` over batches, with its options."""

    function = staticmethod(f1)


class Precision(_ThresholdMetric):
    """:func:`~labelgap.precision` over batches, with its options."""

    function = staticmethod(precision)


class Recall(_ThresholdMetric):
    """:func:`~labelgap.recall` over batches, with its options."""

    function = staticmethod(recall)
