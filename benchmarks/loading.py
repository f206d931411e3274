"""Images per second of one core: labelgap's loader against a plain Pillow + DataLoader loop, from 500×375 JPEGs.

    python benchmarks/loading.py

The plain loop is what a simple training script does: open, convert to RGB, resize (bilinear), convert to float,
normalize, stack. labelgap returns bytes, which are normalized on the device. Both run in this process with one thread,
alternating. Time is processor time, so that other programs disturb little, and every ratio is the median of the ratios
of the rounds. The last ratio is the loader on shards of these images against the loader on the files, in a random
order.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from unittest.mock import patch

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from labelgap.data import Dataset as LabeledImages
from labelgap.data import FileImages, ImageSource, Split, decoding, load
from labelgap.data.loader import ImageLoader
from labelgap.data.transforms import Resize
from labelgap.data.writers.shards import ShardOptions, write_shards
from labelgap.labels import LabelTable

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.harness import HEIGHT, WIDTH, alternate, median_ratio, print_ratios, write_photos

COUNT: Final = 64
ROUNDS: Final = 15
BATCH: Final = 16
SIZES: Final = (448, 224)
PLAIN: Final = "plain Pillow + DataLoader"
MEAN: Final = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
STD: Final = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)


class PlainPhotos(Dataset[Tensor]):
    """Photos as a plain training script reads them."""

    def __init__(self, paths: list[Path], size: int) -> None:
        self.paths = paths
        self.size = size

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, row: int) -> Tensor:
        """Return one normalized photo, ``(3, size, size)`` float32."""
        with Image.open(self.paths[row]) as image:
            resized = image.convert("RGB").resize((self.size, self.size), Image.Resampling.BILINEAR)
        pixels = torch.from_numpy(np.array(resized)).permute(2, 0, 1).float().div(255)
        return (pixels - MEAN) / STD


def plain_pass(paths: list[Path], size: int) -> None:
    for _ in DataLoader(PlainPhotos(paths, size), batch_size=BATCH):
        pass


def our_pass(images: ImageSource, size: int) -> None:
    order = np.random.default_rng(0).permutation(len(images))
    for _ in ImageLoader(images, order, transform=Resize(size), batch_size=BATCH):
        pass


def pillow_pass(images: ImageSource, size: int) -> None:
    """Load as without simplejpeg."""
    with patch.object(decoding, "simplejpeg", None):
        our_pass(images, size)


def main() -> None:
    torch.set_num_threads(1)
    has_simplejpeg = find_spec("simplejpeg") is not None
    with tempfile.TemporaryDirectory() as name:
        paths = write_photos(Path(name), COUNT)
        images = FileImages(name, [path.name for path in paths])
        weight = sum(path.stat().st_size for path in paths) / COUNT / 1000
        print(f"{COUNT} JPEGs of {WIDTH}×{HEIGHT}, {weight:.0f} kB each; one thread, {ROUNDS} rounds in turns, medians")
        if not has_simplejpeg:
            print("simplejpeg is not installed (pip install 'labelgap[fast]'): Pillow decodes everything")
        ratios = {size: measured(paths, images, size, has_simplejpeg) for size in SIZES}
        shards = shard_ratio(images, Path(name) / "shards")
    print_ratios({**{f"loading_{size}": value for size, value in ratios.items()}, "shards_against_files": shards})


def shard_ratio(images: FileImages, folder: Path) -> float:
    """Return the speed of the loader on shards, against that on their files."""
    labels = LabelTable.from_dense(np.ones((len(images), 1)), ["photo"], images.names)
    write_shards(LabeledImages("photos", Split("train", images, labels)), folder, ShardOptions(images_per_shard=16))
    sharded = load("shards", folder).train.images
    size = SIZES[-1]
    works = {"files": lambda: our_pass(images, size), "shards": lambda: our_pass(sharded, size)}
    return median_ratio(alternate(works, rounds=ROUNDS), "shards")


def measured(paths: list[Path], images: FileImages, size: int, has_simplejpeg: bool) -> float:
    """Measure one size, print everything, and return the speed-up over the plain loop."""
    works: dict[str, Callable[[], None]] = {
        PLAIN: lambda: plain_pass(paths, size),
        "labelgap, Pillow decodes": lambda: pillow_pass(images, size),
    }
    if has_simplejpeg:
        works["labelgap, simplejpeg decodes"] = lambda: our_pass(images, size)
    taken = alternate(works, rounds=ROUNDS)
    print(f"\n{size} px{'':<34}images/s   ms/image   against plain")
    for name, values in taken.items():
        middle = statistics.median(processor for processor, _ in values) / COUNT
        print(f"  {name:<38}{1 / middle:>8.0f}{1000 * middle:>11.2f}{median_ratio(taken, name):>14.2f}×")
    return median_ratio(taken, "labelgap, simplejpeg decodes" if has_simplejpeg else "labelgap, Pillow decodes")


if __name__ == "__main__":
    main()
