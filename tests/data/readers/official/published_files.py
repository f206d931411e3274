"""Small data sets in exactly the published layouts of NUS-WIDE and CUB-200-2011, oddities included."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from PIL import Image

__all__ = ["NUS_CONCEPTS", "NUS_LABELS", "NUS_TEST", "NUS_TRAIN", "nuswide"]

NUS_CONCEPTS: Final = ("airport", "animal", "beach", *(f"concept{number:02d}" for number in range(78)))
NUS_TRAIN: Final = [f"{'actor' if number > 5 else 'zoo'}\\{number:04d}_{9000 - number}.jpg" for number in range(12)]
NUS_TEST: Final = ["zoo\\0100_77.jpg", "actor\\0101_78.jpg", "actor\\0102_79.jpg"]
NUS_LABELS: Final = {name: {number % 3, 7 + number % 5} for number, name in enumerate([*NUS_TRAIN, *NUS_TEST])}
"""Numbers of the concepts of every image; two images have none."""
NUS_LABELS[NUS_TRAIN[4]] = NUS_LABELS[NUS_TEST[1]] = set()


def nuswide(folder: Path, images: str = "Flickr/{0}/{1}", all_labels: bool = False) -> Path:
    """Write NUS-WIDE: lists with Windows' separators and line ends, a file of labels per concept.

    Args:
        folder: where.
        images: the place of an image by the two parts of its path.
        all_labels: whether there is ``AllLabels`` instead of ``TrainTestLabels``.
    """
    root = folder / "NUS-WIDE"
    everything = sorted([*NUS_TRAIN, *NUS_TEST])
    lists = {"Imagelist": everything, "TrainImagelist": NUS_TRAIN, "TestImagelist": NUS_TEST}
    for name in ("ConceptsList", "ImageList", "Groundtruth/AllLabels" if all_labels else "Groundtruth/TrainTestLabels"):
        (root / name).mkdir(parents=True)
    (root / "ConceptsList" / "Concepts81.txt").write_text("".join(f"{name}\n" for name in NUS_CONCEPTS))
    for name, paths in lists.items():
        (root / "ImageList" / f"{name}.txt").write_text("".join(f"{path}\r\n" for path in paths), newline="")
    for column, concept in enumerate(NUS_CONCEPTS):
        parts = {"": everything} if all_labels else {"_Train": NUS_TRAIN, "_Test": NUS_TEST}
        for part, paths in parts.items():
            text = "".join(f"{int(column in NUS_LABELS[path])}\n" for path in paths)
            where = "AllLabels" if all_labels else "TrainTestLabels"
            (root / "Groundtruth" / where / f"Labels_{concept}{part}.txt").write_text(text)
    for number, path in enumerate([*NUS_TRAIN, *NUS_TEST]):
        file = root / images.format(*path.split("\\"))
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (30, 20), (number * 10, 0, 0)).save(file)
    return root
