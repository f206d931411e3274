"""Gradients against the logit: closed forms written in numpy, and what the rest of the batch and the epoch change."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from benchmarks.gradient_gallery import CONTRASTS, FAMILIES, REVISED, svg_document
from numpy.typing import NDArray
from torch import Tensor

import labelgap as lg
from labelgap.core.errors import InputError
from labelgap.losses import Loss
from labelgap.reporting import (
    BatchContext,
    example_context,
    gradient_comparison_figure,
    gradient_figure,
    gradient_regimes,
)

Floats = NDArray[np.float64]
DOCS = Path(__file__).resolve().parents[2] / "docs"
X = np.linspace(-6, 6, 9) + 0.05
K = 6


def sigmoid(x: Floats) -> Floats:
    return 1 / (1 + np.exp(-x))


def small(**options: Any) -> BatchContext:
    return example_context(4, K, **options)


def asl_negative(x: Floats, gamma: float = 2.0, margin: float = 0.2) -> Floats:
    """d/dx of −ln(q)·(1−q)^γ with q = 1 − p + m, which is 1 (and flat) where p ≤ m."""
    p = sigmoid(x)
    r = np.maximum(p - margin, 0)  # 1 − q
    slope: Floats = p * (1 - p) * (r**gamma / (1 - r) - gamma * r ** (gamma - 1) * np.log(1 - r)) * (p > margin)
    return slope


def gr_unknown(x: Floats, t: int = 6, epochs: int = 10) -> Floats:
    """v·[−k·p^(q2−1) + (1−k)·(1−p)^(q3−1)]·p(1−p), with k and v constants to the gradient."""
    p, q2, q3 = sigmoid(x), 0.01, 1.0
    k = sigmoid(2 * (t - 1) / epochs * p - 2)
    v = np.exp(-(((p - 0.5 - 0.3 * t / epochs) / (2 - 1.5 * t / epochs)) ** 2) / 2)
    return v * (-k * p ** (q2 - 1) + (1 - k) * (1 - p) ** (q3 - 1)) * p * (1 - p)


def hill_present(x: Floats) -> Floats:
    """d/dx of −(1−s)² ln s with s = σ(x−1)."""
    s = sigmoid(x - 1)
    return 2 * (1 - s) ** 2 * s * np.log(s) - (1 - s) ** 3


def hill_negative(x: Floats) -> Floats:
    """d/dx of (1.5−p)p²."""
    return 3 * sigmoid(x) ** 2 * (1 - sigmoid(x)) ** 2


def present(x: Floats) -> Floats:
    return sigmoid(x) - 1


def entropy(x: Floats) -> Floats:
    """Zhou et al., equation for unknown labels, as printed: α·g·e^(−g)/(1+e^(−g))²."""
    slope: Floats = 0.2 * x * np.exp(-x) / (1 + np.exp(-x)) ** 2
    return slope


CLOSED_FORMS: dict[str, tuple[Callable[[Floats], Floats], ...]] = {
    "an": (present, sigmoid, sigmoid),
    "an-ls": (lambda x: sigmoid(x) - 0.9, *[lambda x: sigmoid(x) - 0.1] * 2),
    "wan": (present, sigmoid, lambda x: sigmoid(x) / (K - 1)),
    "em": (present, sigmoid, entropy),
    "asl": (present, asl_negative, asl_negative),
    "gr": (present, sigmoid, gr_unknown),
    "hill": (hill_present, hill_negative, hill_negative),
}


@pytest.mark.parametrize("method", CLOSED_FORMS)
def test_the_gradient_is_the_derivative_of_the_equation(method: str) -> None:
    found = gradient_regimes(method, logits=X, context=small())
    for values, expected in zip((found.present, found.absent, found.unknown), CLOSED_FORMS[method], strict=True):
        assert values == pytest.approx(expected(X), rel=1e-6, abs=1e-9)
    assert not found.depends_on_batch and found.depends_on_epoch == (method == "gr")


def test_large_loss_changes_its_gradient_at_the_largest_losses_of_the_rest_of_the_batch() -> None:
    context = small(epoch=3)
    others = context.logits[context.labels == -1]
    assert context.labels[0, 0] == -1
    edge = max(others[1:])  # k = ⌈16·2·0.2/100⌉ = 1: the largest loss alone
    found = gradient_regimes("ll-r", logits=[edge - 0.01, edge + 0.01], context=context)
    assert found.unknown == pytest.approx([sigmoid(edge - 0.01), 0])
    assert found.depends_on_batch and found.depends_on_epoch
    first = gradient_regimes("ll-r", logits=[edge + 0.01], context=replace(context, epoch=1))
    assert first.unknown == pytest.approx(sigmoid(edge + 0.01))


def test_expected_positives_push_by_how_far_the_batch_is_from_them() -> None:
    context = small()
    found = gradient_regimes("epr", {"expected_positives": 1.5}, logits=[0.7], context=context)
    logits = context.logits.copy()
    logits[0, 0] = 0.7
    excess = sigmoid(logits).sum() / 4 - 1.5
    slope = 2 * excess / K**2 / 4 * sigmoid(np.array(0.7)) * sigmoid(np.array(-0.7)) * logits.size
    assert found.unknown == pytest.approx([slope]) and found.depends_on_batch and not found.depends_on_epoch


@pytest.mark.parametrize(
    ("method", "target", "weight"), [("ll-cp", 1.0, 1.0), ("em-apl", sigmoid(np.array(-9.0)), 0.02)]
)
def test_a_label_revised_in_an_earlier_epoch_is_drawn_to_its_revision(method: str, target: Any, weight: float) -> None:
    revised = gradient_regimes(
        method, logits=[-4.0, 3.0], context=replace(example_context(12, K), earlier_logit=9.0 if weight == 1 else -9.0)
    )
    assert revised.unknown == pytest.approx(weight * (sigmoid(np.array([-4.0, 3.0])) - target))


class Squares(Loss):
    """A loss of somebody's own, without leading axes, that takes unknown as 0.5."""

    def cost(self, logits: Tensor, labels: Tensor, index: Tensor | None, features: Tensor | None) -> Tensor:
        target = torch.where(labels < 0, 0.5, labels.to(logits.dtype))
        return ((logits - target) ** 2).mean()


