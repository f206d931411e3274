"""A few photos, and their shards."""

from __future__ import annotations

from pathlib import Path

from tests.sample_photos import write_small_photos

from labelgap.data import load
from labelgap.data.writers.shards import ShardOptions, write_shards


def write_sample(photos: Path, shards: Path) -> None:
    """Write ten train and four val photos with a table, and shards of two images each."""
    write_small_photos(photos, 14)
    rows = [f"{n:02d}.jpg,{'val' if n > 9 else 'train'},{n % 2},{'' if n % 3 else 1}" for n in range(14)]
    (photos / "tags.csv").write_text("\n".join(["image,split,cat,dog", *rows]) + "\n")
    write_shards(load("csv", photos / "tags.csv"), shards, ShardOptions(images_per_shard=2))
