"""The gradient of a loss against one logit, for each state of the label (Zhou et al. 2022, equations 9–11, figure 2).

It is taken by automatic differentiation of the loss that training uses. What a loss does to one entry may depend on the
other entries of the batch, on the epoch and on earlier epochs, so that all of these are stated in a ``BatchContext``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri
from torch import Tensor

from labelgap.core.errors import InputError
from labelgap.labels import ABSENT, PRESENT, UNKNOWN, LabelTable
from labelgap.losses import Loss, loss

STATES = {"present": PRESENT, "absent": ABSENT, "unknown": UNKNOWN}
FEATURES = 8
GOLDEN = 0.6180339887498949
SHIFT = 2.5
"""How far the other logits are moved to see whether a gradient depends on them."""


@dataclass(frozen=True, eq=False)
class BatchContext:
    """The batch and the epoch in which the gradient of one entry is taken: that of image 0 and class 0.

    Attributes:
        logits: ``(B, K)`` of all entries; that of the entry itself is replaced.
        labels: ``(B, K)`` of PRESENT, ABSENT, UNKNOWN; that of the entry itself is replaced.
        features: ``(B, D)``, for methods that use them.
        epoch: the epoch, counted from 1. Each earlier epoch is one step on the same batch, in which only the state of
            the loss changes: the logits stay, and no optimizer moves a parameter of the loss.
        epochs: how many are trained.
        earlier_logit: the entry's own logit in the earlier epochs.
    """

    logits: NDArray[np.float64]
    labels: NDArray[np.int8]
    features: NDArray[np.float64]
    epoch: int = 6
    epochs: int = 10
    earlier_logit: float = 0.0

    def __post_init__(self) -> None:
        images, classes = self.labels.shape
        if self.logits.shape != (images, classes) or len(self.features) != images:
            raise InputError(
                f"a batch of {images} × {classes} labels needs as many logits, and a row of features each."
            )
        if not 1 <= self.epoch <= self.epochs:
            raise InputError(f"epoch {self.epoch} of {self.epochs}: epochs are counted from 1.")


@dataclass(frozen=True, eq=False)
class GradientRegimes:
    """The gradient of a loss against the logit of one entry.

    Attributes:
        method: the name of the loss.
        logits: ``(P,)`` values of the entry's logit.
        present: ``(P,)`` gradient where the entry is present: the derivative of the mean loss times the number of
            entries of the batch, so that binary cross-entropy has p − 1.
        absent: the same where it is absent.
        unknown: the same where it is unknown.
        depends_on_batch: whether other logits or labels of the rest of the batch change it.
        depends_on_epoch: whether it is another in the first or in the last epoch.
        context: the rest of the batch and the epoch.
    """

    method: str
    logits: NDArray[np.float64]
    present: NDArray[np.float64]
    absent: NDArray[np.float64]
    unknown: NDArray[np.float64]
    depends_on_batch: bool
    depends_on_epoch: bool
    context: BatchContext

    def rows(self) -> list[dict[str, float]]:
        """Return the numbers as rows of a table: logit, present, absent, unknown."""
        columns = {"logit": self.logits, "present": self.present, "absent": self.absent, "unknown": self.unknown}
        return [{name: float(values[place]) for name, values in columns.items()} for place in range(len(self.logits))]


def example_context(
    images: int = 16, classes: int = 20, *, epoch: int = 6, epochs: int = 10, earlier_logit: float = 0.0
) -> BatchContext:
    """Return a batch as it may look in the middle of a training; nothing in it is random.

    Each image has one present and one absent label, all others are unknown. The logits have the quantiles of normal
    distributions with standard deviation 1.5 and mean 2 (present) or −3 (all others), in a fixed order.

    Example:
        >>> context = example_context(4, 6)
        >>> context.labels[0].tolist(), context.epoch, context.epochs
        ([-1, 1, -1, -1, 0, -1], 6, 10)
    """
    if images < 2 or classes < 4:
        raise InputError(f"a batch of {images} × {classes}: at least 2 images and 4 classes are needed.")
    labels = np.full((images, classes), UNKNOWN, dtype=np.int8)
    for image in range(images):
        first = (image + 1) % classes if image + 1 < images else 0  # the last image has class 0
        labels[image, first] = PRESENT
        labels[image, (first + classes // 2) % classes] = ABSENT
    logits = np.where(labels == PRESENT, 2.0, -3.0) + 1.5 * _normal_quantiles(images, classes)
    return BatchContext(logits, labels, _normal_quantiles(images, FEATURES), epoch, epochs, earlier_logit)


def gradient_regimes(
    method: str | Loss,
    options: Mapping[str, Any] | None = None,
    *,
    logits: ArrayLike | None = None,
    context: BatchContext | None = None,
) -> GradientRegimes:
    """Differentiate a loss with respect to one logit, for a present, an absent and an unknown label.

    Args:
        method: the name of a method, or a loss that was not prepared; it is copied.
        options: of a method given by name.
        logits: ``(P,)`` values of the entry's logit; 121 from −6 to 6 when not given.
        context: the other entries, and the epoch; ``example_context()`` when not given.

    Example:
        >>> regimes = gradient_regimes("an", logits=[0.0])
        >>> regimes.present, regimes.unknown, regimes.depends_on_batch
        (array([-0.5]), array([0.5]), False)
    """
    if isinstance(method, Loss) and options:
        raise InputError("options belong to a method given by name; a loss has its own.")
    points = np.linspace(-6, 6, 121) if logits is None else np.atleast_1d(np.asarray(logits, dtype=np.float64))
    if points.ndim != 1 or not len(points) or not np.isfinite(points).all():
        raise InputError("logits: a list of finite numbers is needed.")
    context = example_context() if context is None else context

    def create() -> Loss:
        return copy.deepcopy(method) if isinstance(method, Loss) else loss(method, **(options or {}))

    def sample(where: BatchContext) -> NDArray[np.float64]:
        return np.stack([_gradients(create, np.linspace(-6, 6, 17), state, where) for state in STATES.values()])

    base = sample(context)

    def differs(*others: BatchContext) -> bool:
        return any(not np.allclose(base, sample(other)) for other in others)

    return GradientRegimes(
        method=create().name,
        logits=points,
        **{name: _gradients(create, points, state, context) for name, state in STATES.items()},
        depends_on_batch=differs(_other_batch(context)),
        depends_on_epoch=differs(replace(context, epoch=1), replace(context, epoch=context.epochs)),
        context=context,
    )


def _normal_quantiles(rows: int, columns: int) -> NDArray[np.float64]:
    """Return evenly spread quantiles of the standard normal distribution, shuffled by multiples of the golden ratio."""
    return np.asarray(ndtri((GOLDEN * np.arange(1, rows * columns + 1)) % 1)).reshape(rows, columns)


def _other_batch(context: BatchContext) -> BatchContext:
    """Return a context with other logits, and with all other labels of the entry's image known."""
    labels = context.labels.copy()
    labels[0, 1:] = np.where(np.arange(1, labels.shape[1]) % 2, PRESENT, ABSENT)
    return replace(context, logits=context.logits + SHIFT, labels=labels)


