"""Gradients against the logit: closed forms written in numpy, and what the rest of the batch and the epoch change."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from benchmarks.gradient_gallery import CONTRASTS, FAMILIES, REVISED, svg_document
from tests.losses.reference import Batch, reference_of, references
from torch import Tensor

import labelgap as lg
from labelgap.core.errors import InputError
from labelgap.labels import ABSENT, PRESENT, UNKNOWN, LabelTable
from labelgap.losses import Loss
from labelgap.reporting import (
    BatchContext,
    example_context,
    gradient_comparison_figure,
    gradient_figure,
    gradient_regimes,
)
from labelgap.reporting.gradients import gradients_section
from labelgap.reporting.page import Page
from labelgap.training import Run

DOCS = Path(__file__).resolve().parents[2] / "docs"
X = np.linspace(-6, 6, 9) + 0.05
K = 6
STATELESS = [name for name, known in references().items() if known.memory is None]
ALONE = {"bce", "iu", "an", "an-ls", "wan", "em", "asl", "gr", "hill", "focal", "splc"}
"""Some methods in which an entry does not look at the others."""


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def small(**options: Any) -> BatchContext:
    return example_context(4, K, **options)


@pytest.mark.parametrize(("method", "options"), [("em", {"alpha": 0.5}), ("csl", {"priors": [0.9, 0.1]}), ("an", {})])
def test_the_report_of_a_run_has_the_gradient_of_its_loss_beside_assume_negative(
    method: str, options: dict[str, Any]
) -> None:
    page = Page()
    config = SimpleNamespace(method=method, options=options, epochs=2)
    section = gradients_section(cast(Run, SimpleNamespace(config=config)), page)
    assert bool(section) == bool(page.figures) == (method != "an")
    if method == "em":
        (figure,) = page.figures
        x = np.linspace(-6, 6, 25)
        rows = [[float(cell) for cell in row[1:]] for row in figure.data.rows if row[0] == "em"]
        unknown = 0.5 * x * sigmoid(x) * (1 - sigmoid(x))
        np.testing.assert_allclose(rows, np.stack([x, sigmoid(x) - 1, sigmoid(x), unknown], axis=1), atol=1e-6)
        assert {row[0] for row in figure.data.rows} == {"em", "an"}


@pytest.mark.parametrize("method", STATELESS)
def test_the_gradient_is_that_of_the_reference_with_the_rest_of_the_batch_as_it_is(method: str) -> None:
    known, context = reference_of(method), small(epoch=3)
    found = gradient_regimes(method, known.plain, logits=X, context=context)
    table = LabelTable.from_dense(context.labels)
    for values, state in zip((found.present, found.absent, found.unknown), (PRESENT, ABSENT, UNKNOWN), strict=True):
        for x, value in zip(X, values, strict=True):
            logits, labels = context.logits.copy(), context.labels.copy()
            logits[0, 0], labels[0, 0] = x, state
            batch = Batch(logits, labels, np.arange(4), context.features, table, context.epoch, context.epochs)
            wanted = known.answer(batch, **known.plain).gradient[0, 0] * labels.size
            assert value == pytest.approx(wanted, rel=1e-6, abs=1e-9)
    assert not (found.depends_on_batch and method in ALONE)
    assert found.depends_on_batch or method not in ("ll-r", "epr", "two-way")
    assert found.depends_on_epoch == (method in ("gpr", "gr", "ll-r", "ll-ct", "ll-r-abs", "ll-ct-abs", "splc"))


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
