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
    if name == "plain_sum":
        return x.exp().sum() / count
    if name == "square_of_a_sum":
        return (x.sigmoid().mean(0) - 1.5).square().mean()
    if name == "nested_sums":
        mean = x.mean(0)
        spread = (x - mean).pow(4).mean(0)
        return (x * spread.sqrt() - mean).sigmoid().sum().square()
    if name == "largest_of_all":
        return x.flatten().sort(descending=True).values[:4].exp().sum()
    assert name == "gathered_in_the_middle"
    places = torch.arange(1.0, count + 1)[:, None]
    return sum(((y.exp() / y.exp().sum(0)) * places).square().sum() for y in (x, x * x))  # type: ignore[return-value]


@pytest.mark.parametrize("shards", distributed_worker.SHARDS)
@pytest.mark.parametrize("loss", distributed_worker.LOSSES)
def test_every_process_returns_the_loss_of_the_whole_batch(found: list[dict[str, Any]], shards: str, loss: str) -> None:
    features, weights = distributed_worker.batch(sum(distributed_worker.SHARDS[shards]))
    expected = whole_batch(loss, features @ weights.T)
    for process in found:
        assert torch.allclose(process["gradients"][shards][loss][0], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shards", distributed_worker.SHARDS)
@pytest.mark.parametrize("loss", distributed_worker.LOSSES)
def test_the_mean_gradient_of_two_processes_is_that_of_one(found: list[dict[str, Any]], shards: str, loss: str) -> None:
    features, weights = distributed_worker.batch(sum(distributed_worker.SHARDS[shards]))
    weights.requires_grad_()
    logits = features @ weights.T
    on_weights, on_logits = torch.autograd.grad(whole_batch(loss, logits), (weights, logits))
    own_shares = torch.split(on_logits, list(distributed_worker.SHARDS[shards]))
    for process, share in zip(found, own_shares, strict=True):
        _, mean_gradient, own_gradient = process["gradients"][shards][loss]
        assert torch.allclose(mean_gradient, on_weights, rtol=1e-10, atol=1e-10)
        assert own_gradient.shape == share.shape
        assert torch.allclose(own_gradient, 2 * share, rtol=1e-10, atol=1e-10)


def test_processes_know_their_number_and_the_first_one_speaks(found: list[dict[str, Any]]) -> None:
    known = [(process["values"]["rank"], process["values"]["world_size"]) for process in found]
    assert known == [(0, 2), (1, 2)]
    assert [process["values"]["is_main"] for process in found] == [True, False]


@pytest.mark.parametrize("dtype", ["int8", "int64", "float16", "bfloat16", "float32", "float64", "bool"])
def test_rows_are_gathered_in_the_order_of_the_processes(found: list[dict[str, Any]], dtype: str) -> None:
    expected = torch.tensor([[0, 1, 2], [3, 4, 5], [10, 11, 12]]).to(getattr(torch, dtype))
    for process in found:
        assert torch.equal(process["values"][dtype], expected)


def test_columns_are_gathered_too_and_nothing_from_nothing(found: list[dict[str, Any]]) -> None:
    for process in found:
        assert process["values"]["transposed"].tolist() == [[0, 3, 10], [1, 4, 11], [2, 5, 12]]
        assert process["values"]["both empty"].shape == (0, 3)


def test_sums_and_maxima_are_over_all_processes_and_leave_their_input_alone(found: list[dict[str, Any]]) -> None:
    for number, process in enumerate(found):
        assert process["values"]["sum"].tolist() == [2.0, 2.0]
        assert process["values"]["expanded"].tolist() == [2.0, 2.0, 2.0]
        assert process["values"]["max"].tolist() == [1.0, 0.0]
        assert not process["values"]["max"].requires_grad
        assert process["values"]["kept"].tolist() == [1.0, 2.0 * number]


def test_alone_everything_is_the_identity() -> None:
    values = torch.randn(3, 2, requires_grad=True)
    assert (world_size(), rank(), is_main_process()) == (1, 0, True)
    assert all_sum(values) is values
    assert gather_rows(values) is values
    assert torch.equal(all_max(values), values)
    assert not all_max(values).requires_grad
