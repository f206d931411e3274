"""From scores to probabilities: Platt's line, and who has one."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.optimize import minimize

from labelgap.labels import LabelTable
from labelgap.metrics.label_model import fit_platt_calibration, platt_scaling, read_calibration


def test_the_line_is_the_one_that_a_general_minimiser_finds() -> None:
    random = np.random.default_rng(1)
    logits = 4 * random.normal(size=500) + 2
    present = random.random(500) < 1 / (1 + np.exp(3 - 0.7 * logits))
    many, few = present.sum(), (~present).sum()
    targets = np.where(present, (many + 1) / (many + 2), 1 / (few + 2))

    def cost(line: np.ndarray) -> float:
        moved = line[0] * logits + line[1]
        return float(
            -(targets * np.log(1 / (1 + np.exp(-moved))) + (1 - targets) * np.log(1 / (1 + np.exp(moved)))).sum()
        )

    assert platt_scaling(logits, present) == pytest.approx(minimize(cost, [1.0, 0.0], tol=1e-10).x, abs=1e-4)


@pytest.mark.parametrize(
    ("logits", "present"),
    [
        (np.array([-20.0] * 50 + [-10.0] * 50), np.arange(100) >= 50),
        (np.array([-1e6, 1e6] * 5), np.arange(10) % 2 == 1),
        (np.zeros(10), np.arange(10) < 3),
    ],
)
def test_separable_huge_and_equal_logits_give_a_finite_line(logits: np.ndarray, present: np.ndarray) -> None:
    scale, offset = platt_scaling(logits, present)
    assert np.isfinite([scale, offset]).all() and scale >= 0


def test_a_class_takes_part_with_five_known_presents_and_older_runs_have_one_offset() -> None:
    random = np.random.default_rng(0)
    codes = np.full((40, 4), -1, dtype=np.int8)
    codes[:10, 0], codes[10:20, 0] = 1, 0
    codes[:15, 1] = 1
    codes[:4, 2], codes[4:, 2] = 1, 0
    logits = (random.normal(size=codes.shape) + 2 * (codes == 1)).astype(np.float32)
    found = fit_platt_calibration(logits, LabelTable.from_dense(codes))
    assert found is not None
    assert found["classes"] == [True, True, False, False]
    assert (found["present"], found["absent"], found["known"]) == (25, 10, 35 / 80)
    assert json.loads(json.dumps(found)) == found
    read = read_calibration({"calibration": found})
    assert read is not None
    chance = read.probabilities(logits)
    assert np.isnan(chance[:, 2:]).all() and np.isfinite(chance[:, :2]).all()
    older = read_calibration({"calibration": {**found, "offset": 0.5}})
    assert older is not None and older.offset == (0.5,) * 4


def test_without_labels_or_with_logits_upside_down_there_is_none() -> None:
    codes = np.repeat([[1], [0]], 20, axis=0).astype(np.int8)
    logits = np.linspace(-1, 1, 40, dtype=np.float32)[:, None]
    assert fit_platt_calibration(logits, codes) is None, "higher logits are less often present"
    assert fit_platt_calibration(-logits, codes) is not None
    assert fit_platt_calibration(-logits, np.where(codes == 0, np.int8(-1), codes)) is not None
    assert fit_platt_calibration(-logits, np.where(codes == 1, np.int8(-1), codes)) is None
    assert fit_platt_calibration(np.full_like(logits, np.inf), codes) is None
    assert read_calibration({}) is None and read_calibration({"calibration": None}) is None
