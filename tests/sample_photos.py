"""A few photos with a table of tags that has gaps, made on the spot."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image


def write_color_photos(folder: str = "photos", table: str = "tags.csv", extra: str = "") -> None:
    """Write twelve photos, red or green, and a CSV; ``extra`` is a further column, the same number in every row."""
    Path(folder).mkdir()
    rows = ["image,split,red,green" + (f",{extra}" if extra else "")]
    for number in range(12):
        pixels = np.full((40, 50, 3), 20, dtype=np.uint8)
        pixels[..., number % 2] = 200 + number
        Image.fromarray(pixels).save(f"{folder}/{number}.jpg")
        split = ("train", "train", "val", "val", "test", "test")[number % 6]
        green = number % 2 if split != "train" else ""
        rows.append(f"{number}.jpg,{split},{1 - number % 2},{green}" + (",50" if extra else ""))
    Path(table).write_text("\n".join(rows) + "\n")


def write_small_photos(folder: Path, count: int = 30) -> None:
    """Write photos 00.jpg, 01.jpg … that are all different, also to a perceptual hash."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        pixels = np.random.default_rng(number).integers(0, 256, (6, 8, 3)).astype(np.uint8)
        photo = Image.fromarray(pixels).resize((64, 48), Image.Resampling.BICUBIC)
        photo.save(folder / f"{number:02d}.jpg")
