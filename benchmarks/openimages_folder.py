"""A synthetic folder in the layout of Open Images V3, with images of handwritten digits and gaps as people leave them.

    python benchmarks/openimages_folder.py OUT                  # 20,000 images, 40 classes, seconds

A class is a digit of a size and a direction ("large lying 3"), long-tailed. As in Open Images a classifier proposes
labels for an image, and people verify some of them: a present label is proposed more often than not, the absent ones
that are proposed are those that are easily confused (the digit in another size or direction, another digit of the
same), and rare classes are verified less often. All other labels are unknown. Of val and test every proposal is
verified.

``truth-SPLIT.npz`` is not of Open Images: all labels of the split, for measuring what known labels do not show.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from labelgap.data.readers.digits import ink_box, render_digits, sklearn_digits

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.harness import parse_arguments

FORMS: Final = ("large upright", "large lying", "small upright", "small lying")
CLASSES: Final = [f"{form} {digit}" for digit in range(10) for form in FORMS]
SIDE: Final = 48
CELL: Final = SIDE // 2
SHARES: Final = {"train": 0.7, "validation": 0.1, "test": 0.2}
PROPOSED, CONFUSED = 0.7, 4
"""How often a present label is proposed, and how many absent ones are for each image."""


@dataclass(frozen=True)
class Scenes:
    """Images ``(N, 48, 48)``; class ``(N, 4)`` and box ``(N, 4, 4)`` of the digit in each quarter, −1 for none."""

    pixels: NDArray[np.uint8]
    classes: NDArray[np.int64]
    boxes: NDArray[np.int64]

    @property
    def truth(self) -> NDArray[np.bool_]:
        """All labels ``(N, K)``."""
        labels = np.zeros((len(self.pixels), len(CLASSES) + 1), dtype=bool)
        np.put_along_axis(labels, self.classes, values=True, axis=1)
        return labels[:, :-1]


def class_frequencies() -> NDArray[np.float64]:
    """Long-tailed, in a fixed random order of the classes."""
    tail = 1 / (np.arange(len(CLASSES)) + 5.0)
    shares: NDArray[np.float64] = (tail / tail.sum())[np.random.default_rng(7).permutation(len(CLASSES))]
    return shares


def draw_scenes(count: int, random: np.random.Generator) -> Scenes:
    """Draw one to four digits in each image."""
    cells, digits = sklearn_digits()
    drawn = random.choice(len(CLASSES), size=(count, 4), p=class_frequencies())
    drawn[random.random((count, 4)).argsort(axis=1).argsort(axis=1) >= random.integers(1, 5, (count, 1))] = -1
    row, quarter = np.nonzero(drawn >= 0)
    kind = drawn[row, quarter]
    samples = [np.flatnonzero(digits == digit) for digit in range(10)]
    chosen = np.array([samples[each // 4][random.integers(150)] for each in kind.tolist()], dtype=np.int64)
    pixels = random.integers(0, 70, (count, SIDE, SIDE), dtype=np.uint8)
    boxes = np.zeros((count, 4, 4), dtype=np.int64)
    for form in range(4):
        own = np.flatnonzero(kind % 4 == form)
        ink = render_digits(cells[chosen[own]], 18 if form < 2 else 10, 0, np.full(len(own), 28))[:, :CELL, :CELL]
        ink = np.rot90(ink, axes=(1, 2)) if form % 2 else ink
        side = ink.shape[1]
        place = random.integers(0, CELL - side + 1, (len(own), 2))
        place += np.stack([quarter[own] % 2, quarter[own] // 2], axis=1) * CELL
        boxes[row[own], quarter[own]] = ink_box(ink)[0] + np.tile(place, 2)
        for number, (left, top) in enumerate(place.tolist()):
            part = pixels[row[own[number]], top : top + side, left : left + side]
            np.maximum(part, ink[number], out=part)
    return Scenes(pixels, drawn, boxes)


def propose(truth: NDArray[np.bool_], random: np.random.Generator) -> NDArray[np.bool_]:
    """Return the labels that a classifier proposes: most of the present ones, and what is confused with them."""
    number = np.arange(len(CLASSES))
    alike = (number[:, None] // 4 == number // 4) | (number[:, None] % 4 == number % 4)
    weight = (truth @ alike + 0.1) * ~truth
    absent = np.zeros_like(truth)
    order = np.argsort(-np.log(random.random(truth.shape)) / np.maximum(weight, 1e-9), axis=1)[:, :CONFUSED]
    np.put_along_axis(absent, order, values=True, axis=1)
    return (truth & (random.random(truth.shape) < PROPOSED)) | (absent & ~truth)


def write_folder(root: Path, images: int = 20_000, seed: int = 0) -> Path:
    """Write the folder, and return it."""
    random, base = np.random.default_rng(seed), root / "2017_11"
    base.mkdir(parents=True)
    ids = [f"/m/0d{number:03d}" for number in range(len(CLASSES))]
    descriptions = [*zip(ids, CLASSES, strict=True), ("/m/0digit", "Digit")]
    (base / "class-descriptions.csv").write_text("".join(f'{each},"{name}"\n' for each, name in descriptions))
    (base / "classes-trainable.txt").write_text("".join(f"{each}\n" for each in ids))
    (base / "classes-bbox.txt").write_text("".join(f"{each}\n" for each in ids[:20]))
    often = class_frequencies() ** 0.5
    names = [f"{name:016x}" for name in random.choice(2**62, size=images, replace=False).tolist()]
    for split, share in SHARES.items():
        count = round(share * images)
        own, names = sorted(names[:count]), names[count:]
        scenes = draw_scenes(count, random)
        truth = scenes.truth
        proposed = propose(truth, random)
        rate = 0.6 * often / often.max() if split == "train" else np.ones(len(CLASSES))
        known = proposed & (random.random(truth.shape) < rate)
        _write_split(base / split, split, own, ids, scenes, proposed, known, random)
        np.savez(root / f"truth-{split}.npz", images=np.array(own), labels=truth, classes=np.array(CLASSES))
        (root / split).mkdir()
        for name, pixels in zip(own, scenes.pixels, strict=True):
            Image.fromarray(pixels).save(root / split / f"{name}.jpg", quality=92)
    return root


def _write_split(
    folder: Path,
    split: str,
    names: list[str],
    ids: list[str],
    scenes: Scenes,
    proposed: NDArray[np.bool_],
    known: NDArray[np.bool_],
    random: np.random.Generator,
) -> None:
    folder.mkdir()
    truth = scenes.truth
    with (folder / "images.csv").open("w") as file:
        file.write("ImageID,Subset,OriginalURL,License,Author,Title\n")
        file.writelines(f'{name},{split},https://example.org/{name}.jpg,,"Doe, J.","a ""digit"""\n' for name in names)
    with (folder / "annotations-human.csv").open("w") as file:
        file.write("ImageID,Source,LabelName,Confidence\n")
        file.writelines(
            f"{names[row]},verification,{ids[column]},{int(truth[row, column])}\n"
            for row, column in np.argwhere(known).tolist()
        )
        file.writelines(f"{name},crowdsource-verification,/m/0digit,1\n" for name in names[::10])
    with (folder / "annotations-machine.csv").open("w") as file:
        file.write("ImageID,Source,LabelName,Confidence\n")
        file.writelines(
            f"{names[row]},machine,{ids[column]},{0.5 + 0.3 * truth[row, column] + 0.2 * random.random():.1f}\n"
            for row, column in np.argwhere(proposed).tolist()
        )
    with (folder / "annotations-human-bbox.csv").open("w") as file:
        file.write("ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax,IsOccluded,IsTruncated,IsGroupOf\n")
        for row, quarter in np.argwhere(scenes.classes >= 0).tolist():
            kind = scenes.classes[row, quarter]
            if kind < 20 and known[row, kind]:
                left, top, right, bottom = (scenes.boxes[row, quarter] + [0, 0, 1, 1]) / SIDE
                edges = f"{left:.6f},{right:.6f},{top:.6f},{bottom:.6f}"
                file.write(f"{names[row]},xclick,{ids[kind]},1,{edges},0,0,0\n")


def main() -> None:
    given = parse_arguments(__doc__, "out", images=20_000)
    print(write_folder(given.out, given.images))


if __name__ == "__main__":
    main()
