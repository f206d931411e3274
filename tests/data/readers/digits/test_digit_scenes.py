from __future__ import annotations

import hashlib

import numpy as np
import pytest

from labelgap.data.readers.digits import CLASS_NAMES, SIDE, Scenes, digit_scenes, sklearn_digits, split_digits

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


def test_scenes_follow_from_the_seed_alone() -> None:
    """Neither numpy's global state nor the sizes of the other splits count."""
    np.random.seed(1)
    before = str(np.random.get_state())
    one = digit_scenes(7, (6, 5, 5))
    assert str(np.random.get_state()) == before
    np.random.seed(2)
    assert np.array_equal(one[2].images, digit_scenes(7, (2, 9, 5))[2].images)
    other = digit_scenes(8, (6, 5, 5))
    assert not np.array_equal(one[0].images, other[0].images)
    assert not np.array_equal(one[0].images[:5], one[1].images)
    assert digit_scenes(0, (0, 0, 1))[0].images.shape == (0, SIDE, SIDE)


def test_the_pixels_are_the_same_on_every_machine() -> None:
    """Changing this number changes the data set, and every figure that was measured on it."""
    digest = hashlib.sha256()
    for split in digit_scenes(3, (40, 9, 9)):
        for array in (split.images, split.labels.astype("u1"), split.boxes.astype("<i8"), split.digits.astype("<i8")):
            digest.update(np.ascontiguousarray(array).tobytes())
    assert digest.hexdigest()[:32] == PINNED
