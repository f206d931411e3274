from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.core import distributed_worker
from tests.core.process_pair import run_pair
from torch import Tensor

from labelgap.core.distributed import all_max, all_sum, gather_rows, is_main_process, rank, world_size


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two real processes found."""
    folder = tmp_path_factory.mktemp("found")
    run_pair(distributed_worker.main, folder)
    return [torch.load(folder / f"{number}.pt", weights_only=True) for number in range(2)]


def whole_batch(name: str, x: Tensor) -> Tensor:
    """The losses of the script on a whole batch of logits, in plain torch."""
    count = len(x)
    if name == "nested_sums":
        mean = x.mean(0)
        spread = (x - mean).pow(4).mean(0)
        return (x * spread.sqrt() - mean).sigmoid().sum().square()
    if name == "largest_of_all":
        return x.flatten().sort(descending=True).values[:4].exp().sum()
    places = torch.arange(1.0, count + 1)[:, None]
    return sum(((y.exp() / y.exp().sum(0)) * places).square().sum() for y in (x, x * x))  # type: ignore[return-value]


@pytest.mark.parametrize("shards", distributed_worker.SHARDS)
@pytest.mark.parametrize("loss", distributed_worker.LOSSES)
def test_every_process_has_the_loss_of_the_whole_batch_and_the_mean_gradient_is_that_of_one(
    found: list[dict[str, Any]], shards: str, loss: str
) -> None:
    features, weights = distributed_worker.batch(sum(distributed_worker.SHARDS[shards]))
    weights.requires_grad_()
    logits = features @ weights.T
    expected = whole_batch(loss, logits)
    on_weights, on_logits = torch.autograd.grad(expected, (weights, logits))
    own_shares = torch.split(on_logits, list(distributed_worker.SHARDS[shards]))
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


def test_alone_everything_is_the_identity() -> None:
    values = torch.randn(3, 2, requires_grad=True)
    assert (world_size(), rank(), is_main_process()) == (1, 0, True)
    assert all_sum(values) is values is gather_rows(values)
    assert torch.equal(all_max(values), values) and not all_max(values).requires_grad
