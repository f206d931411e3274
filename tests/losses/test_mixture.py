"""Mixtures of costs, and slopes in closed form: the same numbers as the objective's own cost under autograd."""

from __future__ import annotations

import pytest
import torch
from tests.losses.batches import prepared, some_batches
from tests.losses.reference import Batch, reference_of
from torch import Tensor

from labelgap.losses import Loss, loss, methods
from labelgap.losses.large_loss import top_k_mask
from labelgap.losses.mixture import Mixture, entropy_cost, entry_weights, mixture_cost
from labelgap.losses.terms import states

BLENDS = [
    *("iu", "bce", "iun", "bce-ls", "an", "an-ls", "ls", "wan", "dw", "n-ls", "l1r", "l2r", "em", "entmin", "epr"),
    *("role", "ll-r", "ll-ct", "ll-r-abs", "ll-ct-abs"),
]


def by_autograd(made: Loss, batch: Batch, logits: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """The loss of the batch, its derivative in the logits, and those in what the objective learns."""
    labels, index, features = map(torch.from_numpy, (batch.labels, batch.index, batch.features))
    leaf = logits.clone().requires_grad_()
    loss = made(leaf, labels, index=index, features=features)
    names, learned = zip(*made.named_parameters(), strict=True) if list(made.parameters()) else ((), ())
    slope, *gradients = torch.autograd.grad(loss.sum(), [leaf, *learned])
    made.after_step()
    return loss.detach(), slope, dict(zip(names, gradients, strict=True))


def by_blend(made: Loss, mixture: Mixture, logits: Tensor, batch: Batch) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """The same from the mixture alone, with "mean"."""
    labels, index = torch.from_numpy(batch.labels), torch.from_numpy(batch.index)
    marked = made.modified(logits, labels) if mixture.marks else None
    as_present, as_absent, undecided = entry_weights(mixture.shares, labels, marked)
    views = (
        [logits]
        if mixture.label_estimate is None
        else [logits, mixture.label_estimate.estimate.detach().index_select(-2, index)]
    )
    size, losses, slopes = logits.shape[-2] * logits.shape[-1], [], []
    for number, view in enumerate(views):
        chance, taught = torch.sigmoid(view), as_present
        if mixture.label_estimate is not None:
            taught = as_present + mixture.label_estimate.share * torch.sigmoid(views[1 - number])
        cost, slope, away = mixture_cost(view, chance, as_present + as_absent, -taught)
        extra, bend = entropy_cost(view, undecided, chance, away)
        losses.append((cost + extra).sum(dim=(-2, -1)) / size)
        slopes.append((slope + bend) / size)
        if mixture.expected is not None:
            gap = (chance.sum(dim=(-2, -1)) / logits.shape[-2] - mixture.expected) / logits.shape[-1]
            losses[-1] = losses[-1] + mixture.expected_weight * gap**2
            steep = 2 * mixture.expected_weight * gap[..., None, None]
            slopes[-1] = slopes[-1] + steep * chance * (1 - chance) / size
    learned = {}
    if mixture.label_estimate is not None:
        learned["phi"] = torch.zeros_like(mixture.label_estimate.estimate).index_copy_(-2, index, slopes[1])
    return torch.stack(losses).sum(dim=0), slopes[0], learned


@pytest.mark.parametrize("name", BLENDS)
def test_a_mixture_costs_what_the_method_costs(name: str) -> None:
    for options in reference_of(name).options:
        for batch in some_batches():
            made = prepared(name, batch, options)
            mixture = made.mixture(batch.labels.shape[1])
            if options.get("eps"):
                assert mixture is None
                continue
            assert mixture is not None
            logits = torch.from_numpy(batch.logits)
            found, expected = by_blend(made, mixture, logits, batch), by_autograd(made, batch, logits)
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    "name", sorted({"bce-ls", "wan", "n-ls", "em", "entmin", "epr", "ll-r", "dw", "an-ls", "role"})
)
def test_every_head_has_shares_of_its_own(name: str) -> None:
    heads = {option: torch.tensor(values) for option, values in reference_of(name).heads.items() if option != "eps"}
    for batch in some_batches():
        made = prepared(name, batch, heads, heads=(3,))
        mixture = made.mixture(batch.labels.shape[1])
        assert mixture is not None
        logits = torch.from_numpy(batch.logits) * torch.tensor([1.0, 0.5, -1.0])[:, None, None]
        found, expected = by_blend(made, mixture, logits, batch), by_autograd(made, batch, logits)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


def test_only_the_methods_that_are_mixtures_say_so() -> None:
    batch = next(some_batches())
    plain = {name: prepared(name, batch, reference_of(name).plain) for name in methods()}
    assert [name for name in plain if plain[name].mixture(20) is not None] == [name for name in plain if name in BLENDS]


@pytest.mark.parametrize("base", ["unknown", "all"])
def test_a_quota_of_the_largest_logits_is_what_is_modified(base: str) -> None:
    for batch in some_batches():
        logits, labels = torch.from_numpy(batch.logits), torch.from_numpy(batch.labels)
        made = prepared("ll-r", batch, {"delta_rel": 7.5, "base": base})
        modified_count = made.modified_count(labels)
        assert modified_count is not None
        assert torch.equal(top_k_mask(logits, states(labels).unknown, modified_count), made.modified(logits, labels))
    assert loss("an").modified_count(labels) is None


@pytest.mark.parametrize("name", methods())
def test_slopes_are_those_of_autograd(name: str) -> None:
    for options in reference_of(name).options:
        for batch in some_batches():
            torch.manual_seed(0)
            made = prepared(name, batch, options)
            if getattr(made, "reduction", "mean") == "none":
                continue
            logits = torch.from_numpy(batch.logits)
            expected, slope, learned = by_autograd(made, batch, logits)
            labels, index, features = map(torch.from_numpy, (batch.labels, batch.index, batch.features))
            torch.manual_seed(0)
            made = prepared(name, batch, options)
            found = made.slopes(logits, labels, index, features)
            torch.testing.assert_close(found, (expected, slope), rtol=1e-9, atol=1e-11)
            for key, parameter in made.named_parameters():
                torch.testing.assert_close(parameter.grad, learned[key], rtol=1e-9, atol=1e-11)
