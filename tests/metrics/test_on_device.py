"""Average precision of tensors where they are, against that of arrays."""

from __future__ import annotations

import importlib
import math

import numpy as np
import pytest
import torch

from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.metrics import average_precision
from labelgap.metrics.average_precision import (
    average_precision_of_rankings,
    average_precision_on_device,
    measure_tensors,
)
from labelgap.metrics.validation import Average, Unknown

RANKINGS = importlib.import_module("labelgap.metrics.average_precision")
"""The module; the package has a function of that name."""


def test_ranking_on_a_device_is_ranking() -> None:
    random = np.random.default_rng(0)
    for scores in (random.normal(size=(40, 50)), random.integers(-3, 3, size=(40, 50)) / 2):
        codes = random.choice([-1, 0, 1], size=(40, 50), p=[0.2, 0.6, 0.2]).astype(np.int8)
        codes[0], codes[1], codes[2] = 0, 1, -1
        found = average_precision_on_device(torch.from_numpy(scores), torch.from_numpy(codes))
        np.testing.assert_allclose(found.numpy(), average_precision_of_rankings(scores, codes), rtol=1e-12)


@pytest.mark.parametrize("average", ["macro", "samples", "micro", None])
@pytest.mark.parametrize("unknown", ["ignore", "absent"])
def test_tensors_on_a_device_are_measured_as_arrays_are(
    average: Average | None, unknown: Unknown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RANKINGS, "DEVICE_ENTRIES_AT_ONCE", 90)
    random = np.random.default_rng(9)
    scores = random.integers(-12, 12, (30, 7)) / 12
    labels = random.choice([UNKNOWN, ABSENT, PRESENT], size=scores.shape, p=[0.4, 0.4, 0.2]).astype(np.int8)
    expected = average_precision(scores, labels, average, "zero", unknown)
    found = measure_tensors(torch.from_numpy(scores), torch.from_numpy(labels), average, unknown)
    assert found is not None
    np.testing.assert_allclose(found[0] if average is None else found[0].mean(), expected, rtol=0, atol=1e-12)
    codes = np.where(labels == UNKNOWN, ABSENT, labels) if unknown == "absent" else labels
    rankings = {"samples": codes, "micro": codes.reshape(1, -1)}.get(str(average), codes.T)
    assert [each.tolist() for each in found[1:]] == [(rankings == state).sum(axis=1).tolist() for state in (1, 0)]


def test_narrow_scores_and_labels_with_nan_on_a_device_are_as_in_main_memory() -> None:
    scores, labels = torch.tensor([[0.5, 2], [1, 3]]), torch.tensor([[1, math.nan], [0, 1]])
    found = measure_tensors(scores.bfloat16(), labels.half(), None, "ignore")
    assert found is not None and [each.tolist() for each in found] == [[0.5, 1], [1, 1], [1, 0]]
    assert measure_tensors(scores.int(), labels, None, "ignore") is not None


@pytest.mark.parametrize("bad", [-128, 2, 257, 0.5])
def test_what_is_not_valid_on_a_device_is_left_to_the_check_that_says_why(bad: float) -> None:
    scores, labels = torch.zeros(2, 2), torch.tensor([[1, 0], [0, bad]])
    assert measure_tensors(scores, labels, None, "ignore") is None
    assert measure_tensors(scores.fill_(math.nan), labels.clamp(0, 0), None, "ignore") is None
