"""CUB-200-2011 and NUS-WIDE in their published layouts, oddities included."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.data.readers.refused import places, refused
from tests.data.sentences import sentences

from labelgap.core.errors import UnknownNameError
from labelgap.data import read_cub_certainty
from labelgap.data.dataset import Dataset
from labelgap.data.findings import ImagesSkipped
from labelgap.data.registry import load
from labelgap.labels import ABSENT, PRESENT, UNKNOWN, paper_split
from labelgap.studies.reproduce.tables import find_table, open_sources

NUS_CONCEPTS = ("airport", "animal", "beach", *(f"concept{number:02d}" for number in range(78)))
NUS_TRAIN = [f"{'actor' if number > 5 else 'zoo'}\\{number:04d}_{9000 - number}.jpg" for number in range(12)]
NUS_TEST = ["zoo\\0100_77.jpg", "actor\\0101_78.jpg", "actor\\0102_79.jpg"]
NUS_LABELS = {name: {number % 3, 7 + number % 5} for number, name in enumerate([*NUS_TRAIN, *NUS_TEST])}
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


CUB_ATTRIBUTES = tuple(f"has_part_{number // 8}::value_{number % 8}_(or_more)" for number in range(312))
CUB_IMAGES = [f"{1 + number // 4:03d}.Bird_{number // 4}/Bird_{number:04d}.jpg" for number in range(12)]
CUB_TEST = {3, 7, 8, 11}
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


def expected(image: int, attribute: int, at_least: int = 0) -> int:
    present, certainty = cub_label(image, attribute)
    certainty = 0 if (image, attribute) == (5, 11) else certainty  # its fourth column is no certainty
    return UNKNOWN if certainty < at_least else PRESENT if present else ABSENT


@pytest.mark.parametrize("attributes", ["attributes.txt", "CUB_200_2011/attributes/attributes.txt"])
def test_labels_images_and_split_are_the_published_ones(tmp_path: Path, attributes: str) -> None:
    cub(tmp_path, attributes)
    data = load(tmp_path)
    assert data.recipe["name"] == "cub"
    assert data.classes == CUB_ATTRIBUTES and data.test is not None and data.val is not None
    training = [name for number, name in enumerate(CUB_IMAGES, 1) if number not in CUB_TEST]
    train, val = paper_split(8)
    assert data.train.labels.images == tuple(training[row] for row in train)
    assert data.val.labels.images == tuple(training[row] for row in val)
    assert data.test.labels.images == tuple(name for number, name in enumerate(CUB_IMAGES, 1) if number in CUB_TEST)
    for split in data.splits:
        assert split.labels.complete and split.boxes is not None
        codes = split.labels.to_dense()
        for row, name in enumerate(split.labels.images):
            number = 1 + CUB_IMAGES.index(name)
            assert codes[row].tolist() == [expected(number, attribute) for attribute in range(1, 313)]
            assert abs(int(split.images[row][0, 0, 0]) - 10 * number) < 8
            mine = split.boxes.rows == row
            assert (split.boxes.corners[mine] == [number, 2, number + 9, 9]).all()
            assert split.boxes.classes[mine].tolist() == np.flatnonzero(codes[row] == PRESENT).tolist()
    assert all(part in " ".join(sentences(data)) for part in ("2 lines", "8 / 4"))


def test_labels_below_a_certainty_are_unknown_and_the_certainty_is_kept(tmp_path: Path) -> None:
    root = cub(tmp_path)
    for number, name in ((2, "guessing"), (4, "definitely")):
        data = load("cub", root, certainty=name, boxes=False)
        assert data.train.boxes is None
        for split in data.splits:
            codes = [
                [expected(1 + CUB_IMAGES.index(image), attribute, number) for attribute in range(1, 313)]
                for image in split.labels.images
            ]
            assert split.labels.to_dense().tolist() == codes
    with pytest.raises(UnknownNameError, match="'definitely'"):
        load("cub", root, certainty="definitly")
    boxes = root / "bounding_boxes.txt"
    boxes.write_text(boxes.read_text().replace("1 1.0 2.0", "1 -3.0 2.0"))
    certainties = root / "attributes" / "certainties.txt"
    certainties.write_text(certainties.read_text() + "400 quite sure\n")
    surest = load("cub", root, certainty="quite sure")
    assert surest.train.labels.counts().total[:2] == (0, 0), "400 is above all others"
    found = load("cub", root).train.boxes
    assert found is not None and found.corners[0].tolist() == [0, 2, 6, 9], "inside the image"
    images, certainty = read_cub_certainty(tmp_path)
    assert list(images) == CUB_IMAGES and certainty[4, 10] == 0
    certainty[4, 10] = cub_label(5, 11)[1]
    assert (certainty == [[cub_label(image, a)[1] for a in range(1, 313)] for image in range(1, 13)]).all()


def test_everything_that_is_wrong_is_told_at_once_with_file_and_line(tmp_path: Path) -> None:
    root = cub(tmp_path)
    file = root / "attributes" / "image_attribute_labels.txt"
    lines = file.read_text().splitlines()
    lines[3], lines[20], lines[30], lines[40] = "1 400 0 1 2.0", "1 21 2 9 1.0", "1 31 0", "99 41 0 1 1.0"
    lines[50] = lines[49]
    file.write_text("\n".join(lines[:3000]))
    split = (root / "train_test_split.txt").read_text().splitlines()
    (root / "train_test_split.txt").write_text("\n".join([*split[:10], "10 1", "77 1", "11 5"]))
    (root / "bounding_boxes.txt").write_text("1 0.0 0.0 nan 4.0\n2 1.0 x 3.0 4.0\n")
    where = "attributes/image_attribute_labels.txt"
    expected = [*(f"{where}, line {line}" for line in (31, 41, 4, 21, 21, 51)), where]
    expected += [*(f"train_test_split.txt, line {line}" for line in (11, 12)), "train_test_split.txt"]
    expected += ["train_test_split.txt, line 13", *(f"bounding_boxes.txt, line {line}" for line in (2, 1))]
    found = places("cub", root)
    assert {*found} == {*expected, "bounding_boxes.txt"} and found.count(f"{where}, line 21") == 2
    (tmp_path / "attributes.txt").write_text("\n".join(["1 a", "2 b", "3 a", "2 c", "d"]))
    (root / "images.txt").unlink()
    (root / "images.txt").write_text("")
    above = str(tmp_path / "attributes.txt")
    assert {*places("cub", root)} >= {*(f"{above}, line {line}" for line in (3, 4, 5)), "images.txt"}


def test_missing_files_and_another_version_are_told(tmp_path: Path) -> None:
    root = cub(tmp_path)
    for number in (0, 2):  # of train and of test
        (root / "images" / CUB_IMAGES[number]).unlink()
    lost = [f"images/{CUB_IMAGES[number]}" for number in (0, 2)]
    assert places("cub", root) == lost
    (tmp_path / "attributes.txt").write_text("\n".join(f"{number} a{number}" for number in range(1, 289)))
    (root / "bounding_boxes.txt").unlink()
    assert places("cub", root) == [str(tmp_path / "attributes.txt"), *lost]
    (tmp_path / "attributes.txt").unlink()
    (root / "attributes" / "certainties.txt").unlink()
    assert places("cub", root) == ["attributes/attributes.txt", "attributes/certainties.txt", *lost]
    (root / "train_test_split.txt").unlink()
    assert "train_test_split.txt" in places("cub", root)


FLAT = "images/{1}"


def check_rows(data: Dataset) -> None:
    """Every row has the labels and the pixels of its image."""
    numbers = {name.replace("\\", "/"): number for number, name in enumerate([*NUS_TRAIN, *NUS_TEST])}
    labels = {name.replace("\\", "/"): each for name, each in NUS_LABELS.items()}
    for split in data.splits:
        assert split.labels.complete
        for row, name in enumerate(split.labels.images):
            assert {*np.flatnonzero(split.labels.to_dense()[row] == PRESENT).tolist()} == labels[name]
            assert abs(int(split.images[row][0, 0, 0]) - 10 * numbers[name]) < 8


@pytest.mark.parametrize("images", ["Flickr/{0}/{1}", FLAT])
def test_labels_and_images_belong_to_the_lists_and_val_is_the_papers_cut(tmp_path: Path, images: str) -> None:
    root = nuswide(tmp_path, images)
    data = load(tmp_path)
    assert data.recipe["name"] == "nuswide" and data.classes == NUS_CONCEPTS
    check_rows(data)
    train, val = paper_split(len(NUS_TRAIN))
    names = [name.replace("\\", "/") for name in NUS_TRAIN]
    assert data.val is not None and data.test is not None
    assert data.train.labels.images == tuple(names[row] for row in train)
    assert data.val.labels.images == tuple(names[row] for row in val)
    assert data.test.labels.images == tuple(name.replace("\\", "/") for name in NUS_TEST)
    assert all(part in " ".join(sentences(data)) for part in ("12 / 3", "161,789 / 107,859", "--unlabeled drop"))
    dropped = load("nuswide", root, unlabeled="drop")
    check_rows(dropped)
    assert [len(split) for split in dropped.splits] == [9, 2, 2]
    assert dropped.train.origin is not None and dropped.train.origin.tolist() == paper_split(11)[0].tolist()


def test_images_that_flickr_lost_are_all_named_or_left_out(tmp_path: Path) -> None:
    root = nuswide(tmp_path)
    lost = "x" * 300  # a folder that no disk takes
    file = root / "ImageList" / "TrainImagelist.txt"
    file.write_text(file.read_text().replace(NUS_TRAIN[2], f"{lost}\\2.jpg"))
    photos = (root / "Flickr").rename(tmp_path / "photos")
    assert "--images FOLDER" in " ".join(refused("nuswide", root))
    for name in (NUS_TRAIN[7], NUS_TEST[0]):
        (photos / name.replace("\\", "/")).unlink()
    assert len(refused("nuswide", root, images=photos)) == 3
    data = load("nuswide", root, images=photos, on_bad_image="skip")
    check_rows(data)
    assert [len(split) for split in data.splits] == [8, 2, 2]
    assert [len(each.names) for each in data.findings if isinstance(each, ImagesSkipped)] == [3]
    for name in ("zoo", "actor"):
        shutil.rmtree(photos / name)
    assert len(refused("nuswide", root, images=photos, on_bad_image="skip")) == 15


def test_a_flat_folder_with_one_file_for_two_images_is_refused(tmp_path: Path) -> None:
    root = nuswide(tmp_path, FLAT)
    names = [*NUS_TEST[:2], NUS_TRAIN[0].replace("zoo", "cat")]
    (root / "ImageList" / "TestImagelist.txt").write_text("\n".join(names))
    assert places("nuswide", root) == ["images/0000_9000.jpg"]


def test_everything_that_is_wrong_with_nuswide_is_told_at_once(tmp_path: Path) -> None:
    root = nuswide(tmp_path)
    labels, lists = root / "Groundtruth" / "TrainTestLabels", root / "ImageList"
    blanks = (labels / "Labels_airport_Test.txt").read_bytes().replace(b"\n", b"\v\n")
    (labels / "Labels_airport_Test.txt").write_bytes(blanks)
    check_rows(load("nuswide", root))  # not one present label becomes absent
    (labels / "Labels_airport_Train.txt").unlink()
    (labels / "Labels_animal_Train.txt").write_text("0\n1\n1\n0\n")
    text = (labels / "Labels_beach_Test.txt").read_text().splitlines()
    (labels / "Labels_beach_Test.txt").write_text("\n".join([text[0], "x", text[2]]))
    (labels / "Labels_zebras_Train.txt").write_text("0\n" * 12)
    (root / "ConceptsList" / "Concepts81.txt").write_text("\n".join([*NUS_CONCEPTS, "beach"]))
    with (lists / "TestImagelist.txt").open("a") as file:
        file.write(f"{NUS_TEST[0]}\n{NUS_TRAIN[0]}\n..\\..\\secret.jpg\n")
    for name in set(NUS_CONCEPTS) - {"beach"}:
        (labels / f"Labels_{name}_Test.txt").write_text("0\n" * 6)
    where = "Groundtruth/TrainTestLabels/Labels_"
    expected = ["ConceptsList/Concepts81.txt, line 82"]
    expected += [f"ImageList/TestImagelist.txt, line {line}" for line in (4, 6, 5)]
    expected += [f"{where}zebras_Train.txt", f"{where}airport_Train.txt", f"{where}animal_Train.txt"]
    expected += [f"{where}beach_Test.txt, line 2", f"{where}beach_Test.txt"]
    assert places("nuswide", root) == expected
    (root / "Flickr" / "zoo" / "0001_8999.jpg").unlink()
    assert places("nuswide", root) == [*expected, "Flickr/zoo/0001_8999.jpg"]
    assert places("nuswide", root, on_bad_image="skip") == expected
    (root / "ConceptsList" / "Concepts81.txt").write_text("\n".join(NUS_CONCEPTS[:21]))
    assert "ConceptsList/Concepts81.txt" in places("nuswide", root), "another version"
    assert "ImageList/TrainImagelist.txt" in places("nuswide", labels)


def test_a_table_of_a_paper_reads_its_version_and_a_csv_still_will_do(tmp_path: Path) -> None:
    root = nuswide(tmp_path)
    for path, paper, sizes in ((tmp_path, "two-way-nus", [9, 2, 2]), (root, "cole-table1", [10, 2, 3])):
        (source,) = open_sources([f"nuswide={path}"], find_table(paper)).values()
        assert [len(split) for split in source["images"][0].splits] == sizes
    rows = ["image,split,a,b", "Flickr/zoo/0000_9000.jpg,train,1,0", "Flickr/zoo/0001_8999.jpg,test,0,1"]
    (root / "tags.csv").write_text("\n".join(rows))
    (source,) = open_sources([f"nuswide={root / 'tags.csv'}"], find_table("cole-table1")).values()
    assert source["images"][0].classes == ("a", "b")
    for part, names in (("train", NUS_TRAIN), ("val", NUS_TEST)):
        labels, paths = np.eye(len(names), 3), np.array([name.replace("\\", "/") for name in names])
        for kind, values in (("images", paths), ("labels", labels), ("labels_obs", labels)):
            np.save(root / "Flickr" / f"formatted_{part}_{kind}.npy", values)
    (source,) = open_sources([f"nuswide={root / 'Flickr'}"], find_table("cole-table1")).values()
    assert source["images"][0].recipe["name"] == "spml"
