"""The data set that comes with the package."""

from __future__ import annotations

import numpy as np
import pytest
from tests.data.sentences import sentences

from labelgap.core.errors import InputError
from labelgap.data.dataset import Dataset
from labelgap.data.readers.digits import _generate, load_digits
from labelgap.labels import ABSENT, PRESENT, LabelTable


def content(data: Dataset) -> list[object]:
    """Every pixel, label and box."""
    parts: list[object] = []
    for split in data.splits:
        assert split.boxes is not None
        parts += [
            split.labels.to_dense().tolist(),
            split.evaluation_labels.to_dense().tolist(),
            split.boxes.corners.tolist(),
        ]
        parts += [split.images[row].tobytes() for row in range(len(split))]
    return parts


def small(seed: int = 0) -> Dataset:
    return load_digits(train=60, val=15, test=30, seed=seed)


def test_the_sizes_are_those_asked_for() -> None:
    data = small()
    assert [(split.name, len(split)) for split in data.splits] == [("train", 60), ("val", 15), ("test", 30)]
    assert data.name == "digits" and data.classes == tuple("0123456789")
    assert (data.backbone, data.protocol) == ("small-cnn", "end-to-end")


def test_a_training_image_shows_one_of_its_positives_and_nothing_else() -> None:
    train = small().train
    assert train.truth is not None and train.truth.complete
    shown, truth = train.labels.to_dense(), train.truth.to_dense()
    assert ((shown == PRESENT).sum(axis=1) == 1).all() and not (shown == ABSENT).any()
    assert (truth[shown == PRESENT] == PRESENT).all()
    assert (truth == PRESENT).sum() > 60


def test_the_positive_shown_is_the_papers_draw() -> None:
    train = small().train
    assert train.truth is not None
    random = np.random.RandomState(1200)
    for row, known in enumerate(train.truth.to_dense()):
        positives, negatives = np.flatnonzero(known == PRESENT), np.flatnonzero(known == ABSENT)
        random.shuffle(positives)
        random.shuffle(negatives)
        assert np.flatnonzero(train.labels.to_dense()[row] == PRESENT).tolist() == positives[:1].tolist()


def test_val_and_test_are_known_in_full() -> None:
    for split in small().splits[1:]:
        assert split.labels.complete and split.truth is split.labels


def test_boxes_are_where_the_labels_say() -> None:
    for split in small().splits:
        assert split.boxes is not None
        boxed = np.zeros((len(split), 10), dtype=np.int8)
        boxed[split.boxes.rows, split.boxes.classes] = PRESENT
        assert LabelTable.from_dense(boxed, split.labels.classes, split.labels.images) == split.evaluation_labels
        assert (split.boxes.corners[:, :2] <= split.boxes.corners[:, 2:]).all()
        assert split.boxes.corners.min() >= 0 and split.boxes.corners.max() <= 63


def test_every_image_has_a_name_of_its_own() -> None:
    names = [name for split in small().splits for name in split.labels.images]
    assert len(set(names)) == 105 and names[0] == "train-00000"
    assert names == [name for split in small().splits for name in split.images.names]


def test_four_loads_make_the_scenes_once() -> None:
    _generate.cache_clear()
    first = small()
    assert all(small() is first for _ in range(3))
    assert load_digits(seed=0, test=30, val=15, train=60) is first
    assert _generate.cache_info().misses == 1


def test_what_is_shared_cannot_be_changed() -> None:
    data = small()
    assert data.train.boxes is not None
    for shared in (data.train.boxes.corners, data.train.images[0]):
        with pytest.raises(ValueError, match="read-only"):
            shared[0, 0] = 1


def test_another_seed_makes_other_scenes() -> None:
    assert small(seed=0).train.truth != small(seed=1).train.truth


def test_the_same_seed_makes_the_same_pixels_labels_and_boxes() -> None:
    once = content(load_digits(train=12, val=4, test=6, seed=3))
    _generate.cache_clear()
    np.random.seed(77)
    assert content(load_digits(train=12, val=4, test=6, seed=3)) == once


def test_splits_of_no_images_are_left_out() -> None:
    data = load_digits(train=5, val=0, test=0)
    assert data.val is None and data.test is None and len(data.train) == 5


def test_the_findings_say_what_is_hidden_and_observing_again_replaces_it() -> None:
    data = small()
    assert (
        sentences(data)[-1]
        == "train shows 1 present and 0 absent labels of every image (seed 1200), the rest is hidden"
    )
    again = data.observe(positives="all", negatives=2, seed=5)
    assert sentences(again)[:-1] == sentences(data)[:-1]
    assert sentences(again)[-1].startswith("train shows all present and 2 absent labels of every image (seed 5)")


@pytest.mark.parametrize("options", [{"train": 0}, {"val": -1}, {"test": 2.5}, {"seed": -1}, {"train": True}])
def test_sizes_that_make_no_sense_are_refused(options: dict[str, int]) -> None:
    (name,) = options
    with pytest.raises(InputError, match=f"digits: {name}="):
        load_digits(**options)
