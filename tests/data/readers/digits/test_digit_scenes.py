from __future__ import annotations

import hashlib

import numpy as np
import pytest
from numpy.typing import NDArray

from labelgap.core.errors import InputError
from labelgap.data.readers.digits import (
    CLASS_NAMES,
    SIDE,
    DigitScenes,
    Scenes,
    digit_scenes,
    ink_box,
    make_scenes,
    random_windows,
    render_digits,
    sklearn_digits,
    split_digits,
    stroke_masks,
)

PINNED = "417e4bc646c36e9eb4c666ca1b6f1c6c"


@pytest.fixture(scope="module")
def scenes() -> DigitScenes:
    return digit_scenes(seed=0, counts=(400, 120, 200))


def test_shapes_and_types_are_as_documented(scenes: DigitScenes) -> None:
    for split, count in zip(scenes, (400, 120, 200), strict=True):
        assert len(split) == count
        assert split.images.shape == (count, SIDE, SIDE) and split.images.dtype == np.uint8
        assert split.labels.shape == (count, len(CLASS_NAMES)) and split.labels.dtype == np.bool_
        assert split.boxes.shape == (len(split.digits), 6) and split.boxes.dtype == np.int64


def test_the_three_splits_share_no_handwriting(scenes: DigitScenes) -> None:
    cells, _ = sklearn_digits()
    used = [{cells[digit].tobytes() for digit in split.digits} for split in scenes]
    assert not used[0] & used[1] and not used[0] & used[2] and not used[1] & used[2]


def test_dealing_the_digits_is_a_stratified_partition() -> None:
    parts = split_digits(seed=5)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(1797))
    _, classes = sklearn_digits()
    for part, share in zip(parts, (0.6, 0.15, 0.25), strict=True):
        counts = np.bincount(classes[part], minlength=10)
        assert np.abs(counts - share * np.bincount(classes)).max() <= 1


def test_digits_come_only_from_the_part_they_were_dealt_to(scenes: DigitScenes) -> None:
    for split, part in zip(scenes, split_digits(seed=0), strict=True):
        assert np.isin(split.digits, part).all()


def test_labels_are_the_union_of_the_classes_of_the_boxes(scenes: DigitScenes) -> None:
    for split in scenes:
        expected: list[set[int]] = [set() for _ in range(len(split))]
        for scene, digit, *_ in split.boxes.tolist():
            expected[scene].add(digit)
        assert [set(np.flatnonzero(row).tolist()) for row in split.labels] == expected


def test_boxes_have_the_class_of_their_digit(scenes: DigitScenes) -> None:
    _, classes = sklearn_digits()
    for split in scenes:
        assert np.array_equal(classes[split.digits], split.boxes[:, 1])


def test_boxes_lie_inside_the_frame_and_have_the_size_of_a_digit(scenes: DigitScenes) -> None:
    for split in scenes:
        x0, y0, x1, y1 = split.boxes[:, 2:].T
        assert (x0 >= 0).all() and (y0 >= 0).all() and (x1 < SIDE).all() and (y1 < SIDE).all()
        height = y1 - y0 + 1
        assert height.min() >= 12 and height.max() <= 40 and (x1 - x0).min() >= 2


def test_every_scene_holds_one_to_five_digits_and_all_numbers_occur(scenes: DigitScenes) -> None:
    counts = np.bincount(scenes.train.boxes[:, 0], minlength=len(scenes.train))
    assert set(counts.tolist()) == {1, 2, 3, 4, 5}


def test_digits_overlap_little(scenes: DigitScenes) -> None:
    for scene in range(len(scenes.train)):
        boxes = scenes.train.boxes[scenes.train.boxes[:, 0] == scene, 2:].tolist()
        for i, one in enumerate(boxes):
            for other in boxes[:i]:
                assert shared_part(one, other) <= 0.1 + 1e-9


def shared_part(one: list[int], other: list[int]) -> float:
    """Pixels in both boxes, as a share of the smaller, counted one by one."""
    first, second = ({(x, y) for x in range(x0, x1 + 1) for y in range(y0, y1 + 1)} for x0, y0, x1, y1 in (one, other))
    return len(first & second) / min(len(first), len(second))


