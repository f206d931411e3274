"""An album in which nobody labeled what is bright: a run with candidates of other classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image
from tests.review.sample_run import likely_rows, write_candidates

import labelgap as lg
from labelgap.review.database import FILE, create_database

IMAGES = 80
COPY = "copy.png"
"""A copy of the first image."""


def is_bright(name: str) -> bool:
    """Every fifth image is."""
    return name == COPY or int(Path(name).stem) % 5 == 0


def make_album(place: Path) -> Path:
    """Write images, a table of two other classes and a run with candidates; return the folder of the run."""
    random = np.random.default_rng(0)
    (place / "photos").mkdir(parents=True)
    rows = ["image,split,round,dark"]
    for number in range(IMAGES):
        name = f"{number:02}.png"
        color = random.integers(170, 220, 3) if is_bright(name) else random.integers(20, 120, 3)
        pixels = np.clip(color + random.normal(0, 25, (32, 32, 3)), 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(place / "photos" / name)
        cells = random.choice(["1", "0", ""], 2, p=[0.2, 0.2, 0.6])
        rows.append(f"{name},{'val' if number % 8 == 7 else 'train'},{','.join(cells)}")
    (place / "photos" / COPY).write_bytes((place / "photos" / "00.png").read_bytes())
    rows.append(f"{COPY},train,1,")
    (place / "tags.csv").write_text("\n".join(rows) + "\n")
    data = lg.load("csv", place / "tags.csv", images=place / "photos", duplicates="exact")
    lg.fit(data, "an", backbone="efficientnet-lite0", out=place / "run", epochs=1, device="cpu", quiet=True)
    write_candidates(place / "run" / "candidates.parquet", likely_rows(data, share=0.3), data)
    create_database(place / "run" / FILE, 32 * "5")  # its id decides the random orders
    return place / "run"
