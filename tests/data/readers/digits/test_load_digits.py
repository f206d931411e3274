"""The data set that comes with the package, and how its scenes are made."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from labelgap.core.errors import InputError
from labelgap.data.dataset import Dataset
from labelgap.data.readers.digits import (
    CLASS_NAMES,
    SIDE,
    Scenes,
    digit_scenes,
    load_digits,
    sklearn_digits,
    split_digits,
)


@pytest.fixture(scope="module")
def small() -> Dataset:
    return load_digits(train=60, val=15, test=30)


def test_a_training_image_shows_the_positive_of_the_papers_draw_and_nothing_else(small: Dataset) -> None:
    assert small.train.truth is not None and small.train.truth.complete
    assert small.train.labels == small.train.truth.observe(positives=1, negatives=0, seed=1200)
    assert all(split.labels.complete and split.truth is split.labels for split in small.splits[1:])


@pytest.mark.parametrize("options", [{"train": 0}, {"val": -1}, {"test": 2.5}, {"seed": -1}, {"train": True}])
def test_sizes_that_make_no_sense_are_refused(options: dict[str, int]) -> None:
    (name,) = options
    with pytest.raises(InputError, match=f"digits: {name}="):
        load_digits(**options)


PINNED = "417e4bc646c36e9eb4c666ca1b6f1c6c"


@pytest.fixture(scope="module")
def scenes() -> tuple[Scenes, ...]:
    return digit_scenes(0, (120, 40, 60))


def test_scenes_have_labels_and_boxes_of_the_digits_of_their_own_part(scenes: tuple[Scenes, ...]) -> None:
    cells, classes = sklearn_digits()
    used = [{cells[digit].tobytes() for digit in split.digits} for split in scenes]
    assert not used[0] & used[1] and not used[0] & used[2] and not used[1] & used[2]
    for split, part, count in zip(scenes, split_digits(0), (120, 40, 60), strict=True):
        assert split.images.shape == (count, SIDE, SIDE) and split.images.dtype == np.uint8
        assert np.isin(split.digits, part).all() and np.array_equal(classes[split.digits], split.boxes[:, 1])
        expected = np.zeros((count, len(CLASS_NAMES)), dtype=bool)
        expected[split.boxes[:, 0], split.boxes[:, 1]] = True
        assert np.array_equal(split.labels, expected)
        x0, y0, x1, y1 = split.boxes[:, 2:].T
        assert min(x0.min(), y0.min()) >= 0 and max(x1.max(), y1.max()) < SIDE
        assert (y1 - y0).min() >= 11 and (y1 - y0).max() < 40 and (x1 - x0).min() >= 2
    assert {*np.bincount(scenes[0].boxes[:, 0], minlength=120).tolist()} == {1, 2, 3, 4, 5}


def test_dealing_the_digits_is_a_stratified_partition() -> None:
    parts, (_, classes) = split_digits(5), sklearn_digits()
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(1797))
    for part, share in zip(parts, (0.6, 0.15, 0.25), strict=True):
        assert np.abs(np.bincount(classes[part], minlength=10) - share * np.bincount(classes)).max() <= 1


def test_the_pixels_are_the_same_on_every_machine() -> None:
    """Changing this number changes the data set, and every figure that was measured on it."""
    digest = hashlib.sha256()
    for split in digit_scenes(3, (40, 9, 9)):
        for array in (split.images, split.labels.astype("u1"), split.boxes.astype("<i8"), split.digits.astype("<i8")):
            digest.update(np.ascontiguousarray(array).tobytes())
    assert digest.hexdigest()[:32] == PINNED
