"""For two processes: every method alone on a whole batch, then by two processes on its shards.

Writes a JSON file of how far loss, parameter gradients and what is remembered are apart, for each method, options and
division.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from tests.losses.batches import batch_of, prepared, some_labels
from tests.losses.reference import Batch, references
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from labelgap.core.distributed import single_process
from labelgap.losses import method_options

ROWS, CLASSES, FEATURES = 8, 10, 6
DIVISIONS = {"unequal": (5, 3), "first empty": (0, 8)}


class Case(NamedTuple):
    """A method, its options and a batch."""

    name: str
    options: dict[str, Any]
    batch: Batch


def cases() -> Iterator[Case]:
    """Every method with every set of options its reference names, and with the sum where there is one."""
    random = np.random.default_rng(0)
    for name, known in references().items():
        sets = [dict(known.options[0]), dict(known.options[-1])]
        if "reduction" in method_options(name):
            sets.append({**known.plain, "reduction": "sum"})
        if name == "role":
            sets.append({**known.plain, "storage": "compact", "kept_classes": 3})
        for number, options in enumerate(sets):
            labels = some_labels("partial" if number % 2 == 0 else "single", (ROWS, CLASSES), random)
            yield Case(name, options, batch_of(labels, np.zeros((ROWS, CLASSES)), epoch=5))


def outcome(case: Case, first: int, count: int, *, alone: bool) -> list[Tensor]:
    """Loss and averaged gradients after these rows went through a small network, and what was remembered of them."""
    torch.manual_seed(0)
    network: nn.Module = nn.Linear(FEATURES, CLASSES, dtype=torch.float64)
    loss_fn = prepared(case.name, case.batch, case.options)
    parameters = list(network.parameters())
    if not alone:
        network = DistributedDataParallel(network)
    rows = slice(first, first + count)
    features = torch.from_numpy(3 * case.batch.features[rows])
    labels, index = torch.from_numpy(case.batch.labels[rows]), torch.from_numpy(case.batch.index[rows])
    loss = loss_fn(network(features), labels, index=index, features=features)
    with ThreadPoolExecutor(1) as other_thread:  # where the backward passes of a GPU run
        other_thread.submit(torch.autograd.backward, loss).result()
    own = [torch.zeros_like(p) if p.grad is None else p.grad for p in loss_fn.parameters()]
    for gradient in [] if alone else own:
        dist.all_reduce(gradient)
        gradient /= dist.get_world_size()
    if case.options.get("storage") == "compact":
        next(loss_fn.parameters()).data.fill_(0.3)  # as an optimizer's step does
    loss_fn.after_step()
    remembered = [value.double().nan_to_num() for value in loss_fn.buffers()]
    return [loss.detach(), *(p.grad for p in parameters if p.grad is not None), *own, *remembered]


def compare(folder: Path) -> None:
    """Compare in each of two processes, and write what was found."""
    every = list(cases())
    with single_process():
        wanted = [outcome(case, 0, ROWS, alone=True) for case in every]
    found = {}
    for case, whole in zip(every, wanted, strict=True):
        for division, counts in DIVISIONS.items():
            first = sum(counts[: dist.get_rank()])
            shared = outcome(case, first, counts[dist.get_rank()], alone=False)
            assert len(shared) == len(whole)
            apart = torch.stack([(a - b).abs().max() for a, b in zip(shared, whole, strict=True)]).max()
            apart = apart.nan_to_num(nan=torch.inf)
            dist.all_reduce(apart, op=dist.ReduceOp.MAX)
            found[f"{case.name} {case.options}, {division} shards"] = apart.item()
    if dist.get_rank() == 0:
        (folder / "apart.json").write_text(json.dumps(found))
