r"""The linear engine: many linear heads on fixed features, trained at once.

The heads are stacked into M · K rows of weights. One product gives the logits of a batch for all of them, the losses
give the derivative of each head's loss in its logits, and a second product gives the gradient of all weights:

.. math:: x = W f + b, \qquad g = \partial L / \partial x, \qquad \partial L / \partial W = g\,f^\top

Heads share the batches and nothing else. Each has its own labels, method, options, learning rate and optimizer state,
and one whose loss is not finite is frozen while the others continue. Trained together they end where each would have
ended alone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labelgap.core.distributed import world_size
from labelgap.core.errors import InputError
from labelgap.core.seeds import derive_seed, numpy_generator
from labelgap.core.system import format_bytes
from labelgap.labels import LabelTable, Revisions
from labelgap.losses import MultiHead
from labelgap.losses.base.mixture import SoftTargets
from labelgap.losses.base.state import free_memory
from labelgap.losses.base.terms import widest_float
from labelgap.models.heads import LinearHead
from labelgap.training.cuda_graphs import GraphedStep
from labelgap.training.heads.grouping import HeadGroup, HeadPlan, group_plans
from labelgap.training.heads.mixture_kernel import BatchWeights, MixtureKernel
from labelgap.training.heads.optimizers import StackedAdam, StackedOptimizer, StackedParameter, StackedSGD
from labelgap.training.heads.solver import FeatureBasis, StackedNewton

StepHook = Callable[[Tensor, Tensor, Tensor, Callable[[], Tensor]], None]
"""Called before every step with rows ``(B,)``, logits ``(M, B, K)``, labels ``(M, B, K)``, and a function that returns
the mask ``(M, B, K)`` of entries that the methods modify."""

CHUNK = 1 << 24
"""How many logits are computed at once."""
SMALL_FEATURES = 1 << 18
"""Features of fewer values are transposed in memory: a small product is several times as fast then."""
MEMORY_SHARE = 4
"""Label tables are dense, a byte per image and class, where they fit into this fraction of the free memory."""
NEWTON_STEPS = 10
"""Steps in an epoch of the optimizer "newton", each on all images."""
BLOCK_STEPS = 32
BLOCK_ENTRIES = 1 << 20
"""On a CPU the weights of entries are computed for so many steps at once, or for so many entries of logits."""


def initial_head(width: int, classes: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return the weights ``(K, D)`` and biases ``(K,)`` of a linear run with this seed before training."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive_seed(seed, "initialisation"))  # others take 1 ms without a GPU
        head = LinearHead(width, classes)
    return head.weight.detach(), head.bias.detach()


class LabelTables:
    """The labels of all heads on the device: distinct tables of the same images and classes, each once.

    ``parts`` are the parts of the heads; those of one part see the same images. ``number`` has for every head the
    number of its table. ``dense``, ``(T, N, K)`` int8, is None where it is too large: then labels are read from the
    sparse tables. ``soft`` are the soft labels of those tables that have any, by number.
    """

    def __init__(self, tables: Sequence[LabelTable], device: torch.device, parts: Sequence[int] = ()) -> None:
        self.distinct: list[LabelTable] = []
        self.parts: list[int] = []
        self.device = device
        self.number = [self._number(*each) for each in zip(tables, parts or [0] * len(tables), strict=True)]
        self.soft = {
            number: SoftTargets(*(torch.from_numpy(part).to(device) for part in table.soft))
            for number, table in enumerate(self.distinct)
            if table.soft is not None
        }
        images, classes = self.distinct[0].shape
        self.dense: Tensor | None = None
        if len(self.distinct) * images * classes <= free_memory(device) // MEMORY_SHARE:
            self.dense = torch.stack([torch.from_numpy(table.to_dense()) for table in self.distinct]).to(device)

    def rows(self, index: Tensor) -> Tensor:
        """Return the codes of some rows, ``(T, B, K)`` int8."""
        if self.dense is not None:
            return self.dense.index_select(1, index)
        return torch.stack([table.batch(index) for table in self.distinct]).to(self.device)

    def _number(self, table: LabelTable, part: int) -> int:
        for number, other in enumerate(self.distinct):
            if part == self.parts[number] and (table is other or table == other):
                return number
        if self.distinct:
            first = self.distinct[self.parts.index(part) if part in self.parts else 0]
            same = table.images == first.images if part in self.parts else len(table) == len(first)
            if table.classes != first.classes or not same:
                raise InputError(
                    "heads that are trained together need labels of the same images and classes, in the same order; "
                    f"one has {table!r}, another {first!r}."
                )
        self.distinct.append(table)
        self.parts.append(part)
        return len(self.distinct) - 1


class LinearEngine:
    """Linear heads in training.

    A head has the number of its plan; a *slot* in logits and losses, where heads that share a loss are adjacent; and a
    *row* in the weights, where heads of the same learning rate are adjacent. The initial weights are those that
    ``LinearHead`` draws with the plan's seed. Methods that draw in every step (`warp` with sampled ranks) use torch's
    global generator; only they differ between training together and alone.

    Args:
        features: ``(N, D)`` of the training images, a row for each row of the label tables; or ``(P, N, D)``, and each
            plan says which part it is trained on: those of several folds.
        plans: the heads.
        epochs: how many will be trained; some methods depend on it.
        batch_size: images per step. The last batch of an epoch may be smaller.
        order_seed: the seed of the order of the images, which all heads share.
        device, dtype: where all tensors lie, and their type: float32 or float64.
        optimizer: "adam", "sgd", or "newton", which steps on all images at once, ten times in an epoch.
        momentum, nesterov: options of "sgd".
        standardize: whether heads are trained on standardized features; their weights are on the features all the same.
        basis: the coordinates of the features, where several engines share them; else they are fitted here.
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
    ) -> None:
        self.full_batch = optimizer == "newton"
        if basis is None and (standardize or self.full_batch):
            basis = FeatureBasis.fit(features, standardize=standardize, rotate=self.full_batch)
        self.plans, self.epochs, self.order_seed, self.basis = tuple(plans), epochs, order_seed, basis
        self.batch_size = features.shape[-2] if self.full_batch else batch_size
        self.device, self.dtype = torch.device(device), dtype
        _check(features, plans)
        self.classes, self.width = len(plans[0].labels.classes), features.shape[-1]
        _check_memory(features, len(plans) * self.classes, self.device, dtype)
        self.features = self.coordinates(features)
        self.tables = LabelTables([plan.labels for plan in plans], self.device, [plan.part for plan in plans])
        self._group_heads()
        self._create_weights()
        self.kernel = MixtureKernel(self.groups, self.table_of_slot, self.classes, dtype, self.device)
        self.full_weights: BatchWeights | None = None
        self.autograd_groups = [group for group in self.groups if group.mixture is None]
        self.penalty_groups = [group for group in self.groups if "penalty" in group.loss_fn.needs]
        self.loss_parameters: list[tuple[HeadGroup, nn.Parameter]] = []
        bias = self._stacked(self.bias, decays=not self.full_batch)
        stacked = [self._stacked(self.weight), bias, *self._loss_parameters()]
        self.optimizer = self._create_optimizer(optimizer, stacked, momentum, nesterov)
        self.weight_gradient = torch.empty_like(self.weight)
        self.gradients = self.weight_gradient.view(len(plans), -1), torch.empty_like(self.bias).view(len(plans), -1)
        self.epoch_tensor = torch.ones((), dtype=torch.int64, device=self.device)
        self.graphed_step = self.make_graphed_step() if self.device.type == "cuda" else None

    def _group_heads(self) -> None:
        """Decide which heads share a loss, and the slot and the row of every head."""
        plans, most = self.plans, min(self.batch_size, self.features.shape[-2])
        self.groups = group_plans(
            plans, self.tables.number, epochs=self.epochs, device=self.device, dtype=self.dtype, batch_size=most
        )
        self.plan_of_slot = [plan for group in self.groups for plan in group.plans]
        settings = [(plans[plan].part, -plans[plan].lr, plans[plan].weight_decay) for plan in self.plan_of_slot]
        by_rate = sorted(range(len(plans)), key=settings.__getitem__)
        self.slot_of_plan, self.slot_of_row = self._index(self.plan_of_slot).argsort(), self._index(by_rate)
        self.row_of_slot = self.slot_of_row.argsort()
        self.row_of_plan = self.row_of_slot[self.slot_of_plan]
        self.reordered = by_rate != list(range(len(plans)))
        parts = 1 if self.features.ndim == 2 else len(self.features)
        ends = (self.classes * np.bincount([plan.part for plan in plans], minlength=parts)).cumsum().tolist()
        self.part_rows = [slice(start, end) for start, end in itertools.pairwise([0, *ends])]
        self.equal_parts = parts > 1 and len({rows.stop - rows.start for rows in self.part_rows}) == 1
        self.table_of_slot = [self.tables.number[plan] for plan in self.plan_of_slot]

    def _create_weights(self) -> None:
        """Allocate what every head has, and draw its initial weights; "newton" starts from the frequencies."""
        count, device, width = len(self.plans), self.device, self.features.shape[-1]
        self.weight = self.features.new_empty(count * self.classes, width)
        self.bias = self.features.new_empty(count * self.classes)
        self.active = torch.ones(count, dtype=torch.bool, device=device)
        self.failed_epoch = torch.zeros(count, dtype=torch.int64, device=device)
        self.failed_step = torch.zeros_like(self.failed_epoch)
        self.host_syncs = device.type == "cpu"  # the host reads losses, which a device would have to wait for
        self.all_active = self.host_syncs  # no head is frozen, as far as the host knows
        self.steps_done = torch.zeros((), dtype=torch.int64, device=device)
        if self.full_batch:
            present = np.stack([plan.labels.counts().present for plan in self.plans])
            start = torch.from_numpy(np.log((present + 0.5) / (self.features.shape[-2] - present + 0.5)))
            self._set_weights(torch.zeros(*start.shape, width), start)
            return
        first = {seed: initial_head(width, self.classes, seed) for seed in {plan.seed for plan in self.plans}}
        weights, biases = zip(*(first[plan.seed] for plan in self.plans), strict=True)
        self._set_weights(torch.stack(weights), torch.stack(biases))

    def _index(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=self.device)

    def _stacked(self, values: Tensor, *, decays: bool = True) -> StackedParameter:
        """Return weights of all heads for the optimizer, with or without their weight decay."""
        slots = self.slot_of_row.tolist()
        plans = [self.plans[self.plan_of_slot[slot]] for slot in slots]
        decay = [plan.weight_decay for plan in plans] if decays else ()
        return StackedParameter(values.view(len(slots), -1), [plan.lr for plan in plans], slots, decay)

    def make_graphed_step(self) -> GraphedStep:
        """Return what replays the steps: all that changes between them lies on the device."""
        reason = "the labels do not fit on the device" if self.tables.dense is None else None
        return GraphedStep([], self.device, batch_size=self.batch_size, disabled=reason, lasting=True, always=True)

    def _create_optimizer(
        self, name: str, parameters: Sequence[StackedParameter], momentum: float, nesterov: bool
    ) -> StackedOptimizer:
        if name == "adam":
            return StackedAdam(parameters, self.active, fused=self.device.type == "cpu")
        if name == "sgd":
            return StackedSGD(parameters, self.active, momentum=momentum, nesterov=nesterov)
        assert self.basis is not None
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

    def coordinates(self, features: Tensor) -> Tensor:
        """Return the coordinates ``(N, R)`` of features ``(N, D)``, on the device."""
        features = features.detach().to(self.device, self.dtype)
        return features if self.basis is None else self.basis.apply(features)

    @property
    def heads(self) -> tuple[Tensor, Tensor]:
        """Copies of the weights ``(M, K, D)`` and biases ``(M, K)`` of all plans, on the features."""
        shape = len(self.plans), self.classes
        weight, bias = self.weight.view(*shape, -1), self.bias.view(shape)
        weight, bias = weight.index_select(0, self.row_of_plan), bias.index_select(0, self.row_of_plan)
        return (weight, bias) if self.basis is None else self.basis.to_features(weight, bias)

    @torch.no_grad()
    def set_heads(self, weight: Tensor, bias: Tensor) -> None:
        """Replace the weights ``(M, K, D)`` and biases ``(M, K)`` on the features, in the order of the plans."""
        weight, bias = (values.detach().to(self.device, self.dtype) for values in (weight, bias))
        self._set_weights(*((weight, bias) if self.basis is None else self.basis.from_features(weight, bias)))

    def _set_weights(self, weight: Tensor, bias: Tensor) -> None:
        """Set the weights ``(M, K, R)`` and biases ``(M, K)`` on the coordinates, in the order of the plans."""
        plan_of_row = self.row_of_plan.argsort()
        self.weight.view(weight.shape).copy_(weight.to(self.device).index_select(0, plan_of_row))
        self.bias.view(bias.shape).copy_(bias.to(self.device).index_select(0, plan_of_row))

    @property
    def failed(self) -> list[int | None]:
        """For every plan the epoch in which its loss was not finite; None where it always was."""
        return [epoch or None for epoch in self.failed_epoch.index_select(0, self.slot_of_plan).tolist()]

    def _part_logits(self, features: Tensor, parts: Sequence[Tensor]) -> Tensor:
        """Return the logits ``(M · K, B)``, by row, of batches ``(B, R)`` of all parts, also stacked."""
        if self.equal_parts:
            weight, bias = self.weight.view(len(parts), -1, features.shape[-1]), self.bias.view(len(parts), -1, 1)
            return torch.baddbmm(bias, weight, features.mT).flatten(0, 1)
        flat = [each.t().contiguous() if each.numel() < SMALL_FEATURES else each.t() for each in parts]
        own = zip(self.part_rows, flat, strict=True)
        return torch.cat([torch.addmm(self.bias[rows, None], self.weight[rows], each) for rows, each in own])

    @torch.no_grad()
    def logits(self, features: Tensor) -> Tensor:
        """Return the logits ``(M, N, K)`` of images by their features ``(N, D)``, in the order of the plans."""
        pairs = self._iterate_logits(self.coordinates(features), self.row_of_plan)
        return torch.cat([logits for _, logits in pairs], dim=1)

    @torch.no_grad()
    def _iterate_logits(self, coordinates: Tensor, heads: Tensor, together: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield images ``(B,)`` and their logits ``(n, B, K)``, of heads by row, a bounded number at a time.

        ``together`` is how many heads have such logits at a time, where they are more than these.
        """
        shape = len(heads), self.classes
        weight = self.weight.view(-1, self.classes, self.weight.shape[1]).index_select(0, heads).flatten(0, 1)
        bias = self.bias.view(-1, self.classes).index_select(0, heads).flatten()
        step = max(1, CHUNK // max(len(bias), together * self.classes, 1))
        for first in range(0, max(len(coordinates), 1), step):
            part = coordinates[first : first + step]
            rows = torch.arange(first, first + len(part), device=self.device)
            yield rows, torch.addmm(bias[:, None], weight, part.t()).view(*shape, -1).mT

    def _training_logits(self, group: HeadGroup) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield all training images and their logits for the loss of a group; 0 for failed heads."""
        bad = (self.failed_epoch[group.slots] > 0)[:, None, None]
        features, rows = self.features.view(-1, *self.features.shape[-2:]), self.row_of_slot[group.slots]
        by_part: dict[int, list[int]] = {}
        for number, plan in enumerate(group.plans):
            by_part.setdefault(self.plans[plan].part, []).append(number)
        back = self._index([number for heads in by_part.values() for number in heads]).argsort()
        every = [
            self._iterate_logits(features[part], rows[self._index(heads)], len(group.plans))
            for part, heads in by_part.items()
        ]
        for pairs in zip(*every, strict=True):
            logits = torch.cat([each for _, each in pairs]).index_select(0, back) if len(pairs) > 1 else pairs[0][1]
            yield pairs[0][0], group.without_axis(logits if self.all_active else logits.masked_fill(bad, 0.0))

    @torch.no_grad()
    def train_epoch(self, epoch: int, hook: StepHook | None = None) -> NDArray[np.float64]:
        """Train all heads on every image once, in the order of this epoch, counted from 1; call the hook before steps.

        Returns:
            ``(M,)``, the mean loss of every head; NaN where it was not finite.
        """
        self.epoch_tensor.fill_(epoch)
        self.steps_done.zero_()
        for group in self.groups:
            group.loss_fn.set_epoch(epoch)
        order = self.order(epoch).to(self.device)
        if (graphed := self.graphed_step) is not None and hook is None:
            steps = ((rows, graphed(self.train_batch, rows).clone()) for rows in torch.split(order, self.batch_size))
        else:
            steps = ((rows, self._step(rows, batch, hook)) for rows, batch in self._batches(order))
        losses = [(len(rows), loss) for rows, loss in steps]
        if graphed is not None:
            graphed.end_epoch()
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
        if self.full_batch:  # all batches are the same, in every epoch
            if self.full_weights is None:
                (self.full_weights,) = self._batch_weights(order[None, :size]).batches()
            yield from ((rows, self.full_weights) for rows in torch.split(order, size))
            return
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
        block = self.kernel.block(codes.view(len(codes), *rows.shape, -1).permute(1, 0, 3, 2).contiguous())
        for number, soft in self.tables.soft.items():
            target, weight = (part[rows].mT.to(self.dtype) for part in soft)
            self.kernel.lay_over(block, number, target, weight)
        return block

    def train_batch(self, rows: Tensor) -> Tensor:
        """Train all heads on a batch of rows ``(B,)``; return their losses ``(M,)`` by slot."""
        (batch,) = self._batch_weights(rows[None]).batches()
        return self._step(rows, batch)

    def _step(self, rows: Tensor, batch: BatchWeights, hook: StepHook | None = None) -> Tensor:
        """Train all heads on a batch; return their losses ``(M,)`` by slot."""
        features = self.features if self.full_batch else self.features.index_select(-2, rows)
        parts = (features,) if features.ndim == 2 else features.unbind(0)
        logits = self._part_logits(features, parts).view(len(self.plans), self.classes, len(rows))
        logits = logits.index_select(0, self.row_of_slot) if self.reordered else logits
        if hook is not None:
            self._call_hook(hook, rows, logits, batch)
        loss, gradient = self._losses(logits, batch, rows, parts)
        self.steps_done.add_(1)
        self._freeze_failed(loss, gradient)
        gradient = gradient.index_select(0, self.slot_of_row) if self.reordered else gradient
        if self.equal_parts:
            flat = gradient.view(len(parts), -1, len(rows))
            torch.bmm(flat, features, out=self.weight_gradient.view(len(parts), -1, features.shape[-1]))
        else:
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

        labels = batch.codes.index_select(0, self._index(self.table_of_slot)).mT
        slots = self.slot_of_plan
        hook(rows, logits.mT.index_select(0, slots), labels.index_select(0, slots), modified)

    def freeze(self, heads: Sequence[int]) -> None:
        """Freeze some heads, by their numbers."""
        self.active.index_fill_(0, self.slot_of_plan.index_select(0, self._index(heads)), False)
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
            loss_fn = group.loss_fn
            scores = partial(self._training_logits, group) if "scores" in loss_fn.needs else None
            if not list_revisions:
                loss_fn.revise(scores)
                continue
            found = loss_fn.end_epoch(scores)
            shared = loss_fn if isinstance(loss_fn, MultiHead) and len(group.plans) > 1 else None
            for number, plan in enumerate(group.plans):
                revisions[plan] = found if shared is None else shared.revisions_of((number,))
        return revisions

    def _tensors(self) -> dict[str, Tensor]:
        return {"weight": self.weight, "bias": self.bias, "active": self.active, "failed_epoch": self.failed_epoch}

    def state_dict(self) -> dict[str, Any]:
        """Return everything that decides how training continues: the tensors themselves, not copies."""
        return {
            **self._tensors(),
            "optimizer": self.optimizer.state(),
            "losses": [group.loss_fn.state_dict() for group in self.groups],
            "random": torch.get_rng_state(),
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the ``state_dict`` of an engine with the same plans; training ends with the same bytes."""
        for name, values in self._tensors().items():
            values.copy_(state[name].view_as(values))
        for name, values in self.optimizer.state().items():
            values.copy_(state["optimizer"][name])
        for group, stored in zip(self.groups, state["losses"], strict=True):
            group.loss_fn.load_state_dict(stored)
        torch.set_rng_state(state["random"].cpu())
        self._active_changed()


def _check(features: Tensor, plans: Sequence[HeadPlan]) -> None:
    if world_size() > 1:
        raise InputError("the linear engine trains in one process: start it without torchrun, or on one rank's data.")
    if features.ndim not in (2, 3) or features.shape[-2] != len(plans[0].labels) or not features.shape[-2]:
        raise InputError(
            f"features have shape {tuple(features.shape)}: it needs a row for each of {len(plans[0].labels):,} images "
            "of the labels, and at least one."
        )


def _check_memory(features: Tensor, rows: int, device: torch.device, dtype: torch.dtype) -> None:
    """Refuse heads, with their gradient and the moments of Adam, and copies of features that do not fit in memory."""
    needed = 4 * rows * (features.shape[-1] + 1) * dtype.itemsize
    if features.device != device or features.dtype != dtype:
        needed += features.numel() * dtype.itemsize
    if needed > (free := free_memory(device)):
        raise InputError(
            f"{rows:,} rows of weights × {features.shape[-1]:,} features and their optimizer state take "
            f"{format_bytes(needed)}, and {format_bytes(free)} are free. Train fewer heads at a time."
        )
