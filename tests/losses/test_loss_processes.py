"""Two real processes, each with a shard of the batch, learn what one process learns from the whole of it."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from tests.core.process_pair import run_pair
from tests.losses.batches import batch_of, prepared, some_labels
from tests.losses.reference import Batch, references
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from labelgap.core.distributed import single_process
from labelgap.losses import method_options

ROWS, CLASSES, FEATURES = 8, 10, 6
DIVISIONS = {"unequal": (5, 3), "first empty": (0, 8)}


class Case(NamedTuple):
    """A method, its options, a batch, and how it is divided."""

    name: str
    options: dict[str, Any]
    batch: Batch
    divisions: Collection[str]


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
            divisions = DIVISIONS if number == 0 else [list(DIVISIONS)[number % 2]]
            yield Case(name, options, batch_of(labels, np.zeros((ROWS, CLASSES)), epoch=5), divisions)


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
    """In each of two processes: compare, and write how far loss, gradients and what is remembered are apart."""
    every = list(cases())
    with single_process():
        wanted = [outcome(case, 0, ROWS, alone=True) for case in every]
    found = {}
    for case, whole in zip(every, wanted, strict=True):
        for division in case.divisions:
            counts = DIVISIONS[division]
            first = sum(counts[: dist.get_rank()])
            shared = outcome(case, first, counts[dist.get_rank()], alone=False)
            assert len(shared) == len(whole)
            apart = torch.stack([(a - b).abs().max() for a, b in zip(shared, whole, strict=True)]).max()
            apart = apart.nan_to_num(nan=torch.inf)
            dist.all_reduce(apart, op=dist.ReduceOp.MAX)
            found[f"{case.name} {case.options}, {division} shards"] = apart.item()
    if dist.get_rank() == 0:
        (folder / "apart.json").write_text(json.dumps(found))


def test_two_processes_agree_with_one(tmp_path: Path) -> None:
    run_pair(compare, tmp_path)
    found = json.loads((tmp_path / "apart.json").read_text())
    assert {story.split()[0] for story in found} == set(references())
    apart = {story: distance for story, distance in found.items() if not distance < 1e-9}
    assert not apart, apart
