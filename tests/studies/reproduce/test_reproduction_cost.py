"""The time that ``reproduce`` tells before it trains heads."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.studies.compare.small_features import arrays

from labelgap.core.text import format_duration
from labelgap.studies.reproduce import cost
from labelgap.studies.reproduce.cost import describe_cost
from labelgap.studies.reproduce.runner import plan_reproduction


@pytest.mark.parametrize(("fixed", "epoch"), [(0.2, 0.01), (3.0, 2.0)])
def test_the_first_trial_is_a_warm_up_and_a_line_says_which_heads_it_means(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fixed: float, epoch: float
) -> None:
    np.savez(tmp_path / "vectors.npz", **arrays())  # type: ignore[arg-type]
    given = [f"voc2012={tmp_path / 'vectors.npz'}"]
    plan = plan_reproduction("cole-table2", given, out=tmp_path / "r", cells=["an", "role"], seeds=2, epochs=100)
    clock, lengths = 0.0, list[int]()

    def train(group: Any, data: Any, folder: Any, settings: Any, *rest: Any, **execution: Any) -> None:
        nonlocal clock
        clock += fixed + epoch * settings.epochs + (0 if lengths else 60)
        lengths.append(settings.epochs)

    monkeypatch.setattr(cost, "train_linear", train)
    monkeypatch.setattr(cost, "time", SimpleNamespace(perf_counter=lambda: clock))
    (line,) = describe_cost(plan, device="cpu")
    about = format_duration(2 * (fixed + epoch * (1 + 101)))
    assert line == f"cost      32 linear heads on vectors.npz (an, role; batch 8 and 16): about {about}"
    assert lengths == ([1, 1, 3, 9, 33] if epoch < 1 else [1, 1, 3]), "more epochs where few cannot be measured"
