"""The contract between a loss and a training loop.

A loop calls the hooks in this order; a loss overrides those it needs::

    loss_fn.initialize_from(table, val)                # optional: fills in options that were left open
    loss_fn.prepare(table, epochs=10, seed=0)          # before the optimizer is built
    optimizer = Adam([..., *loss_fn.parameter_groups(lr)])
    for epoch in 1 … epochs:
        loss_fn.set_epoch(epoch)
        for batch:
            cost = loss_fn(logits, labels, index, features) + loss_fn.penalty(parameters)
            cost.backward(); optimizer.step(); loss_fn.after_step()
        revisions = loss_fn.end_epoch(scores)

A stateless loss needs only ``loss_fn(logits, labels)`` and works in any loop; an ``epoch_dependent`` one needs
``set_epoch`` too, and warns once where nobody calls it. ``forward`` changes no state: no parameter, no buffer, no later
result. A loss that revises labels step by step (`ll-cp`, `imcl`) records its marks in the backward pass, and
``after_step`` commits the marks of all backward passes since the last step: with gradient accumulation it is called
once per optimizer step. Where no backward pass was recorded, it commits the marks of the last forward pass, which are
the only thing that ``forward`` keeps beside the number of images that it has seen.
"""

from __future__ import annotations

import inspect
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from labelgap.core.errors import InputError
from labelgap.core.system import format_bytes
from labelgap.labels import LabelTable, Revisions
from labelgap.losses.base.fused import Fused, KernelForm, fused, fused_mixture, is_fusible
from labelgap.losses.base.mixture import Mixture, SoftTargets, mixture_entries
from labelgap.losses.base.terms import (
    Number,
    check_choice,
    check_codes,
    check_number,
    check_shapes,
    host_array,
    reduce,
    widen,
)
from labelgap.losses.kernels.dispatch import are_taken, one_pass

MOST_EPOCHS = 1.5
"""So many times the images of an epoch may be seen before the next ``set_epoch``: some loops repeat images."""

TrainingScores = Callable[[], Iterator[tuple[Tensor, Tensor]]]
"""Yields ``(index, logits)`` batches of every training image once, in eval mode and without augmentation."""


