r"""The linear engine: many linear heads on fixed features, trained at once.

The heads are stacked into M · K rows of weights. One product gives the logits of a batch for all of them, the losses
give the derivative of each head's loss in its logits, and a second product gives the gradient of all weights:

.. math:: x = W f + b, \qquad g = \partial L / \partial x, \qquad \partial L / \partial W = g\,f^\top

Heads share the batches and nothing else. Each has its own labels, method, options, learning rate and optimizer state,
and one whose loss is not finite is frozen while the others continue. Trained together they end where each would have
ended alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labelgap.core.errors import InputError, UnknownNameError
from labelgap.core.seeds import numpy_generator
from labelgap.labels import Revisions
from labelgap.losses.base.terms import widest_float
from labelgap.training.heads.cuda_graph import CudaGraphRunner
from labelgap.training.heads.grouping import HeadGroup, HeadPlan
from labelgap.training.heads.mixture_kernel import BatchWeights, MixtureKernel
from labelgap.training.heads.optimizers import StackedAdam, StackedOptimizer, StackedParameter, StackedSGD
from labelgap.training.heads.solver import FeatureBasis, StackedNewton
from labelgap.training.heads.stack import HeadStack

StepHook = Callable[[Tensor, Tensor, Tensor, Callable[[], Tensor]], None]
"""Called before every step with rows ``(B,)``, logits ``(M, B, K)``, labels ``(M, B, K)``, and a function that returns
the mask ``(M, B, K)`` of entries that the methods modify."""

NEWTON_STEPS = 10
"""Steps in an epoch of the optimizer "newton", each on all images."""
BLOCK_STEPS = 32
BLOCK_ENTRIES = 1 << 20
"""On a CPU the weights of entries are computed for so many steps at once, or for so many entries of logits."""


class LinearEngine(HeadStack):
    """Linear heads in training.

    Args:
        features: ``(N, D)`` of the training images, a row for each row of the label tables; or ``(P, N, D)``, and each
            plan says which part it is trained on: those of several folds.
        plans: the heads; the number of a head is its position in this list.
        epochs: how many will be trained; some methods depend on it.
        batch_size: images per step. The last batch of an epoch may be smaller.
        order_seed: of the order of the images, which all heads share.
        device: of all tensors.
        dtype: float32 or float64.
        optimizer: "adam", "sgd", or "newton", which steps on all images at once, ten times in an epoch.
        momentum: of "sgd".
        nesterov: of "sgd".
        standardize: whether heads are trained on standardized features; their weights are on the features all the same.
        basis: the coordinates of the features, where several engines share them; else they are fitted here.
        graphs: whether to capture the step in a CUDA graph, where the device has them.

    Attributes:
        graph_runner: replays steps from a CUDA graph; None where there are none.

    The initial weights are those that ``LinearHead`` draws with the plan's seed; torch's global generator is not
    changed. Methods that draw in every step (`warp` with sampled ranks) use the global generator; only they differ
    between training together and alone.
    """

    def __init__(
        self,
        features: Tensor,
        plans: Sequence[HeadPlan],
        *,
        epochs: int,
        batch_size: int,
        order_seed: int = 0,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        optimizer: str = "adam",
        momentum: float = 0.0,
        nesterov: bool = False,
        standardize: bool = False,
        basis: FeatureBasis | None = None,
        graphs: bool = True,
    ) -> None:
        self.full_batch = optimizer == "newton"
        if basis is None and (standardize or self.full_batch):
            basis = FeatureBasis.fit(features, standardize=standardize, rotate=self.full_batch)
        size = features.shape[-2] if self.full_batch else batch_size
        target = torch.device(device)
        super().__init__(features, plans, epochs=epochs, batch_size=size, device=target, dtype=dtype, basis=basis)
        self.order_seed, self.epochs = order_seed, epochs
        self.kernel = MixtureKernel(
            self.groups, self.table_of_slot, classes=self.classes, epochs=epochs, dtype=dtype, device=self.device
        )
        self.autograd_groups = [group for group in self.groups if group.mixture is None]
        self.penalty_groups = [group for group in self.groups if "penalty" in group.loss_fn.needs]
        self.loss_parameters: list[tuple[HeadGroup, nn.Parameter]] = []
        bias = self.stacked_parameter(self.bias, decays=not self.full_batch)
        stacked = [self.stacked_parameter(self.weight), bias, *self._loss_parameters()]
        if self.full_batch:
            start = torch.from_numpy(np.stack([_frequency_logits(plan) for plan in self.plans]))
            self._set_weights(torch.zeros(*start.shape, self.features.shape[-1]), start)
        self.optimizer = self._create_optimizer(optimizer, stacked, momentum, nesterov)
        self.weight_gradient = torch.empty_like(self.weight)
        self.gradients = self.weight_gradient.view(len(plans), -1), torch.empty_like(self.bias).view(len(plans), -1)
        self.epoch_tensor = torch.ones((), dtype=torch.int64, device=self.device)
        self.graph_runner = self.make_graph_runner() if graphs and self.device.type == "cuda" else None

    @property
    def graph_disabled(self) -> str | None:
        """Why steps are not replayed from a CUDA graph; None where they are."""
        if self.graph_runner is not None:
            return self.graph_runner.disabled
        return "graphs=False" if self.device.type == "cuda" else f"a '{self.device.type}' device has no CUDA graphs"

    def make_graph_runner(self) -> CudaGraphRunner:
        """Return what trains an epoch without the host."""
        disabled = "the labels do not fit on the device" if self.tables.dense is None else None
        return CudaGraphRunner(len(self.order(1)), self.batch_size, len(self.plans), self.device, disabled)

    def _create_optimizer(
        self, name: str, parameters: Sequence[StackedParameter], momentum: float, nesterov: bool
    ) -> StackedOptimizer:
        if name == "adam":
            return StackedAdam(parameters, self.active, fused=self.device.type == "cpu")
        if name == "sgd":
            return StackedSGD(parameters, self.active, momentum=momentum, nesterov=nesterov)
        if name != "newton" or self.basis is None:
            raise UnknownNameError("optimizer", name, ("adam", "sgd", "newton"))
        return StackedNewton(parameters, self.active, self.basis.variances, self.classes)

    def _loss_parameters(self) -> Iterator[StackedParameter]:
        """Yield the parameters of the losses, and keep them in ``loss_parameters``."""
        for group in self.groups:
            for settings in group.loss_fn.parameter_groups(1.0):
                rates = [settings["lr"] * self.plans[plan].lr for plan in group.plans]
                for parameter in settings["params"]:
                    parameter.data = parameter.data.contiguous()  # fused kernels run over memory in order
                    self.loss_parameters.append((group, parameter))
                    slots = range(group.slots.start, group.slots.stop)
                    yield StackedParameter(group.with_axis(parameter.detach()), rates, slots)

    @torch.no_grad()
    def train_epoch(self, epoch: int, hook: StepHook | None = None) -> NDArray[np.float64]:
        """Train all heads on every image once, in the order of this epoch, counted from 1; call the hook before steps.

        Returns:
            ``(M,)``, the mean loss of every head; NaN where it was not finite.
        """
        if not 1 <= epoch <= self.epochs:
            raise InputError(f"epoch {epoch}: {self.epochs} were planned, counted from 1.")
        self.epoch_tensor.fill_(epoch)
        self.steps_done.zero_()
        for group in self.groups:
            group.loss_fn.set_epoch(epoch)
        order = self.order(epoch).to(self.device)
        if self.graph_runner is not None and hook is None:
            total = self.graph_runner.run_epoch(order, self.train_batch)
        else:
            losses = [(len(rows), self._step(rows, batch, hook)) for rows, batch in self._batches(order)]
            sizes = torch.tensor([size for size, _ in losses], dtype=widest_float(self.device), device=self.device)
            total = (torch.stack([loss for _, loss in losses], dim=1).to(sizes.dtype) * sizes).sum(dim=1)
        mean: NDArray[np.float64] = (total / len(order)).index_select(0, self.slot_of_plan).cpu().numpy()
        return mean

    def order(self, epoch: int) -> Tensor:
        """Return the order of the images in an epoch, ``(N,)``; all of them ten times over under "newton"."""
        if self.full_batch:
            return torch.arange(self.features.shape[-2]).repeat(NEWTON_STEPS)
        return torch.from_numpy(numpy_generator(self.order_seed, "order", epoch).permutation(self.features.shape[-2]))

    def _batches(self, order: Tensor) -> Iterator[tuple[Tensor, BatchWeights]]:
        """Yield the rows of every batch and the weights of its entries."""
        size = self.batch_size
        entries = size * self.classes * len(self.plans)
        steps = max(1, min(BLOCK_STEPS, BLOCK_ENTRIES // max(entries, 1))) if self.device.type == "cpu" else 1
        full = len(order) // size * size
        for rows in (*torch.split(order[:full], steps * size), order[full:]):
            if len(rows):
                batches = rows.view(-1, min(size, len(rows)))
                yield from zip(batches.unbind(0), self._batch_weights(batches).batches(), strict=True)

    def _batch_weights(self, rows: Tensor) -> BatchWeights:
        """Return the weights of the entries of batches of rows ``(S, B)``."""
        codes = self.tables.rows(rows.flatten())
        return self.kernel.block(codes.view(len(codes), *rows.shape, -1).permute(1, 0, 3, 2).contiguous())

    def train_batch(self, rows: Tensor) -> Tensor:
        """Train all heads on a batch of rows ``(B,)``; return their losses ``(M,)`` by slot."""
        (batch,) = self._batch_weights(rows[None]).batches()
        return self._step(rows, batch)

    def _step(self, rows: Tensor, batch: BatchWeights, hook: StepHook | None = None) -> Tensor:
        """Train all heads on a batch; return their losses ``(M,)`` by slot."""
        features = self.features if self.full_batch else self.features.index_select(-2, rows)
        parts = (features,) if features.ndim == 2 else features.unbind(0)
        logits = self.part_logits(parts).view(len(self.plans), self.classes, len(rows))
        logits = logits.index_select(0, self.row_of_slot) if self.reordered else logits
        if hook is not None:
            self._call_hook(hook, rows, logits, batch)
        loss, gradient = self._losses(logits, batch, rows, parts)
        self.steps_done.add_(1)
        self._freeze_failed(loss, gradient)
        gradient = gradient.index_select(0, self.slot_of_row) if self.reordered else gradient
        for own, each in zip(self.part_rows, parts, strict=True):
            torch.mm(gradient.view(-1, len(rows))[own], each, out=self.weight_gradient[own])
        torch.sum(gradient, 2, out=self.gradients[1])
        penalties: dict[nn.Parameter, Tensor] = {}
        for group in self.penalty_groups:
            penalties |= self._add_penalty(group)
        self.optimizer.step([*self.gradients, *self._loss_gradients(penalties)])
        self.kernel.zero_grad(rows)
        for group in self.autograd_groups:
            group.loss_fn.after_step()
        return loss

    def _losses(
        self, logits: Tensor, batch: BatchWeights, rows: Tensor, parts: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return all losses ``(M,)`` and their derivatives in the logits, ``(M, K, B)``."""
        if self.kernel.empty and len(self.groups) == 1:
            labels = self.kernel.labels(self.groups[0], batch)
            return self.groups[0].loss_and_gradient(logits, labels, rows, parts[self.groups[0].part])
        if self.kernel.empty:
            loss, gradient = logits.new_empty(len(logits)), torch.empty_like(logits)
        else:
            loss, gradient = self.kernel.evaluate(logits, batch, rows)
        for group in self.autograd_groups:
            found = group.loss_and_gradient(logits, self.kernel.labels(group, batch), rows, parts[group.part])
            loss[group.slots], gradient[group.slots] = found
        return loss, gradient

    def _freeze_failed(self, loss: Tensor, gradient: Tensor) -> None:
        """Freeze the heads whose loss is not finite. A GPU is not synchronized for it."""
        if self.host_syncs and math.isfinite(float(loss.sum())):
            return
        failed = ~loss.isfinite() & self.active
        if not self.host_syncs or bool(failed.any()):
            self.failed_epoch.copy_(torch.where(failed, self.epoch_tensor, self.failed_epoch))
            self.failed_step.copy_(torch.where(failed, self.steps_done, self.failed_step))
            self.active.logical_and_(~failed)
            if self.host_syncs:
                self._active_changed()
        gradient.masked_fill_(~self.active[:, None, None], 0.0)

    def _add_penalty(self, group: HeadGroup) -> dict[nn.Parameter, Tensor]:
        """Add the derivatives of a loss's penalty in the weights; return those in its own parameters."""
        shape, rows = (len(self.plans), self.classes), self.row_of_slot[group.slots]
        own = [parameter for parameter in group.loss_fn.parameters() if parameter.requires_grad]
        with torch.enable_grad():
            weights = self.weight.view(*shape, -1), self.bias.view(shape)
            leaves = [values.index_select(0, rows).requires_grad_() for values in weights]
            penalty = torch.as_tensor(group.loss_fn.penalty([group.without_axis(leaf) for leaf in leaves]))
            if not penalty.requires_grad:
                return {}
            found = torch.autograd.grad(penalty.sum(), [*leaves, *own], allow_unused=True, materialize_grads=True)
        for total, gradient in zip(self.gradients, found[:2], strict=True):
            total[rows] += gradient.flatten(1)
        return dict(zip(own, found[2:], strict=True))

    def _loss_gradients(self, penalties: dict[nn.Parameter, Tensor]) -> Iterator[Tensor]:
        """Yield the gradients of the parameters of losses; 0 for frozen heads."""
        for group, parameter in self.loss_parameters:
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            if parameter in penalties:
                gradient = gradient + penalties[parameter]
            gradient = group.with_axis(gradient).contiguous()
            if not self.all_active:
                frozen = ~self.active[group.slots]
                gradient.masked_fill_(frozen.view(-1, *[1] * (gradient.ndim - 1)), 0.0)
            yield gradient

    def _call_hook(self, hook: StepHook, rows: Tensor, logits: Tensor, batch: BatchWeights) -> None:
        """Call a hook with the heads in the order of the plans."""

        def modified() -> Tensor:
            mask = torch.zeros(len(self.plans), len(rows), self.classes, dtype=torch.bool, device=self.device)
            for group in self.groups:
                labels = self.kernel.labels(group, batch)
                mask[group.slots] = group.loss_fn.modified(group.select(logits), labels, rows)
            return mask.index_select(0, self.slot_of_plan)

        labels = batch.codes.index_select(0, self.index(self.table_of_slot)).mT
        slots = self.slot_of_plan
        hook(rows, logits.mT.index_select(0, slots), labels.index_select(0, slots), modified)

    def freeze(self, heads: Sequence[int]) -> None:
        """Freeze some heads, by their numbers."""
        self.active.index_fill_(0, self.slot_of_plan.index_select(0, self.index(heads)), False)
        self._active_changed()

    def _active_changed(self) -> None:
        self.all_active = self.host_syncs and bool(self.active.all())
        self.optimizer.active_changed()

    def end_epoch(self, *, list_revisions: bool = True) -> list[Revisions]:
        """Let every method revise its labels (`em-apl`, `curriculum`); return what each head's method has revised.

        To list that is slow for many heads: without ``list_revisions`` the lists are empty.
        """
        revisions = [Revisions()] * len(self.plans)
        for group in self.groups:
            scores = partial(self.training_logits, group) if "scores" in group.loss_fn.needs else None
            found = group.loss_fn.end_epoch(scores)
            for number, plan in enumerate(group.plans if list_revisions else ()):
                revisions[plan] = group.multi_head.revisions_of((number,)) if len(group.plans) > 1 else found
        return revisions

    def state_dict(self) -> dict[str, Any]:
        """Return everything that decides how training continues: the tensors themselves, not copies."""
        return {
            **self.stack_state(),
            "optimizer": self.optimizer.state(),
            "losses": [group.loss_fn.state_dict() for group in self.groups],
            "random": torch.get_rng_state(),
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the ``state_dict`` of an engine with the same plans; training ends with the same bytes."""
        self.load_stack_state(state)
        for name, values in self.optimizer.state().items():
            values.copy_(state["optimizer"][name])
        for group, stored in zip(self.groups, state["losses"], strict=True):
            group.loss_fn.load_state_dict(stored)
        torch.set_rng_state(state["random"].cpu())
        self._active_changed()


def _frequency_logits(plan: HeadPlan) -> NDArray[np.float64]:
    """Return the logits ``(K,)`` of how often each class is known to be present."""
    present, images = plan.labels.counts().present, len(plan.labels)
    return np.asarray(np.log((present + 0.5) / (images - present + 0.5)))
