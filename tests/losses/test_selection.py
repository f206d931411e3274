"""The k-th largest entry of a batch is that of a sort, however the values are distributed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from labelgap.losses.base import selection
from labelgap.losses.base.selection import kth_largest, top_k_mask

SHAPE = (120, 80)
RANDOM = np.random.default_rng(7)
VALUES = {
    "normal": RANDOM.normal(size=SHAPE).astype(np.float32),
    "ties": RANDOM.integers(0, 5, SHAPE).astype(np.float64),
    "one value": np.zeros(SHAPE, dtype=np.float32),
    "large in one class": RANDOM.normal(size=SHAPE) + 50 * (np.arange(SHAPE[1]) == 3),
    "large in few rows": RANDOM.normal(size=SHAPE) + 50 * (np.arange(SHAPE[0]) > 117)[:, None],
    "sorted": np.sort(RANDOM.normal(size=SHAPE[0] * SHAPE[1])).reshape(SHAPE),
    "infinite": np.where(RANDOM.random(SHAPE) < 0.5, -np.inf, RANDOM.normal(size=SHAPE)),
}


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("share", [0.01, 0.9, 1.0])
def test_the_kth_largest_is_that_of_a_sort(kind: str, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    values, among = VALUES[kind], RANDOM.random(SHAPE) < share
    ordered = np.sort(values[among])[::-1]
    for sample in (16, 256, 2048):
        monkeypatch.setattr(selection, "SAMPLE", sample)
        for k in {1, 2, min(30, len(ordered)), len(ordered) // 3, len(ordered)}:
            assert kth_largest(values, among, k) == ordered[k - 1]


def test_what_is_searched_stays_as_it_is() -> None:
    values, among = VALUES["normal"].copy(), np.ones(SHAPE, dtype=bool)
    for k in (5, values.size):
        kth_largest(values, among, k)
    assert np.array_equal(values, VALUES["normal"]) and among.all()


@pytest.mark.parametrize("kind", VALUES)
def test_on_the_host_and_on_a_device_the_same_entries_are_marked(kind: str) -> None:
    """A count that the host has not read is that of a device."""
    values, allowed = torch.from_numpy(VALUES[kind]).nan_to_num(), torch.from_numpy(RANDOM.random(SHAPE) < 0.7)
    for count in (0, 1, 77, int(allowed.sum())):
        found = top_k_mask(values, allowed, count)
        assert torch.equal(found, top_k_mask(values, allowed, torch.tensor(count), largest_share=1.0))
        assert torch.equal(found, top_k_mask(values, allowed, torch.tensor(count)))


def test_entries_that_are_not_numbers_count_as_the_largest() -> None:
    values = VALUES["normal"].copy()
    values.flat[[5, 500, 5000]] = np.nan
    among = np.ones(SHAPE, dtype=bool)
    assert np.isnan(kth_largest(values, among, 3)) and kth_largest(values, among, 4) == np.nanmax(values)