def _gradients(
    create: Callable[[], Loss], points: NDArray[np.float64], state: int, context: BatchContext
) -> NDArray[np.float64]:
    """Return the gradient at every point, ``(P,)``, for one state of the label."""
    codes = context.labels.copy()
    codes[0, 0] = state
    table, labels = LabelTable.from_dense(codes), torch.from_numpy(codes)
    batch, features = torch.from_numpy(context.logits.copy()), torch.from_numpy(context.features)
    index = torch.arange(len(batch))
    loss_fn = create()
    loss_fn.prepare(table, epochs=context.epochs, seed=0)
    scale = 1 if loss_fn.reduction == "sum" else batch.numel()

    def gradient(value: float) -> float:
        logits = _with_entry(batch, value).requires_grad_()
        cost = loss_fn(logits, labels, index=index, features=features)
        (slopes,) = torch.autograd.grad(cost.mean(), logits, allow_unused=True)
        return 0.0 if slopes is None else scale * float(slopes[0, 0])

    for epoch in range(1, context.epoch):
        loss_fn.set_epoch(epoch)
        gradient(context.earlier_logit)
        loss_fn.after_step()
        loss_fn.end_epoch(lambda: iter([(index, _with_entry(batch, context.earlier_logit))]))
    found = []
    for value in points.tolist():
        loss_fn.set_epoch(context.epoch)
        found.append(gradient(value))
        loss_fn.skip_step()
    return np.array(found)


def _with_entry(batch: Tensor, value: float) -> Tensor:
    """Return a copy of the logits with another value for the entry."""
    logits = batch.clone()
    logits[0, 0] = value
    return logits
