"""CUB-200-2011 in its published layout: labels with certainties, lines with too many columns, boxes, the split."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.data.readers.official.published_files import CUB_ATTRIBUTES, CUB_IMAGES, CUB_TEST, cub, cub_label
from tests.data.readers.refused import places
from tests.data.sentences import sentences

from labelgap.core.errors import UnknownNameError
from labelgap.data import read_cub_certainty
from labelgap.data.opening import load
from labelgap.labels import ABSENT, PRESENT, UNKNOWN, paper_split


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
