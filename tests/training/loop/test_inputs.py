"""Batches of images: the same pixels wherever they are stored."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import labelgap.training.loop.inputs as inputs_module
from labelgap.core.errors import InputError, ProblemsError
from labelgap.data.images import FileImages
from labelgap.models import EfficientNetLite
from labelgap.models.efficientnet_lite import LITE0
from labelgap.training.loop.inputs import ImageInputs, start_ahead


@pytest.fixture
def images(tmp_path: Path) -> FileImages:
    random = np.random.default_rng(0)
    for row in range(6):
        Image.fromarray(random.integers(0, 256, (40, 30 + row, 3), dtype=np.uint8)).save(tmp_path / f"{row}.png")
    return FileImages(tmp_path, [f"{row}.png" for row in range(6)])


@pytest.mark.parametrize("transform", ["resize", "augment"])
@pytest.mark.parametrize("epoch", [None, 3])
def test_images_on_the_device_give_the_same_batches(images: FileImages, transform: str, epoch: int | None) -> None:
    backbone = EfficientNetLite(LITE0, pretrained=False)
    backbone.input_spec = backbone.input_spec.__class__(**{**vars(backbone.input_spec), "size": 32})
    files = ImageInputs(images, backbone, torch.device("cpu"), flip=True, seed=7, transform=transform)
    order = np.array([4, 0, 3, 2])
    stored, decoded = files.store(torch.device("cpu")), files.in_memory()
    assert stored.pixels is not None and len(stored) == 6 and decoded.pixels is not None
    expected = list(files.batches(order, batch_size=3, epoch=epoch))
    for inputs in (stored, decoded):
        for (index, values), (rows, pixels) in zip(
            inputs.batches(order, batch_size=3, epoch=epoch), expected, strict=True
        ):
            assert torch.equal(index, rows)
            torch.testing.assert_close(values, pixels)
    if epoch is not None:
        plain = torch.cat([values for _, values in files.batches(order, batch_size=3)])
        assert not torch.equal(torch.cat([values for _, values in expected]), plain)


def test_the_error_about_an_unreadable_image_names_the_others(images: FileImages, tmp_path: Path) -> None:
    inputs = ImageInputs(images, EfficientNetLite(LITE0, pretrained=False), torch.device("cpu"))
    (tmp_path / "1.png").write_text("not a photo")
    with pytest.raises(InputError, match=r"^\S+1\.png "):  # the only one: as it was
        list(inputs.batches(np.arange(len(inputs)), batch_size=2))
    (tmp_path / "4.png").write_bytes((tmp_path / "5.png").read_bytes()[:-30])
    for rows in (np.arange(6), np.array([4, 0])):
        with pytest.raises(ProblemsError, match="2 images") as told:
            list(inputs.batches(rows, batch_size=2))
        assert sorted(each.message.split("png ")[0][-2:] for each in told.value.problems) == ["1.", "4."]
    with pytest.raises(ProblemsError, match="--check-images"):
        inputs.store(torch.device("cpu"))


def test_processes_share_memory_and_have_a_gpu_each(images: FileImages, monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = EfficientNetLite(LITE0, pretrained=False)
    size = backbone.input_spec.size
    free = 4 * len(images) * 3 * size**2
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, free))
    monkeypatch.setattr(inputs_module, "available_memory", lambda: free)
    monkeypatch.setattr(ImageInputs, "store", lambda inputs, device: replace(inputs, pixels=torch.zeros(5)))
    gpu, cpu = (ImageInputs(images, backbone, torch.device(name)) for name in ("cuda", "cpu"))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 0)
    assert gpu.in_memory().pixels is not None
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: free // 4)
    assert gpu.in_memory() is gpu, "the images of another split have their share already"
    assert cpu.in_memory() is cpu


def test_what_was_read_before_a_damaged_image_is_used_first() -> None:
    def batches() -> Iterator[int]:
        yield from (1, 2)
        raise InputError("3.png is empty (0 bytes).")

    used: list[int] = []
    with pytest.raises(InputError, match=r"3\.png"):
        for number in start_ahead(batches(), lambda batch: 10 * batch, 2):
            used.append(number)
    assert used == [10, 20]
    assert list(start_ahead(range(5), str, 2)) == list("01234") and not list(start_ahead([], str, 2))