def test_a_loss_of_ones_own_is_shown_as_it_is_and_not_changed() -> None:
    mine = Squares()
    found = gradient_regimes(mine, logits=[0.0, 2.0], context=small())
    assert (found.present.tolist(), found.unknown.tolist()) == ([-2, 2], [-1, 3])
    assert found.method == "Squares" and mine.epoch == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda: gradient_regimes("an", logits=[float("nan")]),
        lambda: gradient_regimes("an", logits=[]),
        lambda: gradient_regimes(Squares(), {"a": 1}),
        lambda: gradient_regimes("epr"),
        lambda: example_context(1, 3),
        lambda: small(epoch=11),
        lambda: replace(small(), logits=np.zeros((2, 2))),
    ],
)
def test_what_cannot_be_shown_is_refused(call: Callable[[], Any]) -> None:
    with pytest.raises(InputError):
        call()


def test_a_figure_draws_the_numbers_and_says_in_which_batch_they_were_taken() -> None:
    found = gradient_regimes("ll-ct", logits=X, context=small(epoch=3))
    axis = gradient_figure(found, found).axes[0]
    for line, values in zip(axis.lines, (found.present, found.absent, found.unknown, found.unknown), strict=False):
        assert np.asarray(line.get_ydata()) == pytest.approx(values)
    assert axis.get_title(loc="left") == "ll-ct\nin a batch of 4 × 6, epoch 3 of 10"
    weak = gradient_regimes("em", logits=X, context=small())
    figure = gradient_figure(weak, title="$x_$ <b>")
    assert np.asarray(figure.axes[1].lines[0].get_ydata()) == pytest.approx(weak.unknown)
    text = svg_document(figure, "a & b")
    ElementTree.fromstring(text)
    assert "$x_$ &lt;b&gt;" in text and ">0.04<" in text  # coordinates are rounded, the text of ticks is not
    both = gradient_comparison_figure({"an": found, "em": weak})
    assert [len(axis.lines) for axis in both.axes] == [3, 3, 3]
    assert np.asarray(both.axes[2].lines[1].get_ydata()) == pytest.approx(weak.unknown)


def test_the_gallery_has_every_method_once_and_its_files_are_small() -> None:
    names = [name for methods in FAMILIES.values() for name in methods]
    built_in = [name for name in lg.methods() if lg.losses.describe_method(name).paper is not None]
    assert sorted(names) == sorted(built_in) and set(REVISED) <= set(names)
    shown = re.findall(r"\(gallery/(.+?)\.svg\)", (DOCS / "gallery.md").read_text(encoding="utf-8"))
    assert shown == [*names, *CONTRASTS]
    sizes = {path.stem: path.stat().st_size for path in (DOCS / "gallery").iterdir()}
    assert sorted(sizes) == sorted(shown) and max(sizes.values()) < 30_000 and sum(sizes.values()) < 700_000
