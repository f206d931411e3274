"""A few photos with a patchy table, and a review of them that needs no run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

import labelgap as lg
from labelgap.data.dataset import Dataset

TAGS = """image,split,cat,dog,owl
0.jpg,train,1,,
1.jpg,train,,1,0
2.jpg,train,0,,
3.jpg,train,,,1
4.jpg,train,,1,
5.jpg,val,1,,
6.jpg,val,,0,
7.jpg,test,,1,0
"""


def make_photos(place: Path) -> Dataset:
    """Eight photos with EXIF (a place on the map), and ``tags.csv``."""
    random = np.random.default_rng(0)
    (place / "photos").mkdir()
    for number in range(8):
        pixels = random.integers(0, 255, (9, 12, 3), dtype=np.uint8)
        picture = Image.fromarray(pixels).resize((360, 270), Image.Resampling.BICUBIC)
        exif = Image.Exif()
        exif[0x010F] = "SECRET CAMERA"
        exif.get_ifd(0x8825)[1] = "N"
        picture.save(place / "photos" / f"{number}.jpg", exif=exif)
    (place / "tags.csv").write_text(TAGS)
    return lg.load("csv", place / "tags.csv", images=place / "photos", duplicates="off")
