"""Metrics that are updated batch by batch, in the form of torchmetrics: ``update``, ``compute``, ``reset``.

Each class computes what the function of the same name computes on all batches together. Under ``torch.distributed``,
every process updates its own metric with its own images, and ``compute``, which all processes call, returns the value
over the images of all of them. Shards may differ in size, and may be empty.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from labelgap.core.distributed import all_max, all_sum, gather_rows, world_size
from labelgap.core.errors import InputError
from labelgap.metrics.average_precision import average_precision
from labelgap.metrics.classification import (
    ConfusionCounts,
    Formula,
    Result,
    confusion_counts,
    format_threshold,
)
from labelgap.metrics.validation import (
    Average,
    Empty,
    Labels,
    Scores,
    Unknown,
    average_over,
    format_pair,
    require_probabilities,
    validate_average,
    validate_empty,
    validate_unknown,
)

__all__ = ["AveragePrecision", "F1", "Metric", "Precision", "Recall"]


class Metric(ABC):
    """The contract of the classes below.

    Args:
        average: as in the function of the same name.
        empty: likewise.
        return_counted: whether ``compute`` returns a pair: the value, and how many classes (images) it is over.
    """

    def __init__(
        self, average: Average | None = "macro", empty: Empty = "skip", *, return_counted: bool = False
    ) -> None:
        validate_average(average)
        validate_empty(empty)
        self.average, self.empty, self.return_counted = average, empty, return_counted
        self._classes: int | None = None
        self.reset()

    @abstractmethod
    def update(self, scores: Scores, labels: Labels) -> None:
        """Add a batch: scores ``(B, K)`` and labels ``(B, K)``, arrays, tensors on any device, or nested lists."""

    @abstractmethod
    def compute(self) -> Result:
        """Return the value over all batches of all processes; every process must call it."""

    @abstractmethod
    def reset(self) -> None:
        """Forget all batches."""

    def _check_classes(self, classes: int) -> None:
        if self._classes not in (None, classes):
            raise InputError(f"a batch has {classes} classes, the batches before it had {self._classes}.")
        self._classes = classes

    def _all_classes(self) -> int:
        """Return K; a process without a batch of its own learns it from the others."""
        count = torch.tensor([self._classes or 0], device=_device())
        return int(all_max(count))

    def _result(self, values: NDArray[np.float64], mean: float, counted: int) -> Result:
        if self.average is None:
            return (values, counted) if self.return_counted else values
        return (mean, counted) if self.return_counted else mean


class AveragePrecision(Metric):
    """:func:`~labelgap.average_precision` over batches. All scores are kept, in main memory, until ``reset``.

    Args:
        average: ``"macro"``, ``"samples"``, ``"micro"`` or None.
        empty: ``"skip"`` or ``"zero"``.
        unknown: ``"ignore"`` or ``"absent"``.
        return_counted: whether ``compute`` also returns how many rankings were counted.

    Example:
        >>> metric = AveragePrecision()
        >>> metric.update(torch.tensor([[0.9, 0.2], [0.7, 0.8]]), torch.tensor([[1, 0], [0, 1]]))
        >>> metric.update([[0.8, 0.1]], [[1, -1]])
        >>> metric.compute()
        1.0
    """

    def __init__(
        self,
        average: Average | None = "macro",
        empty: Empty = "skip",
        unknown: Unknown = "ignore",
        *,
        return_counted: bool = False,
    ) -> None:
        validate_unknown(unknown)
        self.unknown = unknown
        super().__init__(average, empty, return_counted=return_counted)

    def reset(self) -> None:
        """Forget all batches."""
        self._scores: list[Tensor] = []
        self._codes: list[Tensor] = []
        self._classes = None

    def update(self, scores: Scores, labels: Labels) -> None:
        """Add a batch."""
        formatted, codes = format_pair(scores, labels)
        self._check_classes(codes.shape[1])
        self._scores.append(torch.from_numpy(formatted.astype(np.float64)))
        self._codes.append(torch.from_numpy(codes.copy()))

    def compute(self) -> Result:
        """Return the value over all batches of all processes; every process must call it."""
        classes = self._all_classes()
        scores = _gathered(self._scores, classes, torch.float64)
        codes = _gathered(self._codes, classes, torch.int8)
        found: Result = average_precision(  # type: ignore[call-overload]
            scores, codes, self.average, self.empty, self.unknown, return_counted=self.return_counted
        )
        return found


class _DecisionMetric(Metric):
    """Precision, recall and F1: counts of decisions are kept, one number per class, not the scores."""

    _formula: Formula

    def __init__(
        self,
        threshold: ArrayLike = 0.5,
        average: Average | None = "macro",
        empty: Empty = "skip",
        *,
        return_counted: bool = False,
    ) -> None:
        self.threshold = threshold
        super().__init__(average, empty, return_counted=return_counted)

    def reset(self) -> None:
        """Forget all batches."""
        self._counts: NDArray[np.int64] | None = None
        self._total, self._counted = 0.0, 0
        self._classes = None

    def update(self, scores: Scores, labels: Labels) -> None:
        """Add a batch; the scores are probabilities."""
        formatted, codes = format_pair(scores, labels)
        require_probabilities(formatted)
        self._check_classes(codes.shape[1])
        counts = confusion_counts(formatted, codes, format_threshold(self.threshold, formatted), self.average)
        if self.average == "samples":
            values = type(self)._formula(counts)
            each, _, counted = average_over(values, counts.present, counts.absent, self.empty)
            self._total, self._counted = self._total + float(np.nansum(each)), self._counted + counted
            return
        stacked = np.stack([counts.hits, counts.predicted, counts.present, counts.absent])
        self._counts = stacked if self._counts is None else self._counts + stacked

    def compute(self) -> Result:
        """Return the value over all batches of all processes; every process must call it."""
        if self.average == "samples":
            total, number = all_sum(torch.tensor([self._total, self._counted], dtype=torch.float64, device=_device()))
            mean = float(total / number) if number else float("nan")
            return self._result(np.array([mean]), mean, int(number))
        groups = 1 if self.average == "micro" else self._all_classes()
        own = np.zeros((4, groups), dtype=np.int64) if self._counts is None else self._counts
        summed = all_sum(torch.from_numpy(own).to(_device())).cpu().numpy()
        counts = ConfusionCounts(*summed)
        return self._result(*average_over(type(self)._formula(counts), counts.present, counts.absent, self.empty))


class F1(_DecisionMetric):
    """:func:`~labelgap.f1` over batches.

    Args:
        threshold: a number, or one for each class.
        average: ``"macro"``, ``"samples"``, ``"micro"`` or None.
        empty: ``"skip"`` or ``"zero"``.
        return_counted: whether ``compute`` also returns how many classes (images) were counted.

    Example:
        >>> metric = F1(return_counted=True)
        >>> metric.update([[0.9, 0.2], [0.6, 0.7]], [[1, 0], [0, 1]])
        >>> metric.update([[0.8, 0.9]], [[-1, -1]])
        >>> metric.compute()
        (0.8333333333333333, 2)
    """

    _formula = staticmethod(ConfusionCounts.f1)


class Precision(_DecisionMetric):
    """:func:`~labelgap.precision` over batches; the arguments are those of :class:`F1`.

    Example:
        >>> metric = Precision()
        >>> metric.update([[0.9], [0.6], [0.8], [0.1]], [[1], [0], [-1], [1]])
        >>> metric.compute()
        0.5
    """

    _formula = staticmethod(ConfusionCounts.precision)


class Recall(_DecisionMetric):
    """:func:`~labelgap.recall` over batches; the arguments are those of :class:`F1`.

    Example:
        >>> metric = Recall(threshold=0.05)
        >>> metric.update([[0.9], [0.6], [0.8], [0.1]], [[1], [0], [-1], [1]])
        >>> metric.compute()
        1.0
    """

    _formula = staticmethod(ConfusionCounts.recall)


def _device() -> torch.device:
    """Return where tensors must be for a collective operation of the current process group."""
    if world_size() > 1 and dist.get_backend() == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def _gathered(parts: list[Tensor], classes: int, dtype: torch.dtype) -> Tensor:
    """Concatenate the batches of this process, then those of all processes."""
    own = torch.cat(parts) if parts else torch.empty((0, classes), dtype=dtype)
    return gather_rows(own.to(_device())).cpu()
