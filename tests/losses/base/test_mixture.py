"""Mixtures: the kernel of the linear engine, in closed form, costs what the loss costs under autograd."""

from __future__ import annotations

import pytest
import torch
from tests.losses.batches import prepared, some_batches
from tests.losses.reference import Batch, reference_of
from torch import Tensor

from labelgap.losses import Loss, MultiHead, methods
from labelgap.losses.base.mixture import Mixture, entropy_cost, mixture_cost
from labelgap.losses.base.terms import states

MIXTURES = [
    *("iu", "bce", "iun", "bce-ls", "an", "an-ls", "ls", "wan", "dw", "n-ls", "l1r", "l2r", "em", "entmin", "epr"),
    *("role", "ll-r", "ll-ct", "ll-r-abs", "ll-ct-abs"),
]


def mixture_of(loss_fn: Loss, classes: int) -> Mixture | None:
    assert isinstance(loss_fn, MultiHead)
    return loss_fn.mixture(classes)


def by_autograd(loss_fn: Loss, batch: Batch, logits: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """The loss of the batch, its derivative in the logits, and those in what the loss learns."""
    labels, index, features = map(torch.from_numpy, (batch.labels, batch.index, batch.features))
    leaf = logits.clone().requires_grad_()
    cost = loss_fn(leaf, labels, index=index, features=features)
    names, learned = zip(*loss_fn.named_parameters(), strict=True) if list(loss_fn.parameters()) else ((), ())
    slope, *gradients = torch.autograd.grad(cost.sum(), [leaf, *learned])
    return cost.detach(), slope, dict(zip(names, gradients, strict=True))


def entry_weights(mixture: Mixture, labels: Tensor, modified: Tensor | None) -> tuple[Tensor, ...]:
    """The three weights of every entry, looked up by its state."""
    weights = mixture.weights()
    state = torch.where(states(labels).present, 2, torch.where(states(labels).absent, 1, 0))
    if modified is not None:
        state = torch.where(modified, 3, state)
    heads = weights.shape[:-2]
    table = weights.reshape(*heads, 1, 4, 3).expand(*heads, labels.shape[-2], 4, 3)
    shape = torch.broadcast_shapes(heads, state.shape[:-2])  # type: ignore[no-untyped-call]
    table, state = table.expand(*shape, *table.shape[-3:]), state.expand(*shape, *labels.shape[-2:])
    return tuple(table[..., kind].gather(-1, state) for kind in range(3))


def by_kernel(
    loss_fn: Loss, mixture: Mixture, logits: Tensor, batch: Batch
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """The same from the mixture alone, with "mean"."""
    labels, index = torch.from_numpy(batch.labels), torch.from_numpy(batch.index)
    modified = None if mixture.modified is None else loss_fn.modified(logits, labels)
    as_present, as_absent, as_entropy = entry_weights(mixture, labels, modified)
    estimate = mixture.label_estimate
    views = [logits] if estimate is None else [logits, estimate.logits.detach().index_select(-2, index)]
    size, losses, slopes = logits.shape[-2] * logits.shape[-1], [], []
    for number, view in enumerate(views):
        probability, taught = torch.sigmoid(view), as_present
        if estimate is not None:
            taught = as_present + estimate.weight * torch.sigmoid(views[1 - number])
        cost, slope, absent = mixture_cost(view, probability, as_present + as_absent, -taught)
        extra, extra_slope = entropy_cost(view, as_entropy, probability, absent)
        losses.append((cost + extra).sum(dim=(-2, -1)) / size)
        slopes.append((slope + extra_slope) / size)
        if mixture.expected_positives is not None:
            gap = (probability.sum(dim=(-2, -1)) / logits.shape[-2] - mixture.expected_positives) / logits.shape[-1]
            losses[-1] = losses[-1] + mixture.expected_weight * gap**2
            steep = 2 * mixture.expected_weight * gap[..., None, None]
            slopes[-1] = slopes[-1] + steep * probability * (1 - probability) / size
    learned = {}
    if estimate is not None:
        learned["phi"] = torch.zeros_like(estimate.logits).index_copy_(-2, index, slopes[1])
    return torch.stack(losses).sum(dim=0), slopes[0], learned


@pytest.mark.parametrize("name", MIXTURES)
def test_a_mixture_costs_what_the_method_costs(name: str) -> None:
    for options in reference_of(name).options:
        for batch in some_batches():
            made = prepared(name, batch, options)
            mixture = mixture_of(made, batch.labels.shape[1])
            if options.get("eps"):
                assert mixture is None
                continue
            assert mixture is not None
            logits = torch.from_numpy(batch.logits)
            found, expected = by_kernel(made, mixture, logits, batch), by_autograd(made, batch, logits)
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    "name", sorted({"bce-ls", "wan", "n-ls", "em", "entmin", "epr", "ll-r", "dw", "an-ls", "role"})
)
def test_every_head_has_weights_of_its_own(name: str) -> None:
    heads = {option: torch.tensor(values) for option, values in reference_of(name).heads.items() if option != "eps"}
    for batch in some_batches():
        made = prepared(name, batch, heads, heads=(3,))
        mixture = mixture_of(made, batch.labels.shape[1])
        assert mixture is not None
        logits = torch.from_numpy(batch.logits) * torch.tensor([1.0, 0.5, -1.0])[:, None, None]
        found, expected = by_kernel(made, mixture, logits, batch), by_autograd(made, batch, logits)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


def test_only_the_methods_that_are_mixtures_say_so() -> None:
    batch = next(some_batches())
    plain = {name: prepared(name, batch, reference_of(name).plain) for name in methods()}
    assert [name for name in plain if mixture_of(plain[name], 20) is not None] == [
        name for name in plain if name in MIXTURES
    ]
