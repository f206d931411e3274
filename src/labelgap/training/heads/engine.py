r"""The linear engine: many linear heads on fixed features, trained at once.

The heads lie on top of each other, M · K rows of weights. One product gives the logits of a batch for all of them, the
objectives say how each head's loss changes with its logits, and a second product turns that into the gradient of all
weights:

.. math:: x = W f + b, \qquad g = \partial L / \partial x, \qquad \partial L / \partial W = g\,f^\top

Heads share the batches and nothing else. Each has its own labels, method, options, rate and optimiser state, and one
whose loss is no longer a number is left where it is while the others go on. Trained together they end where each would
have ended alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelgap.core.errors import InputError
from labelgap.core.seeds import numpy_generator
from labelgap.labels import Revisions
from labelgap.training.devices import widest_float
from labelgap.training.heads.cuda_graph import CudaGraphRunner
from labelgap.training.heads.mixture_kernel import BatchWeights, MixtureKernel, PlacedGroup
from labelgap.training.heads.optimizers import StackedParameter, updates
from labelgap.training.heads.plans import HeadPlan
from labelgap.training.heads.stack import HeadStack

__all__ = ["LinearEngine", "StepHook"]

StepHook = Callable[[Tensor, Tensor, Tensor, Callable[[], Tensor]], None]
"""Called before every step with rows ``(B,)``, logits ``(M, B, K)``, labels ``(M, B, K)``, and a function that gives
the mask ``(M, B, K)`` of what the methods modify."""

BLOCK_STEPS = 32
BLOCK_ENTRIES = 1 << 20
"""On a CPU, what labels mean is laid out for so many steps at once, or for so many entries of logits."""


class LinearEngine(HeadStack):
    """Linear heads in training.

    Args:
        features: ``(N, D)`` of the training images, a row for each row of the label tables.
        plans: the heads; the number of a head is its place in this list.
        epochs: how many will be trained; some methods plan with it.
        batch_size: images per step. The last batch of an epoch is smaller where N is no multiple of it.
        order_seed: of the order of the images, which all heads share.
        device: where everything is kept and computed.
        dtype: float32 or float64.
        optimiser: "adam" or "sgd".
        momentum: of "sgd".
        nesterov: of "sgd".
        weight_decay: times the weights, added to their gradient; not of what methods learn themselves.
        graphs: whether to capture the step in a CUDA graph, where the device has them.

    Attributes:
        plans: the heads.
        graph_runner: replays steps from a CUDA graph; None where there are none.

    The first weights are those that ``LinearHead`` draws with the plan's seed; torch's global generator stays as it
    is. Methods that draw in every step (`warp` with ranks that are sampled) do so from that generator, and only they
    draw something else in company than alone.
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
        weight_decay: float = 0.0,
        graphs: bool = True,
    ) -> None:
        super().__init__(
            features, plans, epochs=epochs, batch_size=batch_size, device=torch.device(device), dtype=dtype
        )
        self.order_seed = order_seed
        self.epochs = epochs
        self.mixing = MixtureKernel(
            self.members, self.table_of, classes=self.classes, epochs=epochs, dtype=dtype, device=self.device
        )
        self.others = [member for member in self.members if member.mixture is None]
        self.penalised = [member for member in self.members if "penalty" in member.group.loss_fn.needs]
        stacks = [self.stack_of(self.weight), self.stack_of(self.bias), *self._learned()]
        settings: dict[str, Any] = {"momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay}
        self.updates = updates(optimizer, stacks, self.active, **settings)
        self.gradient = torch.empty_like(self.weight)
        self.gradients = self.gradient.view(len(plans), -1), torch.empty_like(self.bias).view(len(plans), -1)
        self.clock = torch.ones((), dtype=torch.int64, device=self.device)
        self._graph_disabled = None if graphs else "graphs=False"
        if self.device.type != "cuda":
            self._graph_disabled = f"a device of type '{self.device.type}' has no CUDA graphs"
        self.graph_runner = self.make_graph_runner() if self._graph_disabled is None else None

    @property
    def graph_disabled(self) -> str | None:
        """Why steps are not replayed from a CUDA graph; None where they are."""
        return self._graph_disabled if self.graph_runner is None else self.graph_runner.disabled

    def make_graph_runner(self) -> CudaGraphRunner:
        """Return what trains an epoch without the host."""

        def step(rows: Tensor) -> Tensor:
            (batch,) = self.labelled(rows[None]).batches()
            return self.step(rows, batch)

        return CudaGraphRunner(
            step,
            images=len(self.features),
            batch_size=self.batch_size,
            heads=len(self.plans),
            device=self.device,
            disabled="the labels do not fit on the device" if self.tables.dense is None else None,
        )

    def _learned(self) -> list[StackedParameter]:
        """Return what objectives learn themselves, and remember in which order."""
        self.own: list[tuple[PlacedGroup, torch.nn.Parameter]] = []
        stacks = []
        for member in self.members:
            group = member.group
            for settings in group.loss_fn.parameter_groups(1.0):
                rates = [settings["lr"] * self.plans[plan].lr for plan in group.plans]
                for parameter in settings["params"]:
                    parameter.data = parameter.data.contiguous()  # fused kernels run over memory as it lies
                    self.own.append((member, parameter))
                    stacks.append(
                        StackedParameter(group.with_axis(parameter.detach()), rates, member.places, decays=False)
                    )
        return stacks

    @torch.no_grad()
    def train_epoch(self, epoch: int, hook: StepHook | None = None) -> NDArray[np.float64]:
        """Show every image to all heads once.

        Args:
            epoch: counted from 1; it decides the order of the images.
            hook: looks at every step before it is taken.

        Returns:
            ``(M,)``, the mean loss of every head; NaN for one whose loss was no number.
        """
        if not 1 <= epoch <= self.epochs:
            raise InputError(f"epoch {epoch}: {self.epochs} were planned, counted from 1.")
        self.clock.fill_(epoch)
        self.taken.zero_()
        for member in self.members:
            member.group.loss_fn.set_epoch(epoch)
        order = self.order(epoch).to(self.device)
        if self.graph_runner is not None and hook is None:
            total = self.graph_runner.run_epoch(order)
        else:
            losses = [(len(rows), self.step(rows, batch, hook)) for rows, batch in self._batches(order)]
            sizes = torch.tensor([size for size, _ in losses], dtype=widest_float(self.device), device=self.device)
            total = (torch.stack([loss for _, loss in losses], dim=1).to(sizes.dtype) * sizes).sum(dim=1)
        mean: NDArray[np.float64] = (total / len(order)).index_select(0, self.place_of_plan).cpu().numpy()
        return mean

    def order(self, epoch: int) -> Tensor:
        """Return the order in which an epoch shows the images, ``(N,)``."""
        return torch.from_numpy(numpy_generator(self.order_seed, "order", epoch).permutation(len(self.features)))

    def _batches(self, order: Tensor) -> Iterator[tuple[Tensor, BatchWeights]]:
        """Yield the rows of every batch and what their labels mean."""
        size = self.batch_size
        entries = size * self.classes * len(self.plans)
        steps = max(1, min(BLOCK_STEPS, BLOCK_ENTRIES // max(entries, 1))) if self.device.type == "cpu" else 1
        whole = len(order) // size * size
        for rows in (*torch.split(order[:whole], steps * size), order[whole:]):
            if len(rows):
                batches = rows.view(-1, min(size, len(rows)))
                yield from zip(batches.unbind(0), self.labelled(batches).batches(), strict=True)

    def labelled(self, rows: Tensor) -> BatchWeights:
        """Return what the labels of batches of rows ``(S, B)`` mean to the heads."""
        codes = self.tables.rows(rows.flatten())
        return self.mixing.block(codes.view(len(codes), *rows.shape, -1).permute(1, 0, 3, 2).contiguous())

    def step(self, rows: Tensor, batch: BatchWeights, hook: StepHook | None = None) -> Tensor:
        """Take one step with all heads; return their losses ``(M,)`` by place."""
        features = self.features.index_select(0, rows)
        logits = torch.addmm(self.bias[:, None], self.weight, features.t())
        logits = logits.view(len(self.plans), self.classes, len(rows))
        logits = logits.index_select(0, self.row_of_place) if self.moved else logits
        if hook is not None:
            self._show(hook, rows, logits, batch)
        loss, slope = self._losses(logits, batch, rows, features)
        self.taken.add_(1)
        self._watch(loss, slope)
        slope = slope.index_select(0, self.place_of_row) if self.moved else slope
        torch.mm(slope.view(-1, len(rows)), features, out=self.gradient)
        torch.sum(slope, 2, out=self.gradients[1])
        for member in self.penalised:
            self._add_penalty(member)
        self.updates.step([*self.gradients, *self._own_gradients()])
        self.mixing.forget(rows)
        for member in self.others:
            member.group.loss_fn.after_step()
        return loss

    def _losses(self, logits: Tensor, batch: BatchWeights, rows: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return all losses ``(M,)`` and their derivatives in the logits, ``(M, K, B)``."""
        if self.mixing.empty:
            loss, slope = logits.new_empty(len(logits)), torch.empty_like(logits)
        else:
            loss, slope = self.mixing.evaluate(logits, batch, rows)
        for member in self.others:
            labels = self.mixing.labels(member, batch)
            own_loss, own_slope = member.group.loss_and_gradient(member.here(logits), labels, rows, features)
            loss[member.part] = own_loss
            member.here(slope).copy_(own_slope)
        return loss, slope

    def _watch(self, loss: Tensor, slope: Tensor) -> None:
        """Leave out the heads whose loss is no number. On a CPU the host looks; elsewhere it does not wait."""
        if self.host_syncs and math.isfinite(float(loss.sum())):
            return
        good = loss.isfinite()
        if not self.host_syncs:
            self._leave_out(good)
        elif bool((~good & self.active).any()):
            self._leave_out(good)
            self._heads_changed()
        slope.masked_fill_(~self.active[:, None, None], 0.0)

    def _leave_out(self, good: Tensor) -> None:
        fails = ~good & self.active
        self.failed_in.copy_(torch.where(fails, self.clock, self.failed_in))
        self.failed_step.copy_(torch.where(fails, self.taken, self.failed_step))
        self.active.logical_and_(good)

    def _add_penalty(self, member: PlacedGroup) -> None:
        """Add the derivatives of what weights themselves cost (`l1r`, `l2r`)."""
        group, shape, rows = member.group, (len(self.plans), self.classes), self.row_of_place[member.part]
        weights = self.weight.view(*shape, -1), self.bias.view(shape)
        with torch.enable_grad():
            leaves = [values.index_select(0, rows).requires_grad_() for values in weights]
            price = torch.as_tensor(group.loss_fn.penalty([group.without_axis(leaf) for leaf in leaves]))
            slopes = torch.autograd.grad(price.sum(), leaves)
        for gradient, slope in zip(self.gradients, slopes, strict=True):
            gradient.index_add_(0, rows, slope.flatten(1))

    def _own_gradients(self) -> Iterator[Tensor]:
        """Yield the gradients of what objectives learn; 0 for heads that are out."""
        for member, parameter in self.own:
            assert parameter.grad is not None
            gradient = member.group.with_axis(parameter.grad).contiguous()
            if not self.all_active:
                out = ~self.active[member.part]
                gradient.masked_fill_(out.view(-1, *[1] * (gradient.ndim - 1)), 0.0)
            yield gradient

    def _show(self, hook: StepHook, rows: Tensor, logits: Tensor, batch: BatchWeights) -> None:
        """Let a hook look at a step, heads in the order of the plans."""

        def modified() -> Tensor:
            mask = torch.zeros(len(self.plans), len(rows), self.classes, dtype=torch.bool, device=self.device)
            for member in self.members:
                mask[member.part] = member.group.loss_fn.modified(
                    member.here(logits), self.mixing.labels(member, batch), rows
                )
            return mask.index_select(0, self.place_of_plan)

        labels = batch.codes.index_select(0, self.index(self.table_of)).mT
        here = self.place_of_plan
        hook(rows, logits.mT.index_select(0, here), labels.index_select(0, here), modified)

    def stop(self, heads: Sequence[int]) -> None:
        """Let some heads, by their numbers, stay as they are from now on."""
        self.active.index_fill_(0, self.place_of_plan.index_select(0, self.index(heads)), False)
        self._heads_changed()

    def _heads_changed(self) -> None:
        """Look which heads are still in, where the host may."""
        self.all_active = self.host_syncs and bool(self.active.all())
        self.updates.heads_changed()

    def end_epoch(self, *, tell: bool = True) -> list[Revisions]:
        """Let every method revise its labels (`em-apl`, `curriculum`).

        Args:
            tell: whether to write down what was revised; for many heads that takes its time.

        Returns:
            what each head's method revised in this epoch.
        """
        revisions = [Revisions() for _ in self.plans]
        for member in self.members:
            loss_fn = member.group.loss_fn
            scores = partial(self.scores_of, member) if "scores" in loss_fn.needs else None
            found = loss_fn.end_epoch(scores)
            for number, plan in enumerate(member.group.plans if tell else ()):
                several = member.group.several
                revisions[plan] = member.group.multi_head.revisions_of((number,)) if several else found
        return revisions

    def state_dict(self) -> dict[str, Any]:
        """Return everything that decides how training goes on: the tensors themselves, not copies."""
        return {
            **self.stack_state(),
            "updates": self.updates.state(),
            "losses": [member.group.loss_fn.state_dict() for member in self.members],
            "random": torch.get_rng_state(),
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what ``state_dict`` gave, of an engine of the same plans; it ends with the same bytes."""
        self.load_stack_state(state)
        for name, values in self.updates.state().items():
            values.copy_(state["updates"][name])
        for member, stored in zip(self.members, state["losses"], strict=True):
            member.group.loss_fn.load_state_dict(stored)
        torch.set_rng_state(state["random"].cpu())
        self._heads_changed()
