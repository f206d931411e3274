"""The score of val after each epoch, of runs and of rows made by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.reporting.conftest import EPOCHS, Recipe, make_run, make_study
from tests.reporting.pages.test_comparison_page import BEST, comparison, method

from labelgap.data.dataset import Dataset
from labelgap.reporting import epoch_scores
from labelgap.reporting.sections.curves import scores_of_seeds
from labelgap.studies.compare.results import GapToBest


def test_runs_have_the_scores_of_their_history_and_test_once(tmp_path: Path, data: Dataset) -> None:
    study = make_study(tmp_path / "s", data, an=Recipe(method="an"), last=Recipe(select="last"))
    found = epoch_scores(study)
    assert list(found) == ["an"], "under `last` val is not scored"
    expected = [[0.5 + 0.05 * epoch - 0.008 * epoch**2 for epoch in range(1, EPOCHS + 1)]]
    assert found["an"].scores.tolist() == expected and found["an"].epochs.tolist() == [1, 2, 3, 4, 5, 6]
    assert found["an"].best.tolist() == [3] and found["an"].name == "val mAP"
    run = study.run(study.members[0])
    assert found["an"].test.tolist() == [run.metrics["test"]["map"]]
    assert not epoch_scores({"a": make_run(tmp_path / "open", data, Recipe(finished=False))})


def test_seeds_that_stopped_early_count_as_far_as_they_went() -> None:
    found = scores_of_seeds([[0.2, 0.4, 0.3], [0.6]], [2, 1], [0.5, None], "val mAP")
    assert found is not None and found.mean.tolist() == pytest.approx([0.4, 0.4, 0.3])
    assert np.isnan(found.scores[1, 1:]).all() and np.isnan(found.test[1])
    assert scores_of_seeds([[0.2], []], [1, 1], [None, None], "val mAP") is None
    assert scores_of_seeds([], [], [], "val mAP") is None


def test_rows_without_scores_are_left_out(tmp_path: Path) -> None:
    assert epoch_scores(comparison(tmp_path, BEST, method("an", [0.7, 0.7], GapToBest(0.1, 0.1)))) == {}
