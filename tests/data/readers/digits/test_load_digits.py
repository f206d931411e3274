"""The data set that comes with the package."""

from __future__ import annotations

import numpy as np
import pytest

from labelgap.core.errors import InputError
from labelgap.data.dataset import Dataset
from labelgap.data.readers.digits import _generate, load_digits
from labelgap.labels import ABSENT, PRESENT


@pytest.fixture(scope="module")
def small() -> Dataset:
    return load_digits(train=60, val=15, test=30)


def test_sizes_and_names_are_those_asked_for(small: Dataset) -> None:
    assert [(split.name, len(split)) for split in small.splits] == [("train", 60), ("val", 15), ("test", 30)]
    assert small.name == "digits" and small.classes == tuple("0123456789")
    assert (small.backbone, small.protocol) == ("small-cnn", "end-to-end")
    names = [name for split in small.splits for name in split.labels.images]
    assert len({*names}) == 105 and names[0] == "train-00000"
    assert names == [name for split in small.splits for name in split.images.names]
    data = load_digits(train=5, val=0, test=0)
    assert data.val is None and data.test is None and len(data.train) == 5


def test_a_training_image_shows_the_positive_of_the_papers_draw_and_nothing_else(small: Dataset) -> None:
    assert small.train.truth is not None and small.train.truth.complete
    shown, random = small.train.labels.to_dense(), np.random.RandomState(1200)
    for row, known in enumerate(small.train.truth.to_dense()):
        positives, negatives = np.flatnonzero(known == PRESENT), np.flatnonzero(known == ABSENT)
        random.shuffle(positives)
        random.shuffle(negatives)
        assert np.flatnonzero(shown[row] == PRESENT).tolist() == positives[:1].tolist()
    assert not (shown == ABSENT).any()
    assert all(split.labels.complete and split.truth is split.labels for split in small.splits[1:])


def test_scenes_are_made_once_and_cannot_be_changed() -> None:
    _generate.cache_clear()
    first = load_digits(train=12, val=4, test=6, seed=3)
    assert load_digits(seed=3, test=6, val=4, train=12) is first and _generate.cache_info().misses == 1
    assert first.train.boxes is not None
    for shared in (first.train.boxes.corners, first.train.images[0]):
        with pytest.raises(ValueError, match="read-only"):
            shared[0, 0] = 1
    assert load_digits(train=12, val=4, test=6, seed=1).train.truth != first.train.truth


@pytest.mark.parametrize("options", [{"train": 0}, {"val": -1}, {"test": 2.5}, {"seed": -1}, {"train": True}])
def test_sizes_that_make_no_sense_are_refused(options: dict[str, int]) -> None:
    (name,) = options
    with pytest.raises(InputError, match=f"digits: {name}="):
        load_digits(**options)
