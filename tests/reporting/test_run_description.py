"""The settings list of a report says everything that matters, and nothing that goes without saying."""

from __future__ import annotations

from collections.abc import Callable

from labelgap.reporting import write_report
from labelgap.reporting.run_description import settings_rows
from labelgap.training import Run
from labelgap.training.config.schema import LinearPhase


def test_a_plain_run_lists_only_what_was_decided(run_of: Callable[..., Run]) -> None:
    names = [name for name, _ in settings_rows(run_of().config)]
    assert "head" not in names and "preset" not in names and "first phase" not in names
    assert {"method", "options", "backbone", "protocol", "optimizer", "learning rate", "precision"} <= set(names)


def test_what_is_out_of_the_ordinary_is_on_the_page(run_of: Callable[..., Run]) -> None:
    run = run_of()
    phase = LinearPhase(epochs=25, lr=1e-3, batch_size=16)
    settings = {"head": "boostlu", "preset": "kim2022", "protocol": "linear-init", "linear": phase, "ema": 0.99}
    run.config = run.config.model_copy(update={**settings, "optimizer": "sgd", "momentum": 0.9, "backbone_lr": 1e-5})
    page = write_report(run, images=False).read_text(encoding="utf-8")
    assert "kim2022: that paper" in page and "<dd>boostlu</dd>" in page and "SGD, momentum 0.9" in page
    assert "the head alone: 25 epochs of Adam at 0.001, batches of 16" in page
    assert "a moving average, decay 0.99" in page and "head 0.003, backbone 1e-05" in page
    assert "first a linear head on fixed features, then the whole network, 25 + 6 epochs" in page
