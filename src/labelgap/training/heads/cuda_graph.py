"""Steps replayed from a CUDA graph: the host starts each with one call, and waits for none.

Everything that changes from step to step lies on the device: the order of the images, how far it has been gone through,
the epoch, how many steps Adam has taken, which heads are still in. So one capture serves all full batches of a
training. The first steps are taken without it, as a capture needs everything to have run before; the smaller last batch
of an epoch always is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from labelgap.training.heads.engine import LinearEngine

__all__ = ["CudaGraphRunner"]

WARMUP_STEPS = 3


class CudaGraphRunner:
    """The steps of an engine on a GPU.

    Args:
        engine: whose steps they are.
    """

    def __init__(self, engine: LinearEngine) -> None:
        self.engine, device = engine, engine.device
        self.graph: torch.cuda.CUDAGraph | None = None
        self.order = torch.zeros(len(engine.features), dtype=torch.int64, device=device)
        self.span = torch.arange(engine.batch_size, device=device)
        self.cursor = torch.zeros((), dtype=torch.int64, device=device)
        self.total = torch.zeros(len(engine.plans), dtype=torch.float64, device=device)
        self.warmed = 0
        if engine.tables.dense is None:
            engine.graph_disabled = "the labels are too many to lie on the device"

    def epoch(self, order: Tensor) -> Tensor:
        """Go through all images; return the summed losses of every head, ``(M,)`` in the order of the stack."""
        self.order.copy_(order)
        self.cursor.zero_()
        self.total.zero_()
        for _ in range(len(order) // self.engine.batch_size):
            self._next()
        rest = len(order) % self.engine.batch_size
        if rest:
            self._take(self.order[len(order) - rest :])
        return self.total.clone()

    def _next(self) -> None:
        """Take the next full batch."""
        if self.graph is None and self.engine.graph_disabled is None:
            if self.warmed < WARMUP_STEPS:
                self._warm_up()
                return
            self._capture()
        if self.graph is not None:
            self.graph.replay()
        else:
            self._full_batch()

    def _full_batch(self) -> None:
        self._take(self.order.index_select(0, self.cursor + self.span))

    def _take(self, rows: Tensor) -> None:
        """Take a step with some rows and go on behind them."""
        (batch,) = self.engine.labelled(rows[None]).batches()
        loss = self.engine.step(rows, batch)
        self.total.add_(loss.double() * len(rows))
        self.cursor.add_(len(rows))

    def _warm_up(self) -> None:
        """Take a step on the side, as a capture wants it."""
        side = torch.cuda.Stream(self.engine.device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(self.engine.device))
        with torch.cuda.stream(side):
            self._full_batch()
        torch.cuda.current_stream(self.engine.device).wait_stream(side)
        self.warmed += 1

    def _capture(self) -> None:
        """Capture a step without taking it; where that cannot be done say why, and go on without."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self.engine.device)
        try:
            with torch.cuda.graph(graph):
                self._full_batch()
        except RuntimeError as error:
            self.engine.graph_disabled = str(error).splitlines()[0]
            return
        self.graph = graph
