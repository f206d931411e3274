"""The page of images with their labels: self-contained, without metadata, the three states told apart."""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from labelgap.core.findings import Note
from labelgap.data import Dataset, FileImages, Split
from labelgap.labels import LabelTable
from labelgap.reporting.pages.contact_sheet import contact_sheet_images, write_contact_sheet

CLASSES = ("cat", "<script>alert(1)</script>", *(f"tag {number}" for number in range(12)))


@pytest.fixture
def data(tmp_path: Path) -> Dataset:
    """Thirty photos that know where they were taken."""
    random = np.random.default_rng(0)
    exif = Image.Exif()
    exif[0x010E] = "taken at home"
    names = [f"{number} & more.jpg" for number in range(30)]
    for name in names:
        pixels = random.integers(0, 255, (300, 400, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(tmp_path / name, exif=exif)
    codes = random.choice([1, 0, -1], (30, len(CLASSES)), p=[0.1, 0.3, 0.6])
    codes[0], codes[1] = 0, -1
    codes[0, 0] = 1
    table = LabelTable.from_dense(codes, CLASSES, names)
    return Dataset("my <tags>", Split("train", FileImages(tmp_path, names), table), findings=(Note("a rule & more"),))


def test_a_card_tells_the_three_states_apart(data: Dataset) -> None:
    known, unknown = contact_sheet_images([(data.train, 0), (data.train, 1)])
    assert known["present"] == ["cat"] and len(known["absent"]) == 8
    assert known["more_absent"] == 5 and known["unknown"] == 0
    assert unknown["present"] == unknown["absent"] == [] and unknown["unknown"] == len(CLASSES)
    assert known["thumbnail"].startswith("data:image/jpeg;base64,") and known["error"] == ""


def test_the_page_loads_nothing_and_thumbnails_have_no_metadata(data: Dataset, tmp_path: Path) -> None:
    text = write_contact_sheet(data, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<script" not in text and "&lt;script&gt;" in text and "my &lt;tags&gt;" in text
    assert "http://" not in text and "https://" not in text and "<link" not in text
    assert "Content-Security-Policy" in text and "a rule &amp; more" in text and "1 image with no label at all" in text
    thumbnails = re.findall(r"data:image/jpeg;base64,([^\"]+)", text)
    assert len(thumbnails) == 24 + 12 and text.count('class="sought"') == 12
    for found in thumbnails:
        blob = base64.b64decode(found)
        assert b"taken at home" not in blob
        with Image.open(io.BytesIO(blob)) as picture:
            assert max(picture.size) <= 224 and not picture.getexif()
    assert text == write_contact_sheet(data, tmp_path / "again.html").read_text(encoding="utf-8")


def test_images_can_be_left_out_and_one_that_cannot_be_read_says_so_in_its_place(data: Dataset, tmp_path: Path) -> None:
    text = write_contact_sheet(data, tmp_path / "page.html", images=False).read_text(encoding="utf-8")
    assert "data:image/" not in text and "0 &amp; more.jpg" in text and "thumbnails" not in text
    (tmp_path / "3 & more.jpg").write_bytes(b"")
    (card,) = contact_sheet_images([(data.train, 3)])
    assert card["thumbnail"] == "" and "3 & more.jpg" in card["error"]
