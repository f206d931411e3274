"""Small data sets in exactly the published layouts of NUS-WIDE and CUB-200-2011, oddities included."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from PIL import Image

NUS_CONCEPTS: Final = ("airport", "animal", "beach", *(f"concept{number:02d}" for number in range(78)))
NUS_TRAIN: Final = [f"{'actor' if number > 5 else 'zoo'}\\{number:04d}_{9000 - number}.jpg" for number in range(12)]
NUS_TEST: Final = ["zoo\\0100_77.jpg", "actor\\0101_78.jpg", "actor\\0102_79.jpg"]
NUS_LABELS: Final = {name: {number % 3, 7 + number % 5} for number, name in enumerate([*NUS_TRAIN, *NUS_TEST])}
"""Numbers of the concepts of every image; two images have none."""
NUS_LABELS[NUS_TRAIN[4]] = NUS_LABELS[NUS_TEST[1]] = set()


def nuswide(folder: Path, images: str = "Flickr/{0}/{1}") -> Path:
    """Write NUS-WIDE: lists with Windows' separators and line ends, a file of labels per concept.

    Args:
        folder: where.
        images: the place of an image by the two parts of its path.
    """
    root = folder / "NUS-WIDE"
    lists = {"TrainImagelist": NUS_TRAIN, "TestImagelist": NUS_TEST}
    for name in ("ConceptsList", "ImageList", "Groundtruth/TrainTestLabels"):
        (root / name).mkdir(parents=True)
    (root / "ConceptsList" / "Concepts81.txt").write_text("".join(f"{name}\n" for name in NUS_CONCEPTS))
    for name, paths in lists.items():
        (root / "ImageList" / f"{name}.txt").write_text("".join(f"{path}\r\n" for path in paths), newline="")
    for column, concept in enumerate(NUS_CONCEPTS):
        for part, paths in (("Train", NUS_TRAIN), ("Test", NUS_TEST)):
            text = "".join(f"{int(column in NUS_LABELS[path])}\n" for path in paths)
            (root / "Groundtruth" / "TrainTestLabels" / f"Labels_{concept}_{part}.txt").write_text(text)
    for number, path in enumerate([*NUS_TRAIN, *NUS_TEST]):
        file = root / images.format(*path.split("\\"))
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (30, 20), (number * 10, 0, 0)).save(file)
    return root


CUB_ATTRIBUTES: Final = tuple(f"has_part_{number // 8}::value_{number % 8}_(or_more)" for number in range(312))
CUB_IMAGES: Final = [f"{1 + number // 4:03d}.Bird_{number // 4}/Bird_{number:04d}.jpg" for number in range(12)]
CUB_TEST: Final = {3, 7, 8, 11}
"""Numbers of the test images, from 1."""


def cub_label(image: int, attribute: int) -> tuple[int, int]:
    """Whether an attribute is present, and the certainty: those that are not visible are absent."""
    certainty = 1 + (image + attribute) % 4
    return int(certainty > 1 and (image * attribute) % 5 == 1), certainty


def cub(folder: Path, attributes: str = "attributes.txt") -> Path:
    """Write CUB-200-2011: ``attributes.txt`` is beside its folder, and some lines of labels have too many columns."""
    root = folder / "CUB_200_2011"
    (root / "attributes").mkdir(parents=True)
    numbered: dict[Path, Sequence[object]] = {
        root / "images.txt": CUB_IMAGES,
        root / "train_test_split.txt": [int(number not in CUB_TEST) for number in range(1, 13)],
        root / "bounding_boxes.txt": [f"{number}.0 2.0 10.0 8.0" for number in range(1, 13)],
        root / "attributes" / "certainties.txt": ["not visible", "guessing", "probably", "definitely"],
        folder / attributes: CUB_ATTRIBUTES,
    }
    for file, values in numbered.items():
        file.write_text("".join(f"{number} {value}\n" for number, value in enumerate(values, 1)))
    lines = []
    for image in range(1, 13):
        for attribute in range(1, 313):
            present, certainty = cub_label(image, attribute)
            line = f"{image} {attribute} {present} {certainty} {image + attribute / 7:.3f}"
            more = f"{image} {attribute} {present} 0 {certainty} 1.509"
            lines.append({(5, 10): f"{line} 0", (5, 11): more, (6, 1): f"{line} "}.get((image, attribute), line))
    (root / "attributes" / "image_attribute_labels.txt").write_text("\n".join(lines) + "\n")
    for number, name in enumerate(CUB_IMAGES, 1):
        (root / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 30), (number * 10, 0, 0)).save(root / "images" / name)
    return root
