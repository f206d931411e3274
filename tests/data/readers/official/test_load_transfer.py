"""The nine transfer sets, each written small in its published layout."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
from PIL import Image

from labelgap.core.errors import InputError, LabelGapError
from labelgap.core.torchvision import declared_operators
from labelgap.data import load
from labelgap.data.readers.transfer import TRANSFER_SETS
from labelgap.data.registry import describe_dataset
from labelgap.labels import ABSENT, PRESENT

Expected = dict[str, dict[str, str]]
"""Of train and test: image → class."""


def photo(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 6), (len(file.name), 0, 0)).save(file)


def lines(file: Path, texts: Iterable[str]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")


def aircraft(root: Path) -> Expected:
    folder, variants = root / "fgvc-aircraft-2013b/data", ["A300B4", "DC-3 x"]
    lines(folder / "variants.txt", variants)
    parts = {"trainval": ["0000001", "0000002", "0000003"], "test": ["0000009"]}
    for part, names in parts.items():
        lines(folder / f"images_variant_{part}.txt", (f"{name} {variants[int(name) % 2]}" for name in names))
    return {
        split: {f"fgvc-aircraft-2013b/data/images/{name}.jpg": variants[int(name) % 2] for name in parts[part]}
        for split, part in (("train", "trainval"), ("test", "test"))
    }


def caltech101(root: Path) -> Expected:
    folders = ("BACKGROUND_Google", "accordion")
    names = [
        f"caltech101/101_ObjectCategories/{each}/image_{number:04d}.jpg" for each in folders for number in range(1, 33)
    ]
    return {"": {name: name.split("/")[2] for name in names}}  # which are train is drawn


def cars(root: Path) -> Expected:
    folder = root / "stanford_cars"
    (folder / "devkit").mkdir(parents=True)
    names = np.array(["AM General Hummer", "Acura RL"], dtype=object)
    scipy.io.savemat(folder / "devkit/cars_meta.mat", {"class_names": names})
    kind = [("fname", object), ("class", "uint8")]
    files = {
        "devkit/cars_train_annos.mat": [("00001.jpg", 2), ("00002.jpg", 1)],
        "cars_test_annos_withlabels.mat": [("00001.jpg", 1), ("00002.jpg", 2)],
    }
    for file, rows in files.items():
        scipy.io.savemat(folder / file, {"annotations": np.array(rows, dtype=kind)})
    return {
        split: {f"stanford_cars/cars_{split}/{name}": str(names[number - 1]) for name, number in rows}
        for split, rows in zip(("train", "test"), files.values(), strict=True)
    }


def cub200(root: Path) -> Expected:
    folder = root / "CUB_200_2011"
    images = ["001.Albatross/a_1.jpg", "001.Albatross/a_2.jpg", "002.Auk/b_1.jpg", "002.Auk/b_2.jpg"]
    lines(folder / "images.txt", (f"{number} {name}" for number, name in enumerate(images, 1)))
    lines(folder / "classes.txt", ["1 001.Albatross", "2 002.Auk"])
    lines(folder / "image_class_labels.txt", ["1 1", "2 1", "3 2", "4 2"])
    lines(folder / "train_test_split.txt", ["1 1", "2 0", "3 1", "4 0"])
    parts: dict[str, Sequence[str]] = {"train": images[::2], "test": images[1::2]}
    return {
        split: {f"CUB_200_2011/images/{name}": name.split("/")[0] for name in names} for split, names in parts.items()
    }


def dtd(root: Path) -> Expected:
    parts = {part: [f"{each}/{each}_{part}.jpg" for each in ("banded", "woven")] for part in ("train", "val", "test")}
    for part, names in parts.items():
        lines(root / f"dtd/dtd/labels/{part}1.txt", names)
    found = {part: {f"dtd/dtd/images/{name}": name.split("/")[0] for name in names} for part, names in parts.items()}
    return {"train": found["train"] | found["val"], "test": found["test"]}


def flowers102(root: Path) -> Expected:
    datasets = torchvision_datasets()
    folder = root / "flowers-102"
    folder.mkdir(parents=True)
    scipy.io.savemat(folder / "setid.mat", {"trnid": [[1, 2]], "valid": [[3, 4]], "tstid": [[5, 6]]})
    scipy.io.savemat(folder / "imagelabels.mat", {"labels": [[1, 2, 1, 2, 1, 2]]})
    names = datasets.Flowers102.classes
    found = {number: (f"flowers-102/jpg/image_{number:05d}.jpg", names[(number - 1) % 2]) for number in range(1, 7)}
    return {"train": dict(found[number] for number in (1, 2, 3, 4)), "test": dict(found[number] for number in (5, 6))}


def food101(root: Path) -> Expected:
    parts = {
        part: {each: [f"{each}/{number}"] for each in ("apple_pie", "waffles")}
        for number, part in enumerate(("train", "test"))
    }
    for part, names in parts.items():
        lines(root / f"food-101/meta/{part}.json", [json.dumps(names)])
    return {
        part: {f"food-101/images/{name}.jpg": each for each, paths in names.items() for name in paths}
        for part, names in parts.items()
    }


def pets(root: Path) -> Expected:
    parts = {
        "trainval": ["Abyssinian_1 1 1 1", "basset_hound_7 2 2 1"],
        "test": ["Abyssinian_2 1 1 1", "basset_hound_8 2 2 1"],
    }
    for part, rows in parts.items():
        lines(root / f"oxford-iiit-pet/annotations/{part}.txt", rows)
    names = {"1": "Abyssinian", "2": "Basset Hound"}
    return {
        split: {f"oxford-iiit-pet/images/{row.split()[0]}.jpg": names[row.split()[1]] for row in parts[part]}
        for split, part in (("train", "trainval"), ("test", "test"))
    }


def sun397(root: Path) -> Expected:
    parts = {
        "train": ["/a/abbey/sun_a.jpg", "/a/apse/indoor/sun_b.jpg"],
        "test": ["/a/abbey/sun_c.jpg", "/a/apse/indoor/sun_d.jpg"],
    }
    for name, part in (("Training_01.txt", "train"), ("Testing_01.txt", "test")):
        lines(root / "SUN397" / name, parts[part])
    return {
        part: {f"SUN397{name}": "apse/indoor" if "apse" in name else "abbey" for name in names}
        for part, names in parts.items()
    }


WRITERS: dict[str, Callable[[Path], Expected]] = {
    each.__name__: each for each in (aircraft, caltech101, cars, cub200, dtd, flowers102, food101, pets, sun397)
}


def torchvision_datasets() -> Any:
    with declared_operators():
        return pytest.importorskip("torchvision.datasets", reason="torchvision is not installed")


def write(name: str, root: Path) -> Expected:
    expected = WRITERS[name](root)
    for part in expected.values():
        for image in part:
            photo(root / image)
    return expected


@pytest.fixture(autouse=True)
def own_flowers(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchvision compares the published files of Flowers-102 with their digests; these are others."""
    flowers = torchvision_datasets().Flowers102
    monkeypatch.setattr(
        flowers, "_file_dict", {key: (file, None) for key, (file, _) in vars(flowers)["_file_dict"].items()}
    )


