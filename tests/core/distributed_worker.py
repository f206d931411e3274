"""What two real processes make of the shards of one batch, for ``test_core_distributed.py``.

For every way to cut a batch in two, each process passes its shard through a linear model and several losses over the
whole batch, and writes down what came out.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from labelgap.core.distributed import all_max, all_sum, gather_rows, is_main_process, rank, world_size

SHARDS = {"equal": (3, 3), "unequal": (1, 4), "first empty": (0, 4), "last empty": (5, 0)}


def batch(count: int) -> tuple[Tensor, Tensor]:
    """The features (count, 4) of a whole batch, and the weights (3, 4) of a linear model."""
    random = torch.Generator().manual_seed(count)
    features, weights = (torch.randn(size, 4, generator=random, dtype=torch.float64) for size in (count, 3))
    return features, weights


def nested_sums(logits: Tensor, count: int) -> Tensor:
    mean = all_sum(logits.sum(0)) / count
    spread = all_sum((logits - mean).pow(4).sum(0)) / count
    return all_sum((logits * spread.sqrt() - mean).sigmoid().sum()).square()


def largest_of_all(logits: Tensor, count: int) -> Tensor:
    return gather_rows(logits).flatten().topk(4).values.exp().sum()


def gathered_in_the_middle(logits: Tensor, count: int) -> Tensor:
    heads = torch.stack([logits, logits.square()])
    return (gather_rows(heads, dim=-2).softmax(dim=-2) * torch.arange(1.0, count + 1)[:, None]).square().sum()


LOSSES: dict[str, Callable[[Tensor, int], Tensor]] = {
    loss.__name__: loss for loss in (nested_sums, largest_of_all, gathered_in_the_middle)
}


def gradients(shards: tuple[int, int]) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
    """Each loss as this process sees it, the gradient of the parameters as DistributedDataParallel would take it (the
    mean over the processes), and the gradient of its own logits."""
    features, weights = batch(sum(shards))
    own = features[: shards[0]] if is_main_process() else features[shards[0] :]
    results = {}
    for name, loss in LOSSES.items():
        parameters = weights.clone().requires_grad_()
        logits = own @ parameters.T
        value = loss(logits, sum(shards))
        gradient, own_gradient = torch.autograd.grad(value, (parameters, logits))
        dist.all_reduce(gradient)
        results[name] = (value.detach(), gradient / world_size(), own_gradient)
    return results


def values() -> dict[str, object]:
    """What goes in and comes out of every function, without gradients."""
    own = torch.arange(6).reshape(2, 3)[: 2 - rank()] + 10 * rank()
    found: dict[str, object] = {"rank": rank(), "world_size": world_size(), "is_main": is_main_process()}
    for name in ("int8", "int64", "float16", "bfloat16", "float32", "float64", "bool"):
        sent = own.to(getattr(torch, name))
        gathered = gather_rows(sent)
        found[name] = gathered
        assert gathered.dtype == sent.dtype
    found["transposed"] = gather_rows(own.T, dim=1)
    found["both empty"] = gather_rows(own[:0])
    kept = torch.tensor([1.0, 2.0 * rank()])
    found["sum"], found["max"] = all_sum(kept), all_max(torch.tensor([1.0, -5.0 * rank()], requires_grad=True))
    found["kept"] = kept
    found["expanded"] = all_sum(torch.ones(1).expand(3))
    return found


def main(folder: Path) -> None:
    """Write what this process found to ``RANK.pt``."""
    found = {"values": values(), "gradients": {name: gradients(shards) for name, shards in SHARDS.items()}}
    torch.save(found, folder / f"{rank()}.pt")