class Loss(nn.Module, ABC):
    """A loss over logits and labels of three states. Abstract: a method is a final subclass that defines ``cost``.

    ``cost`` receives a batch that ``forward`` has checked. A subclass may define ``forward`` instead.

    Attributes:
        needs: what the loop must supply out of "index", "features", "scores", "penalty".
        batch_dependent: whether the cost of an image depends on the other images of its batch, so that the mean over
            two halves of a batch is not that of the whole.
        epoch_dependent: whether the cost, or what is revised, depends on the epoch: a loop must call ``set_epoch``.
        takes_soft: whether it learns from the soft labels of a table.
        reduction: "mean", "sum" or "none"; with "sum" the cost of a step is the sum of its micro-batches.
        name: the name it was created under.
        epoch: the current epoch, counted from 1.
        epoch_tensor: the same as a tensor on the device, so that a compiled or captured step follows it; it is in the
            ``state_dict``.
        state_bytes: memory of its per-image state once prepared; ``state_form`` says more about it.

    Example:
        >>> class SquaredError(Loss):
        ...     def cost(self, logits, labels, index, features):
        ...         return ((torch.sigmoid(logits) - labels) ** 2).mean()
        >>> SquaredError()(torch.zeros(1, 2), torch.tensor([[1, 0]]))
        tensor(0.2500)
    """

    needs: frozenset[str] = frozenset()
    batch_dependent: bool = False
    epoch_dependent: bool = False
    takes_soft: bool = False
    reduction: str = "mean"
    initialized: str = ""
    epoch_tensor: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.name = type(self).__name__
        self.epoch = 1
        self.state_bytes, self.state_form = 0, ""
        self.register_buffer("epoch_tensor", torch.ones((), dtype=torch.int64))
        # How many images an epoch allows, and how many are left (None before ``set_epoch``); whether the labels of one
        # batch were checked. They are no numbers of the module: a step that changes those is no CUDA graph.
        self._images: dict[str, float | None] = {"allowed": math.inf, "left": None, "checked": None}
        self._marks: list[tuple[Tensor, ...]] = []
        self._last_marks: tuple[Tensor, ...] | None = None

    def initialize_from(self, table: LabelTable, val: LabelTable | None = None) -> dict[str, Any]:
        """Fill in options that were left open and that the labels of train, or of val, can answer; return them."""
        return {}

    def prepare(self, table: LabelTable, epochs: int = 10, seed: int = 0) -> None:
        """Receive the labels that ``index`` refers to, before the optimizer is built; it may draw by the ``seed``."""
        if not isinstance(table, LabelTable):
            raise InputError("prepare(table, …) takes a LabelTable: lg.LabelTable.from_dense(labels) makes one.")
        if epochs < 1:
            raise InputError(f"epochs={epochs}: at least one is needed.")
        self._images["allowed"] = MOST_EPOCHS * table.shape[0]
        self.skip_step()

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        """Return optimizer groups of the parameters that the loss itself learns; none by default."""
        return []

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, counted from 1."""
        if epoch < 1:
            raise InputError(f"epoch {epoch}: epochs are counted from 1.")
        self.epoch = epoch
        self.epoch_tensor.fill_(epoch)
        self._images["left"] = self._images["allowed"]

    def forward(
        self, logits: Tensor, labels: Tensor, index: Tensor | None = None, features: Tensor | None = None
    ) -> Tensor:
        """Return the loss of a batch, of shape ``(…)``; changes no state.

        Args:
            logits: ``(…, B, K)``
            labels: ``(B, K)`` or ``(…, B, K)`` of PRESENT, ABSENT, UNKNOWN (or NaN): always the observed ones.
            index: ``(B,)`` row numbers of the table, if ``needs`` contains "index".
            features: ``(B, D)``, if ``needs`` contains "features".
        """
        check_shapes(logits, labels)
        if not (torch.compiler.is_compiling() or self._images["checked"]):
            self._check_first(logits, labels)
        self.check_logits(logits)
        rows = logits.shape[-2]
        if index is None:
            if "index" in self.needs:
                raise InputError(
                    f"'{self.name}' has state or soft labels per image: pass the rows of the table, index=…"
                )
        elif not isinstance(index, Tensor) or index.dtype not in (torch.int64, torch.int32):
            given = index.dtype if isinstance(index, Tensor) else type(index).__name__
            raise InputError(f"index must be a tensor of row numbers, int64 or int32, not {given}.")
        elif index.shape != (rows,):
            raise InputError(f"index has shape {tuple(index.shape)}: one row number for each of {rows} images.")
        if features is None:
            if "features" in self.needs:
                raise InputError(f"'{self.name}' uses the features: pass them, features=…")
        elif features.ndim < 2 or features.shape[-2] != rows:
            raise InputError(f"features have shape {tuple(features.shape)}: one row for each of {rows} images.")
        if self.epoch_dependent and logits.requires_grad and not torch.compiler.is_compiling():
            self._count_images(rows)
        return self.cost(widen(logits), labels, index, features)

    def _check_first(self, logits: Tensor, labels: Tensor) -> None:
        """Refuse torch.func, and once, on the host (a device would have to wait), values that are no labels."""
        if torch._C._functorch.is_functorch_wrapped_tensor(logits):
            raise InputError(
                f"'{self.name}' does not run inside of torch.func (vmap, grad): reduction='none' gives the cost of "
                "every entry, and torch.autograd.grad the gradient."
            )
        if (values := host_array(labels.detach())) is not None:
            check_codes(values)
        self._images["checked"] = 1

    def _count_images(self, rows: int) -> None:
        """Warn once where a loop trains with the loss without ``set_epoch``, or for long after the last call of it."""
        left = self._images["left"]
        if left == math.inf or not (self.training and torch.is_grad_enabled() and isinstance(rows, int)):
            return
        if left is not None and left >= rows:
            self._images["left"] = left - rows
            return
        self._images |= {"allowed": math.inf, "left": math.inf}
        seen = f"has been {self.epoch} for more than {MOST_EPOCHS} times the training images"
        warnings.warn(
            f"{self.name} depends on the epoch, which {'was never set' if left is None else seen}: "
            "call loss_fn.set_epoch(epoch) at the start of every epoch, counted from 1.",
            stacklevel=5,  # beyond forward and the two functions of torch that call it
        )

    def check_logits(self, logits: Tensor) -> None:
        """Refuse logits that do not fit the state of the loss; nothing to check here."""

    def cost(self, logits: Tensor, labels: Tensor, index: Tensor | None, features: Tensor | None) -> Tensor:
        """Return the loss of a batch that was checked and widened; the body of ``forward``."""
        raise NotImplementedError(f"{type(self).__name__} defines neither cost nor forward")

    @torch.no_grad()
    def modified(self, logits: Tensor, labels: Tensor, index: Tensor | None = None) -> Tensor:
        """Return which unknown entries the method treats otherwise than its rule for unknown labels, ``(…, B, K)``."""
        return torch.zeros_like(logits, dtype=torch.bool)

    def mark(self, cost: Tensor, *values: Tensor) -> Tensor:
        """Return ``cost``, whose backward pass records ``values``; ``after_step`` hands them to ``commit``.

        Call it from ``cost``. Under ``torch.no_grad`` nothing is recorded. The values of the last call are kept as
        well, for a step without a recorded backward pass: of a compiled ``cost``, which cannot have a hook.
        """
        if not torch.is_grad_enabled():
            return cost
        self._last_marks = kept = tuple(value.detach() for value in values)
        if cost.requires_grad and not torch.compiler.is_compiling():
            marks = self._marks
            cost.register_hook(lambda _: marks.append(kept))  # type: ignore[no-untyped-call]
        return cost

    def commit(self, *values: Tensor) -> None:
        """Make what one backward pass recorded permanent; see ``mark``."""

    @torch.no_grad()
    def after_step(self) -> None:
        """Commit what was marked since the last step; call it once per ``optimizer.step()``."""
        marks = [*self._marks] or ([] if self._last_marks is None else [self._last_marks])
        self.skip_step()
        for values in marks:
            self.commit(*values)

    def skip_step(self) -> None:
        """Discard what was marked since the last step; for a step that was not taken."""
        self._marks.clear()
        if self._last_marks is not None:  # setting an attribute of a module takes long
            self._last_marks = None

    def end_epoch(self, scores: TrainingScores | None = None) -> Revisions:
        """Revise labels at the end of an epoch, by the ``scores`` of all training images; return what changed in it."""
        return Revisions()

    def revise(self, scores: TrainingScores | None = None) -> None:
        """Do what ``end_epoch`` does without its list, which takes longer for some methods."""
        self.end_epoch(scores)

    def penalty(self, parameters: Iterable[Tensor]) -> Number:
        """Return the cost of the weights themselves; 0 unless the method defines one."""
        return 0.0

    def handoff_state(self) -> dict[str, Tensor]:
        """Return what the same method continues from in the next phase of a protocol (`role`); nothing by default."""
        return {}

    def load_handoff_state(self, state: dict[str, Tensor]) -> None:
        """Continue from the ``handoff_state`` of an earlier phase; call it after ``prepare``."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Loss:
        """Move number options that are tensors, one value per head, along with the module."""
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                vars(self)[name] = fn(value)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        """Set the epoch of the state too, with all that follows from it; states of earlier versions have none."""
        epoch = int(state_dict.setdefault(f"{prefix}epoch_tensor", torch.tensor(self.epoch)))
        super()._load_from_state_dict(state_dict, prefix, *arguments)
        if epoch != self.epoch:
            self.set_epoch(epoch)

    def options(self, *names: str) -> dict[str, Any]:
        """Return some options by name."""
        return {name: getattr(self, name) for name in names}

    def extra_repr(self) -> str:
        """Show the name the loss was created under, its options, and the size of its state per image."""
        names = [name for name in inspect.signature(type(self)).parameters if hasattr(self, name)]
        size = [format_bytes(self.state_bytes)] if self.state_bytes else []
        return ", ".join([self.name, *(f"{name}={getattr(self, name)!r}" for name in names), *size])


