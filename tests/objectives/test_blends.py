"""Mixtures of costs, and slopes in closed form: the same numbers as the objective's own cost under autograd."""

from __future__ import annotations

import pytest
import torch
from tests.objectives.batches import prepared, some_batches
from tests.objectives.reference import Batch, reference_of
from torch import Tensor

from labelgap.objectives import Objective, methods, objective
from labelgap.objectives.blends import Blend, entry_shares, mixed, mixed_entropy
from labelgap.objectives.kim2022 import largest
from labelgap.objectives.terms import states

BLENDS = [
    *("iu", "bce", "iun", "bce-ls", "an", "an-ls", "ls", "wan", "dw", "n-ls", "l1r", "l2r", "em", "entmin", "epr"),
    *("role", "ll-r", "ll-ct", "ll-r-abs", "ll-ct-abs"),
]


def by_autograd(made: Objective, batch: Batch, logits: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """The loss of the batch, its derivative in the logits, and those in what the objective learns."""
    labels, index, features = map(torch.from_numpy, (batch.labels, batch.index, batch.features))
    leaf = logits.clone().requires_grad_()
    loss = made(leaf, labels, index=index, features=features)
    names, learned = zip(*made.named_parameters(), strict=True) if list(made.parameters()) else ((), ())
    slope, *gradients = torch.autograd.grad(loss.sum(), [leaf, *learned])
    made.after_step()
    return loss.detach(), slope, dict(zip(names, gradients, strict=True))


def by_blend(made: Objective, blend: Blend, logits: Tensor, batch: Batch) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """The same from the mixture alone, with "mean"."""
    labels, index = torch.from_numpy(batch.labels), torch.from_numpy(batch.index)
    marked = made.modified(logits, labels) if blend.marks else None
    as_present, as_absent, undecided = entry_shares(blend.shares, labels, marked)
    views = [logits] if blend.companion is None else [logits, blend.companion.estimate.detach().index_select(-2, index)]
    size, losses, slopes = logits.shape[-2] * logits.shape[-1], [], []
    for number, view in enumerate(views):
        chance, taught = torch.sigmoid(view), as_present
        if blend.companion is not None:
            taught = as_present + blend.companion.share * torch.sigmoid(views[1 - number])
        cost, slope, away = mixed(view, chance, as_present + as_absent, -taught)
        extra, bend = mixed_entropy(view, undecided, chance, away)
        losses.append((cost + extra).sum(dim=(-2, -1)) / size)
        slopes.append((slope + bend) / size)
        if blend.expected is not None:
            gap = (chance.sum(dim=(-2, -1)) / logits.shape[-2] - blend.expected) / logits.shape[-1]
            losses[-1] = losses[-1] + blend.expected_share * gap**2
            steep = 2 * blend.expected_share * gap[..., None, None]
            slopes[-1] = slopes[-1] + steep * chance * (1 - chance) / size
    learned = {}
    if blend.companion is not None:
        learned["phi"] = torch.zeros_like(blend.companion.estimate).index_copy_(-2, index, slopes[1])
    return torch.stack(losses).sum(dim=0), slopes[0], learned


@pytest.mark.parametrize("name", BLENDS)
def test_a_mixture_costs_what_the_method_costs(name: str) -> None:
    for options in reference_of(name).options:
        for batch in some_batches():
            made = prepared(name, batch, options)
            blend = made.blend(batch.labels.shape[1])
            if options.get("eps"):
                assert blend is None
                continue
            assert blend is not None
            logits = torch.from_numpy(batch.logits)
            found, expected = by_blend(made, blend, logits, batch), by_autograd(made, batch, logits)
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    "name", sorted({"bce-ls", "wan", "n-ls", "em", "entmin", "epr", "ll-r", "dw", "an-ls", "role"})
)
def test_every_head_has_shares_of_its_own(name: str) -> None:
    heads = {option: torch.tensor(values) for option, values in reference_of(name).heads.items() if option != "eps"}
    for batch in some_batches():
        made = prepared(name, batch, heads, heads=(3,))
        blend = made.blend(batch.labels.shape[1])
        assert blend is not None
        logits = torch.from_numpy(batch.logits) * torch.tensor([1.0, 0.5, -1.0])[:, None, None]
        found, expected = by_blend(made, blend, logits, batch), by_autograd(made, batch, logits)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


def test_only_the_methods_that_are_mixtures_say_so() -> None:
    batch = next(some_batches())
    plain = {name: prepared(name, batch, reference_of(name).plain) for name in methods()}
    assert [name for name in plain if plain[name].blend(20) is not None] == [name for name in plain if name in BLENDS]


@pytest.mark.parametrize("base", ["unknown", "all"])
def test_a_quota_of_the_largest_logits_is_what_is_modified(base: str) -> None:
    for batch in some_batches():
        logits, labels = torch.from_numpy(batch.logits), torch.from_numpy(batch.labels)
        made = prepared("ll-r", batch, {"delta_rel": 7.5, "base": base})
        quota = made.quota(labels)
        assert quota is not None
        assert torch.equal(largest(logits, states(labels).unknown, quota), made.modified(logits, labels))
    assert objective("an").quota(labels) is None


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
