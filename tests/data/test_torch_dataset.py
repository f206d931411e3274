"""A split as a ``torch.utils.data.Dataset``."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

import labelgap as lg
from labelgap.data import FeatureVectors, Split
from labelgap.labels import LabelTable


def to_unit(image: Tensor) -> Tensor:
    return image.float() / 255


@pytest.fixture(scope="module")
def train() -> Split:
    return lg.load("digits", train=10, val=0, test=0).train


def test_an_item_is_an_image_its_observed_labels_and_its_row(train: Split) -> None:
    assert isinstance(train, Dataset) and len(train) == 10
    image, labels, index = train[4]
    assert image.dtype == torch.uint8 and image.shape == (1, 64, 64)
    assert np.array_equal(image.numpy()[0], train.images[4][..., 0])
    assert torch.equal(labels, train.labels.batch([4])[0]) and index == 4
    assert train[-1][2] == 9
    with pytest.raises(IndexError, match="train has 10 images"):
        train[10]
    assert len(list(train)) == 10  # type: ignore[call-overload]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_data_loader_feeds_a_loss(train: Split, workers: int) -> None:
    batches = DataLoader(train.with_transform(to_unit), batch_size=4, shuffle=True, num_workers=workers)
    loss_fn = lg.loss("an")
    seen = []
    for images, labels, index in batches:
        assert images.dtype == torch.float32 and images.max() <= 1
        assert torch.equal(labels, train.labels.batch(index.tolist()))
        assert loss_fn(images.mean(dim=(1, 2, 3))[:, None].expand(-1, 10), labels).isfinite()
        seen += index.tolist()
    assert sorted(seen) == list(range(10))


def test_feature_vectors_take_the_place_of_images() -> None:
    vectors = np.arange(6, dtype=np.float32).reshape(2, 3)
    split = Split("train", FeatureVectors(vectors), LabelTable.from_dense([[1], [-1]]))
    features, labels, index = next(iter(DataLoader(split, batch_size=2)))
    assert torch.equal(features, torch.from_numpy(vectors)) and labels.tolist() == [[1], [-1]]
    assert index.tolist() == [0, 1]