class ReducedLoss(Loss, ABC):
    """A loss with a cost per entry that is reduced at the end. Abstract.

    Denominator: all B·K entries of the global batch, those that cost nothing included.

    Args:
        reduction: "mean" over all entries of the global batch, "sum", or "none" for the ``(…, B, K)`` matrix.
    """

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        self.reduction = check_choice("reduction", reduction, ("mean", "sum", "none"))

    def reduce(self, entries: Tensor) -> Tensor:
        """Reduce the costs of entries ``(…, B, K)`` over the global batch."""
        return reduce(entries, self.reduction)


@cache
def is_replaced(loss_class: type[Loss], *names: str) -> bool:
    """Return whether a subclass has replaced the formula of a loss, but none of what these names declare about it."""
    order = loss_class.__mro__

    def depth(*names: str) -> int:
        return min(order.index(kind) for kind in order for name in names if name in vars(kind))

    return depth("forward", "cost", "entries", "fused", "modified", "large", "reduce") < depth(*names)


class ElementwiseLoss(ReducedLoss, ABC):
    """A loss whose cost per entry follows from logits and labels alone. Abstract: a method defines ``entries``."""

    @abstractmethod
    def entries(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the cost of every entry, ``(…, B, K)``."""

    def cost(self, logits: Tensor, labels: Tensor, index: Tensor | None, features: Tensor | None) -> Tensor:
        """Reduce the entries."""
        return self.reduce(self.entries(logits, labels))


class MultiHead:
    """What a loss offers to the linear engine, which trains many heads at once; a mixin of ``Loss``.

    A loss of your own does not need it: the engine then evaluates it head by head. A loss that inherits from it accepts
    logits ``(…, B, K)`` with the axes of ``heads`` in front, number options as tensors of shape ``(…)``, and keeps its
    per-image state as ``(…, N, K)``. The engine sets ``heads``, ``()`` for one head, before ``prepare``.
    """

    heads: tuple[int, ...] = ()
    tables: Sequence[LabelTable] = ()
    """The labels of every head, where the loss takes them; the engine sets them before ``prepare``."""
    takes_tables: ClassVar[bool] = False
    """Whether heads of different labels may share state per image, all of which follows from ``tables``."""
    shared_options: ClassVar[frozenset[str]] = frozenset()
    """Number options that cannot be tensors; heads that differ in one do not share a loss."""

    def mixture(self, classes: int) -> Mixture | None:
        """Return the mixture that the costs of the entries are, where the method is nothing else; None otherwise."""
        return None

    def revisions_of(self, head: tuple[int, ...]) -> Revisions:
        """Return what the last ``end_epoch`` revised for one of many heads, where the method revises labels."""
        return Revisions()


class LogLoss(MultiHead, ElementwiseLoss, ABC):
    """An element-wise loss with logarithms, for many heads. Abstract.

    A method defines ``entries``, the formula; ``fused`` and ``kernel_form`` register what computes the same faster.

    Args:
        eps: added inside the logarithms; 1e-5 in the code of several papers.
        reduction: "mean", "sum" or "none".
    """

    def __init__(self, eps: Number = 0.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.eps = check_number("eps", eps, 0, 1)

    def fused(self, logits: Tensor, labels: Tensor) -> Fused | None:
        """Return what computes ``entries`` faster, where there is such a form (see ``labelgap.losses.base.fused``)."""
        return None

    def kernel_form(self, rows: int, classes: int) -> KernelForm | None:
        """Return what computes the loss of a batch in one pass, where there is such a kernel."""
        return None

    def usable_kernel_form(self, rows: int, classes: int) -> KernelForm | None:
        """Return the form where it stands for the formula: with plain options, and not of a changed subclass."""
        if not is_fusible(self.eps) or self.reduction == "none" or is_replaced(type(self), "kernel_form"):
            return None
        form = self.kernel_form(rows, classes)
        return form if form is not None and form.is_plain else None

    def one_pass(self, logits: Tensor, labels: Tensor) -> Tensor | None:
        """Return the loss as a kernel computes it; None where none does (see ``labelgap.losses.kernels.dispatch``)."""
        if logits.ndim != 2 or not are_taken(logits.device, logits.dtype, logits.numel()) or not is_fusible(self.eps):
            return None
        form = self.usable_kernel_form(*logits.shape)
        return None if form is None else one_pass(form, logits, labels, self.reduction)

    def cost(self, logits: Tensor, labels: Tensor, index: Tensor | None, features: Tensor | None) -> Tensor:
        """Reduce the entries, in one pass where a kernel does."""
        loss = self.one_pass(logits, labels)
        return self.without_kernel(logits, labels) if loss is None else loss

    def without_kernel(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Reduce the entries, by the form of ``fused`` where there is one."""
        parts = self.fused(logits, labels) if is_fusible(self.eps) else None
        return self.reduce(self.entries(logits, labels)) if parts is None else fused(parts, self.reduction)


class MixtureLoss(LogLoss, ABC):
    """A loss whose cost per entry is a mixture: ``declared``, or ``weights`` where it depends on options. Abstract.

    The soft labels of the table it is prepared with become part of the mixture; it needs the rows then.
    """

    takes_soft = True
    declared: ClassVar[Mixture]
    soft: SoftTargets | None = None

    def prepare(self, table: LabelTable, epochs: int = 10, seed: int = 0) -> None:
        """Copy the soft labels of the table to the device."""
        super().prepare(table, epochs, seed)
        self.soft, self.needs = None, type(self).needs
        if table.soft is not None:
            self.soft = SoftTargets(*(torch.from_numpy(part).to(self.epoch_tensor.device) for part in table.soft))
            self.needs = self.needs | {"index"}

    def weights(self, classes: int) -> Mixture:
        """Return the weights of the mixture for ``classes`` classes."""
        return self.declared

    def laid_over(self, mixture: Mixture, index: Tensor | None) -> Mixture:
        """Return a mixture with the soft labels of some rows, where there are any."""
        if self.soft is None or index is None:
            return mixture
        return replace(mixture, soft=SoftTargets(*(part[index.to(part.device)] for part in self.soft)))

    def entries(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the costs of the mixture without soft labels; see ``mixture_entries``."""
        mixture = self.weights(logits.shape[-1])
        modified = None if mixture.modified is None else self.modified(logits, labels)
        return mixture_entries(logits, labels, mixture, modified=modified, eps=self.eps)

    def cost(self, logits: Tensor, labels: Tensor, index: Tensor | None, features: Tensor | None) -> Tensor:
        """Reduce the costs of the mixture; with soft labels by its formula."""
        if self.soft is None:
            return super().cost(logits, labels, index, features)
        mixture = self.laid_over(self.weights(logits.shape[-1]), index)
        modified = None if mixture.modified is None else self.modified(logits, labels)
        return self.reduce(mixture_entries(logits, labels, mixture, modified=modified, eps=self.eps))

    def without_kernel(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Reduce the costs of the mixture, or the ``entries`` of a subclass that has its own."""
        if type(self).entries is not MixtureLoss.entries:
            return self.reduce(self.entries(logits, labels))
        mixture = self.weights(logits.shape[-1])
        modified = None if mixture.modified is None else self.modified(logits, labels)
        return fused_mixture(logits, labels, mixture, modified=modified, eps=self.eps, reduction=self.reduction)

    def kernel_form(self, rows: int, classes: int) -> KernelForm | None:
        """A mixture whose weights follow from the labels alone."""
        mixture = self.weights(classes)
        return None if mixture.modified is not None or self.soft is not None else mixture_kernel_form(mixture)

    def mixture(self, classes: int) -> Mixture | None:
        """Return the mixture where nothing is added inside the logarithms."""
        return None if isinstance(self.eps, Tensor) or self.eps else self.weights(classes)


def mixture_kernel_form(mixture: Mixture, share: Tensor | None = None) -> KernelForm | None:
    """Return the kernel of a mixture, with or without a share of modified entries; None where it has more terms."""
    if mixture.expected_positives is not None or mixture.label_estimate is not None:
        return None
    weights = tuple(number for u, v, w in mixture.rows for number in (u + v, u, w))
    return KernelForm("mixture", (share is not None, mixture.has_entropy), weights, share=share)
