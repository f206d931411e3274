from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.core.process_pair import run_pair
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


def write_findings(folder: Path) -> None:
    found = {"values": values(), "gradients": {name: gradients(shards) for name, shards in SHARDS.items()}}
    torch.save(found, folder / f"{rank()}.pt")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("found")
    run_pair(write_findings, folder)
    return [torch.load(folder / f"{number}.pt", weights_only=True) for number in range(2)]


def whole_batch(name: str, x: Tensor) -> Tensor:
    count = len(x)
    if name == "nested_sums":
        mean = x.mean(0)
        spread = (x - mean).pow(4).mean(0)
        return (x * spread.sqrt() - mean).sigmoid().sum().square()
    if name == "largest_of_all":
        return x.flatten().sort(descending=True).values[:4].exp().sum()
    places = torch.arange(1.0, count + 1)[:, None]
    return sum(((y.exp() / y.exp().sum(0)) * places).square().sum() for y in (x, x * x))  # type: ignore[return-value]


@pytest.mark.parametrize("shards", SHARDS)
@pytest.mark.parametrize("loss", LOSSES)
def test_every_process_has_the_loss_and_mean_gradient_of_one(
    found: list[dict[str, Any]], shards: str, loss: str
) -> None:
    features, weights = batch(sum(SHARDS[shards]))
    weights.requires_grad_()
    logits = features @ weights.T
    expected = whole_batch(loss, logits)
    on_weights, on_logits = torch.autograd.grad(expected, (weights, logits))
    own_shares = torch.split(on_logits, list(SHARDS[shards]))
    for process, share in zip(found, own_shares, strict=True):
        value, mean_gradient, own_gradient = process["gradients"][shards][loss]
        assert torch.allclose(value, expected, rtol=1e-12, atol=1e-12)
        assert torch.allclose(mean_gradient, on_weights, rtol=1e-10, atol=1e-10)
        assert own_gradient.shape == share.shape and torch.allclose(own_gradient, 2 * share, rtol=1e-10, atol=1e-10)


def test_values_are_gathered_in_the_order_of_the_processes_and_summed_over_all(found: list[dict[str, Any]]) -> None:
    rows = torch.tensor([[0, 1, 2], [3, 4, 5], [10, 11, 12]])
    for number, process in enumerate(found):
        values = process["values"]
        assert (values["rank"], values["world_size"], values["is_main"]) == (number, 2, number == 0)
        for dtype in ("int8", "int64", "float16", "bfloat16", "float32", "float64", "bool"):
            assert torch.equal(values[dtype], rows.to(getattr(torch, dtype)))
        assert torch.equal(values["transposed"], rows.T) and values["both empty"].shape == (0, 3)
        assert values["sum"].tolist() == [2.0, 2.0] and values["expanded"].tolist() == [2.0, 2.0, 2.0]
        assert values["max"].tolist() == [1.0, 0.0] and not values["max"].requires_grad
        assert values["kept"].tolist() == [1.0, 2.0 * number], "the input is left alone"