def test_there_is_a_reader_for_every_set_of_the_paper() -> None:
    assert [each.name for each in TRANSFER_SETS] == list(WRITERS)


@pytest.mark.parametrize("name", WRITERS)
def test_images_and_classes_are_those_of_the_published_files(name: str, tmp_path: Path) -> None:
    expected = write(name, tmp_path)
    data = load(name, tmp_path)
    assert data.test is not None and data.val is None
    found = {
        split.name: {
            image: data.classes[int(np.flatnonzero(row == PRESENT)[0])]
            for image, row in zip(split.labels.images, split.labels.to_dense(), strict=True)
        }
        for split in data.splits
    }
    if name == "caltech101":
        assert [len(found["train"]), len(found["test"])] == [60, 4] and found["train"] | found["test"] == expected[""]
        again = load(name, tmp_path / "caltech101").train.labels.images
        assert again == data.train.labels.images, "the draw is the same each time"
    else:
        assert found == expected
    codes = np.concatenate([split.labels.to_dense() for split in data.splits])
    assert ((codes == PRESENT).sum(axis=1) == 1).all() and (
        (codes == ABSENT).sum(axis=1) == len(data.classes) - 1
    ).all()
    assert data.train.images[0].shape == (6, 8, 3)
    assert any("in the paper" in str(finding) for finding in data.findings), "the numbers are not the published ones"
    below = tmp_path / Path(next(each.folder for each in TRANSFER_SETS if each.name == name)).parts[0]
    if name != "cub200":  # without its name the folder is `cub`
        assert load(below).name == load(tmp_path).name == name
    assert load(name, below).classes == data.classes
    assert not describe_dataset(name).problems(tmp_path)


@pytest.mark.parametrize("name", WRITERS)
def test_what_is_missing_or_damaged_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(LabelGapError, match="missing"):
        load(name, tmp_path)
    expected = write(name, tmp_path)
    (tmp_path / next(iter(expected.get("test", expected.get("", {}))))).unlink()
    if name != "caltech101":  # it has no lists
        with pytest.raises(LabelGapError, match="does not exist"):
            load(name, tmp_path)
    first = next(tmp_path / each.folder / each.files.split()[0] for each in TRANSFER_SETS if each.name == name)
    if first.is_file():
        first.write_bytes(b"no list")
        with pytest.raises((InputError, LabelGapError)):
            load(name, tmp_path)


def test_a_table_beside_a_transfer_set_is_a_table(tmp_path: Path) -> None:
    write("food101", tmp_path)
    photo(tmp_path / "a.jpg")
    (tmp_path / "tags.csv").write_text("image,cat\na.jpg,1\n", encoding="utf-8")
    assert load(tmp_path / "tags.csv").name == "tags.csv"
