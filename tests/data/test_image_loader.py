from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from tests.data.splitmix64 import MASK, mix

from labelgap.core.errors import InputError
from labelgap.data.images import ArrayImages, FileImages, to_channels
from labelgap.data.loader import ImageLoader
from labelgap.data.transforms import Resize, flip_mask

SPAWNED = {"workers": 1, "start_method": "spawn"}


@pytest.fixture(scope="module")
def array() -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, (23, 8, 8)).astype(np.uint8)


@pytest.fixture
def files(tmp_path: Path, array: NDArray[np.uint8]) -> FileImages:
    names = [f"{row}.png" for row in range(len(array))]
    for name, image in zip(names, array, strict=True):
        Image.fromarray(image).save(tmp_path / name)
    return FileImages(tmp_path, names)


def everything(batches: ImageLoader) -> tuple[list[int], torch.Tensor]:
    pairs = list(batches)
    return torch.cat([index for index, _ in pairs]).tolist(), torch.cat([pixels for _, pixels in pairs])


def reference_flip(seed: int, epoch: int, row: int) -> bool:
    """The last of three numbers of SplitMix64."""
    state = mix(mix(seed & MASK) ^ epoch)
    state = mix(mix(state) ^ row)
    return bool(mix(state) >> 63)


def test_batches_come_in_the_order_given(array: NDArray[np.uint8]) -> None:
    order = [4, 22, 4, 0, 7, 1, 9]
    batches = ImageLoader(ArrayImages(array), order, transform=Resize(8), channels=1, batch_size=3)
    assert [len(index) for index, _ in batches] == [3, 3, 1] and len(batches) == 3
    index, pixels = everything(batches)
    assert index == order
    assert np.array_equal(pixels.numpy()[:, 0], array[order])


def test_whole_batches_from_an_array_equal_images_one_by_one() -> None:
    colors = np.random.default_rng(1).integers(0, 256, (9, 6, 6, 3)).astype(np.uint8)
    for source in (colors, colors[..., :1]):
        for channels in (1, 3):
            _, pixels = everything(
                ImageLoader(ArrayImages(source), transform=Resize(6), channels=channels, batch_size=4)
            )
            assert np.array_equal(pixels.numpy(), to_channels(source, channels).transpose(0, 3, 1, 2))


def test_files_and_arrays_give_the_same_pixels(files: FileImages, array: NDArray[np.uint8]) -> None:
    for size in (8, 5):
        one = everything(ImageLoader(files, transform=Resize(size, 3), batch_size=5))
        other = everything(ImageLoader(ArrayImages(array), transform=Resize(size, 3), batch_size=5))
        assert one[0] == other[0] and torch.equal(one[1], other[1])


def test_mirrored_images_are_mirrored_left_to_right(array: NDArray[np.uint8]) -> None:
    _, plain = everything(ImageLoader(ArrayImages(array), transform=Resize(8), channels=1))
    _, mirrored = everything(ImageLoader(ArrayImages(array), transform=Resize(8, 5), channels=1, epoch=2))
    which = flip_mask(5, 2, np.arange(len(array)))
    assert 0 < which.sum() < len(array)
    for row, flipped in enumerate(which):
        assert torch.equal(mirrored[row], plain[row].flip(-1) if flipped else plain[row])


def test_the_coin_follows_its_definition() -> None:
    for seed, epoch in ((0, 1), (7, 3), (-1, 2), (1 << 70, 1)):
        rows = [0, 1, 2, 1000, 3_400_000]
        assert flip_mask(seed, epoch, rows).tolist() == [reference_flip(seed, epoch, row) for row in rows]


@pytest.mark.parametrize("how", [{"workers": 2}, pytest.param(SPAWNED, marks=pytest.mark.slow)])
def test_processes_change_nothing_however_they_are_started(files: FileImages, how: dict[str, Any]) -> None:
    order = np.random.default_rng(3).permutation(len(files))
    settings: dict[str, Any] = {"transform": Resize(5, 9), "batch_size": 4, "epoch": 2}
    here, there = (everything(ImageLoader(files, order, **settings, **each)) for each in ({}, how))
    assert here[0] == there[0] and torch.equal(here[1], there[1])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_damaged_file_is_named_without_a_traceback(files: FileImages, workers: int) -> None:
    files.path(7).write_bytes(b"")
    with pytest.raises(InputError) as caught:
        list(ImageLoader(files, transform=Resize(5), workers=workers, batch_size=4))
    assert str(caught.value) == f"{files.path(7)} is empty (0 bytes)."


def test_global_random_states_are_neither_read_nor_moved(array: NDArray[np.uint8]) -> None:
    torch.manual_seed(1)
    np.random.seed(1)
    expected = torch.get_rng_state(), str(np.random.get_state())
    list(ImageLoader(ArrayImages(array), transform=Resize(8, 0), workers=1))
    assert torch.equal(torch.get_rng_state(), expected[0]) and str(np.random.get_state()) == expected[1]


def test_more_processes_than_processors_do_not_warn(array: NDArray[np.uint8]) -> None:
    assert len(list(ImageLoader(ArrayImages(array[:2]), transform=Resize(8), workers=2, batch_size=1))) == 2
    assert ImageLoader(ArrayImages(array), transform=Resize(8), workers=10_000).workers < 10_000


def test_senseless_arguments_are_refused(array: NDArray[np.uint8]) -> None:
    cases: tuple[tuple[str, dict[str, Any]], ...] = (
        ("batch size", {"batch_size": 0}), ("channels", {"channels": 2}), ("row 23", {"rows": [23]})
    )  # fmt: skip
    for named, wrong in cases:
        with pytest.raises(InputError, match=named):
            ImageLoader(ArrayImages(array), wrong.pop("rows", None), transform=Resize(8), **wrong)