def test_a_digit_differs_in_gray_from_what_is_around_it(scenes: DigitScenes) -> None:
    ink = [spread(scenes.train, row) for row in scenes.train.boxes.tolist()]
    assert np.median(ink) > 15 and np.percentile(ink, 1) > 6


def spread(scenes: Scenes, row: list[int]) -> float:
    scene, _, x0, y0, x1, y1 = row
    return float(scenes.images[scene, y0 : y1 + 1, x0 : x1 + 1].std())


def test_the_same_seed_gives_the_same_scenes_and_another_seed_gives_others() -> None:
    one, same, other = (digit_scenes(seed, (20, 5, 5)) for seed in (7, 7, 8))
    for a, b in zip(one, same, strict=True):
        assert np.array_equal(a.images, b.images) and np.array_equal(a.boxes, b.boxes)
        assert np.array_equal(a.labels, b.labels) and np.array_equal(a.digits, b.digits)
    assert not np.array_equal(one.train.images, other.train.images)
    assert not np.array_equal(one.train.images[:5], one.val.images)


def test_numpys_global_state_is_neither_read_nor_moved() -> None:
    np.random.seed(1)
    before = str(np.random.get_state())
    first = digit_scenes(0, (4, 1, 1)).train.images
    assert str(np.random.get_state()) == before
    np.random.seed(2)
    assert np.array_equal(first, digit_scenes(0, (4, 1, 1)).train.images)


def test_a_split_does_not_depend_on_the_sizes_of_the_others() -> None:
    assert np.array_equal(digit_scenes(0, (9, 1, 6)).test.images, digit_scenes(0, (2, 30, 6)).test.images)


def test_the_pixels_are_the_same_on_every_machine() -> None:
    """Changing this number changes the data set, and every figure that was measured on it."""
    scenes = digit_scenes(3, (40, 9, 9))
    digest = hashlib.sha256()
    for split in scenes:
        for array in (split.images, split.labels.astype("u1"), split.boxes.astype("<i8"), split.digits.astype("<i8")):
            digest.update(np.ascontiguousarray(array).tobytes())
    assert digest.hexdigest()[:32] == PINNED


def test_no_scenes_at_all_is_legal_and_negative_numbers_are_not() -> None:
    assert digit_scenes(0, (0, 0, 1)).train.images.shape == (0, SIDE, SIDE)
    with pytest.raises(InputError, match="negative"):
        digit_scenes(-1)
    with pytest.raises(InputError, match="negative"):
        digit_scenes(0, (1, -1, 1))


def test_scenes_can_be_made_of_one_digit_only() -> None:
    scenes = make_scenes(np.array([11]), 6, (1, 2))
    assert set(scenes.digits.tolist()) == {11} and scenes.labels.sum() == 6


def test_drawing_is_the_same_alone_and_in_a_batch() -> None:
    cells, _ = sklearn_digits()
    thresholds = np.arange(24, 36)
    together = render_digits(cells[:12], 23, 3, thresholds)
    alone = [render_digits(cells[i : i + 1], 23, 3, thresholds[i : i + 1])[0] for i in range(12)]
    assert np.array_equal(together, np.stack(alone))


def test_a_low_threshold_draws_more_ink_and_every_digit_has_some() -> None:
    cells, _ = sklearn_digits()
    ink: list[NDArray[np.uint8]] = [
        render_digits(cells, 16, 0, np.full(len(cells), threshold)) for threshold in (24, 34)
    ]
    assert ink[0].sum(dtype=np.int64) > ink[1].sum(dtype=np.int64)
    assert ink_box(ink[1])[1].all()


def test_ink_stays_off_the_rim_of_the_drawing_at_every_turn() -> None:
    cells, _ = sklearn_digits()
    for size in (16, 21, 28):
        for turn in (-5, 0, 5):
            ink = render_digits(cells, size, turn, np.full(len(cells), 24))
            rim = np.concatenate([ink[:, 0], ink[:, -1], ink[:, :, 0], ink[:, :, -1]], axis=1)
            assert (rim >= 128).mean() < 0.005


def test_windows_of_strokes_are_cut_from_the_bank() -> None:
    bank = stroke_masks(np.random.default_rng(0), 4)
    taken = random_windows(np.random.default_rng(1), bank, 10, SIDE)
    assert taken.shape == (10, SIDE, SIDE) and taken.max() == 255
    assert set(np.unique(taken).tolist()) <= set(np.unique(bank).tolist())
