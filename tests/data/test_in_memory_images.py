"""Images in every form that a Python program holds them give the same scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.training.untrained_run import CLASSES, make_run

from labelgap.core.errors import InputError
from labelgap.data import ArrayImages, Split
from labelgap.data.in_memory import InMemoryImages, as_image_source
from labelgap.labels import LabelTable


def test_every_form_of_images_gives_the_same_scores(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    pixels = np.random.default_rng(0).integers(0, 256, (3, 50, 70, 3), dtype=np.uint8)
    expected = run.predict(ArrayImages(pixels), device="cpu")
    for number, image in enumerate(pixels):
        Image.fromarray(image).save(tmp_path / f"{number}.png")
    files = [tmp_path / f"{number}.png" for number in range(3)]
    first = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    table = LabelTable.from_dense(np.full((3, 3), -1), CLASSES)
    ways: dict[str, Any] = {
        "paths": files,
        "texts": [str(file) for file in files],
        "Pillow images": [Image.open(file) for file in files],
        "an array": pixels,
        "arrays": list(pixels),
        "floats": pixels / 255,
        "a tensor": first,
        "tensors": tuple(first),
        "a tensor of floats": first.float() / 255,
        "halves": (first.double() / 255),
        "a mixture": [pixels[0], first[1], Image.fromarray(pixels[2])],
        "a split": Split("test", ArrayImages(pixels), table),
        "a source": InMemoryImages(list(pixels)),
    }
    for name, way in ways.items():
        np.testing.assert_allclose(run.predict(way, device="cpu"), expected, atol=1e-6, err_msg=name)
    ones = [files[1], str(files[1]), Image.open(files[1]), pixels[1], first[1], first[1] / 255]
    for one in ones:
        np.testing.assert_allclose(run.predict(one, device="cpu"), expected[1:2], atol=1e-6)
    gray = pixels[..., 0]
    expected = run.predict(ArrayImages(gray), device="cpu")
    for way in (gray, gray[..., None], torch.from_numpy(gray)[:, None], [Image.fromarray(each) for each in gray]):
        np.testing.assert_allclose(run.predict(way, device="cpu"), expected, atol=1e-6)
    np.testing.assert_allclose(run.predict(gray[0], device="cpu"), expected[:1], atol=1e-6)
    source = InMemoryImages(list(pixels))
    chosen = source.select([2, 0])
    assert chosen.names == ("2", "0") and np.array_equal(chosen[0], pixels[2])
    assert source.fingerprint() != chosen.fingerprint() == InMemoryImages([pixels[2], pixels[0]]).fingerprint()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (7, "not int"),
        (b"bytes", "not bytes"),
        ([1, 2], "item 0 is a int"),
        (["a.jpg", np.zeros((4, 4), np.uint8)], "item 0 is a str"),
        (np.zeros((4, 4, 3), np.int64), "an array of int64"),
        (np.full((4, 4, 3), 200.0), "200 to 200"),
        (torch.full((3, 4, 4), -1.0), "from -1 to -1"),
        (torch.full((3, 4, 4), float("nan")), "from nan"),
        (torch.zeros(4, 4, 3), r"a tensor of shape \(4, 4, 3\)"),
        (torch.zeros(3, 4, 4, dtype=torch.int32), "a tensor of int32"),
        (np.zeros((2, 4, 4, 5), np.uint8), r"image 0 is an array of shape \(4, 4, 5\)"),
        (np.zeros((0, 4, 3), np.uint8), "shape"),
        (np.zeros(4, np.uint8), "shape"),
        (np.zeros((1, 2, 3, 4, 5), np.uint8), "shape"),
        (None, "not NoneType"),
    ],
)
def test_what_is_no_image_is_rejected_with_a_reason(given: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        as_image_source(given)
