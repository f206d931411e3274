"""The asymmetric and the robust losses beyond the equations that the references hold: focus, priors, schedules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.losses.batches import some_batches
from tests.losses.reference import reference_of
from tests.losses.test_loss_values import check

from labelgap.core.errors import InputError
from labelgap.labels import LabelTable
from labelgap.losses import loss
from labelgap.losses.asymmetric import asymmetric

PRIORS = np.linspace(0.05, 1.0, 20).round(2).tolist()


@pytest.mark.parametrize("options", [dict(item) for item in reference_of("asl").options])
def test_asl_passes_the_gradient_through_its_focus_unless_told_not_to(options: dict[str, Any]) -> None:
    random = torch.Generator().manual_seed(0)
    logits = (4 * torch.rand(4, 6, generator=random, dtype=torch.float64) - 2).requires_grad_()
    labels = torch.randint(-1, 2, (4, 6), generator=random)
    through, constant = (loss("asl", **{**options, "detach_focus": detach}) for detach in (False, True))
    assert torch.autograd.gradcheck(lambda x: through(x, labels), logits)
    torch.testing.assert_close(through(logits, labels), constant(logits, labels))


@pytest.mark.parametrize(
    "options",
    [
        {"priors": PRIORS},
        {"priors": PRIORS, "prior_threshold": 0.9, "likelihood_topk": 1, "eps": 1e-5},
        {"priors": PRIORS, "prior_threshold": 0.0, "reduction": "none"},
        {"priors": PRIORS, "mode": "negative"},
    ],
)
def test_csl_leaves_out_unknown_labels_of_frequent_classes(options: dict[str, Any]) -> None:
    for batch in some_batches():
        check("csl", reference_of("csl"), batch, options, torch.float64)
        check("csl", reference_of("csl"), batch, options, torch.float16)


def test_priors_are_one_for_every_class() -> None:
    with pytest.raises(InputError, match=r"20 .* 3 "):
        loss("csl", priors=PRIORS)(torch.zeros(1, 3), torch.tensor([[1, 0, -1]]))


def test_a_class_exactly_at_the_threshold_is_not_frequent() -> None:
    made = loss("csl", priors=[0.3, 0.31], prior_threshold=0.3, likelihood_topk=0)
    for dtype in (torch.float16, torch.float32, torch.float64):
        assert made.modified(torch.zeros(1, 2, dtype=dtype), torch.tensor([[-1, -1]])).tolist() == [[False, True]]
    assert torch.float64 not in {buffer.dtype for buffer in made.buffers()}, "Apple's GPUs have no float64"


def test_csl_marks_as_many_of_the_likeliest_unknown_labels_as_it_says() -> None:
    logits = torch.tensor([[5.0, 4.0, 3.0], [9.0, 1.0, 0.0]])
    labels = torch.tensor([[-1, -1, -1], [1, -1, -1]])
    for topk, wanted in ((0, []), (1, [5.0, 4.0]), (2, [5.0, 4.0, 3.0, 1.0]), (3, [5.0, 4.0, 3.0, 1.0, 0.0])):
        marked = loss("csl", likelihood_topk=topk).modified(logits, labels)
        assert logits[marked].tolist() == wanted
    for mode in ("ignore", "negative"):
        assert not loss("csl", mode=mode).modified(logits, labels).any()


@pytest.mark.parametrize("detach", [False, True])
@pytest.mark.parametrize("gamma_neg", [0.5, 1.0, 1.5, 4.0])
@pytest.mark.parametrize("margin", [1e-9, 0.001, 0.05, 0.3, 1.0])
def test_every_margin_and_focus_costs_what_the_formula_says(margin: float, gamma_neg: float, detach: bool) -> None:
    values = torch.linspace(-40, 40, 801, dtype=torch.float64).repeat(3, 1)
    labels = torch.tensor([[1], [0], [-1]], dtype=torch.int8).expand(3, 801)
    options: dict[str, Any] = {"gamma_pos": 1.0, "gamma_neg": gamma_neg, "margin": margin, "detach_focus": detach}
    fast, formula = values.clone().requires_grad_(), values.clone().requires_grad_()
    cost, wanted = loss("asl", reduction="sum", **options)(fast, labels), asymmetric(formula, labels, **options).sum()
    torch.autograd.backward([cost, wanted])
    torch.testing.assert_close([cost, fast.grad], [wanted, formula.grad], rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("epochs", [1, 4, 25])
def test_prepare_tells_the_number_of_epochs(epochs: int) -> None:
    for epoch in {1, max(epochs // 2, 1), epochs}:
        for batch in some_batches(epoch):
            for options in reference_of("gr").options:
                check("gr", reference_of("gr"), replace(batch, epochs=epochs), dict(options), torch.float64)


def test_a_schedule_that_ended_early_is_a_warning_that_names_prepare() -> None:
    made = loss("gr")
    made.set_epoch(10)
    with pytest.warns(UserWarning, match=r"after the 10 epochs that it assumes: prepare\(table, epochs=…\)"):
        made.set_epoch(11)
    made.prepare(LabelTable.from_dense([[1, -1]]), epochs=25)
    made.set_epoch(25)
    made.set_epoch(30)
