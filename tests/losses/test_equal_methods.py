"""Methods that are one another, by their papers, with some options."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.losses.batches import some_batches

from labelgap.losses import loss


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("an-ls", {"smoothing": 0.0}), ("an", {})),
        (("bce-ls", {"smoothing": 0.0}), ("iu", {})),
        (("wan", {"weight": 1.0}), ("an", {})),
        (("wan", {"weight": 0.0}), ("iu", {})),
        (("wan", {}), ("wan", {"weight": 1 / 19})),
        (("iu", {}), ("bce", {})),
        (("iu", {}), ("iun", {})),
        (("dw", {"weight": 1.0}), ("an", {})),
        (("dw", {"weight": 0.0}), ("iu", {})),
        (("dw", {"weight": 1 / 19}), ("wan", {})),
        (("n-ls", {"smoothing": 0.0}), ("an", {})),
        (("ls", {}), ("an-ls", {})),
        (("ls", {"smoothing": 0.3, "eps": 1e-5}), ("an-ls", {"smoothing": 0.3, "eps": 1e-5})),
        (("em", {"alpha": 0.0}), ("iu", {})),
        (("entmin", {"weight": 0.0}), ("iu", {})),
        (("l1r", {}), ("an", {})),
        (("l2r", {}), ("an", {})),
        (("asl", {"gamma_neg": 0.0, "margin": 0.0}), ("an", {})),
        (("asl", {"gamma_neg": 0.0, "margin": 0.0, "eps": 1e-5}), ("an", {"eps": 1e-5})),
        (("csl", {"mode": "negative", "gamma_neg": 0.0, "gamma_unknown": 0.0}), ("an", {})),
        (("csl", {"mode": "ignore", "gamma_neg": 0.0}), ("iu", {})),
        (("csl", {"mode": "negative"}), ("csl", {"likelihood_topk": 0})),
        (("csl", {"mode": "ignore"}), ("csl", {"likelihood_topk": 20})),
        (("csl", {"mode": "ignore"}), ("csl", {"likelihood_topk": 0, "priors": [1.0] * 20})),
        (("csl", {}), ("csl", {"priors": [0.5] * 20})),
    ],
)
def test_methods_are_each_other_where_they_should_be(one: Any, other: Any) -> None:
    for batch in some_batches():
        logits, labels = torch.from_numpy(batch.logits), torch.from_numpy(batch.labels)
        losses = [loss(name, **options)(logits, labels) for name, options in (one, other)]
        torch.testing.assert_close(*losses)
