"""What can be said where no accuracy is known."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from tests.reporting.conftest import write_audit

from labelgap.data.dataset import Dataset, Split
from labelgap.reporting import class_table
from labelgap.reporting.sections.summary import expected_half_width, images_for_half_width, partial_evidence
from labelgap.training import Run


def test_a_review_narrows_the_interval_as_the_square_root_of_its_images() -> None:
    prevalence = np.array([0.5, 0.1])
    by_hand = 1.959964 / 2 * math.sqrt(1 / (4 * 100 * 0.5) + 1 / (4 * 100 * 0.1))
    assert expected_half_width(prevalence, 100) == pytest.approx(by_hand)
    assert expected_half_width(prevalence, 400) == pytest.approx(by_hand / 2)
    images = images_for_half_width(prevalence, 0.05)
    assert expected_half_width(prevalence, images) <= 0.05 < expected_half_width(prevalence, images // 2)


def test_the_ranking_the_known_labels_and_the_audit_are_told_by_what_they_are(
    run_of: Callable[..., Run], data: Dataset
) -> None:
    assert data.val is not None
    shown = data.val.labels.observe(positives="all", negatives=0)
    on = Dataset("pets", data.train, Split("val", data.val.images, shown))
    run = run_of(on, test=False, select="observed", truth=False)
    run.metrics["score"] = run.history[2]["score"]
    write_audit(run, {"missing": 7, "range": [3, 14], "known": 24, "missing_per_class": {"dog": 7}})
    found = partial_evidence(run, on, class_table(run, on))
    ranking, present = found["ranking"], shown.counts().present
    assert (ranking["first"], ranking["kept"]) == (run.history[0]["score"], run.history[2]["score"])
    assert min(present / 24) <= ranking["random"] <= max(present / 24) + 0.2
    assert found["known"] == on.train.labels.counts().total
    assert (found["missing"], found["missing_range"]) == (7, [3, 14])
    assert (found["review_images"], found["available_images"]) == (24, 24)
    without = partial_evidence(run, None, class_table(run))
    assert without["known"] is None and without["ranking"]["random"] is None
