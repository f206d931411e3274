"""VOC in the devkit's own layout, oddities included, and the real sample where it is to be had."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.data.readers.refused import places, refused

from labelgap.core.errors import ProblemsError
from labelgap.data.dataset import Dataset
from labelgap.data.findings import ImagesNotListed
from labelgap.data.registry import load
from labelgap.labels import ABSENT, PRESENT, LabelTable, paper_split

CLASSES = ("aeroplane", "person", "train")
OBJECT = """\t<object>
\t\t<name>{name}</name>
\t\t<pose>Unspecified</pose>
\t\t<bndbox>
\t\t\t<xmax>{box[2]}</xmax>
\t\t\t<xmin>{box[0]}</xmin>
\t\t\t<ymax>{box[3]}</ymax>
\t\t\t<ymin>{box[1]}</ymin>
\t\t</bndbox>
{more}\t</object>
"""
CORNERS = "<xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax>"
PART = f"\t\t<part>\n\t\t\t<name>head</name>\n\t\t\t<bndbox>{CORNERS}</bndbox>\n\t\t</part>\n"


def codes_of(number: int) -> dict[str, int]:
    """The devkit's code of every class in image ``number``: 1, 0 (difficult) or -1."""
    return {"aeroplane": (1, -1, 0)[number % 3], "person": (-1, 1)[number % 2], "train": (0, 1, -1, -1)[number % 4]}


def devkit(folder: Path, year: str, splits: dict[str, list[str]]) -> Path:
    """Write VOCdevkit/VOC{year} with files as the organisers wrote them."""
    root = folder / "VOCdevkit" / f"VOC{year}"
    for name in ("ImageSets/Main", "JPEGImages", "Annotations", "ImageSets/Layout"):
        (root / name).mkdir(parents=True)
    number_of = {image: number for number, image in enumerate(sorted({i for each in splits.values() for i in each}))}
    for split, images in splits.items():
        (root / "ImageSets" / "Main" / f"{split}.txt").write_text("".join(f"{image}\n" for image in images))
        for name in CLASSES:
            lines = [f"{image} {codes_of(number_of[image])[name]:2d}\n" for image in images]
            (root / "ImageSets" / "Main" / f"{name}_{split}.txt").write_text("".join(lines))
    for image, number in number_of.items():
        Image.new("RGB", (50, 40), (number, 3, 5)).save(root / "JPEGImages" / f"{image}.jpg")
        (root / "Annotations" / f"{image}.xml").write_text(annotation(number))
    return root


def annotation(number: int) -> str:
    objects, box = "", (1, 2, "45.700000762939453", 40)
    for name, code in codes_of(number).items():
        if code != ABSENT - 1:
            more = f"\t\t<difficult>{int(code == ABSENT)}</difficult>\n" if code == ABSENT or number % 2 else ""
            objects += OBJECT.format(name=name, box=box, more=more + PART * (name == "person"))
    return f"<annotation>\n\t<size><width>50</width></size>\n{objects}</annotation>"


def labels_of(data: Dataset) -> dict[str, list[int]]:
    table = LabelTable.concatenate([split.evaluation_labels for split in data.splits])
    return dict(zip(table.images, table.to_dense().tolist(), strict=True))


@pytest.fixture
def voc2012(tmp_path: Path) -> Path:
    train = [f"2008_{number:06d}" for number in (7, 3, 12, 1, 9, 30, 22, 15, 8, 2)]
    return devkit(tmp_path, "2012", {"train": train, "val": ["2009_000004", "2009_000001"]})


@pytest.mark.parametrize("start", ["", "VOCdevkit", "VOCdevkit/VOC2012"])
def test_a_devkit_is_recognized_wherever_one_points(voc2012: Path, start: str) -> None:
    data = load(voc2012.parent.parent / start)
    assert data.name == "voc2012" and [len(split) for split in data.splits] == [8, 2, 2] and data.classes == CLASSES


def test_codes_pixels_and_boxes_of_every_row_are_those_of_its_image(voc2012: Path) -> None:
    data = load("voc2012", voc2012)
    number_of = {path.stem: row for row, path in enumerate(sorted((voc2012 / "JPEGImages").iterdir()))}
    for split in data.splits:
        boxes, labels = split.boxes, split.labels.to_dense()
        assert split.labels.complete and boxes is not None and boxes.difficult is not None
        for row, image in enumerate(split.labels.images):
            theirs = list(codes_of(number_of[image]).values())
            assert labels[row].tolist() == [PRESENT if code == PRESENT else ABSENT for code in theirs]
            assert split.images[row].shape == (40, 50, 3)
            assert abs(int(split.images[row][0, 0, 0]) - number_of[image]) <= 3
            for difficult, code in ((True, ABSENT), (False, PRESENT)):
                marked = boxes.classes[(boxes.rows == row) & (boxes.difficult == difficult)]
                assert marked.tolist() == [column for column, each in enumerate(theirs) if each == code]
        assert np.allclose(boxes.corners, [0, 1, 44.700000762939453, 39]), "counted from 0"
    assert load("voc2012", voc2012, boxes=False).train.boxes is None


def test_train_and_val_are_the_papers_cut_of_sorted_rows_and_know_their_origin(voc2012: Path) -> None:
    data = load("voc2012", voc2012)
    images = sorted(f"2008_{number:06d}" for number in (7, 3, 12, 1, 9, 30, 22, 15, 8, 2))
    train, val = paper_split(10)
    assert data.train.labels.images == tuple(images[row] for row in train)
    assert data.val is not None and data.val.labels.images == tuple(images[row] for row in val)
    assert data.train.origin is not None and data.train.origin.tolist() == train.tolist()
    assert data.test is not None and data.test.labels.images == ("2009_000001", "2009_000004")
    whole = LabelTable.concatenate([data.train.labels, data.val.labels]).select(
        np.argsort(np.concatenate([train, val]))
    )
    assert data.observe(positives=1).train.labels == whole.observe(positives=1).select(train)


def test_voc2007_tests_on_its_test_list_and_without_it_on_val(tmp_path: Path, voc2012: Path) -> None:
    lists = {"train": ["000005", "000007"], "val": ["000009"]}
    full = {**lists, "trainval": ["000005", "000007", "000009"], "test": ["000001"]}
    data = load(devkit(tmp_path / "full", "2007", full))
    assert sorted([*data.train.labels.images, *data.splits[1].labels.images]) == full["trainval"]
    assert data.splits[-1].labels.images == ("000001",) and data.name == "voc2007"
    part = devkit(tmp_path / "part", "2007", lists)
    assert load("voc2007", part).splits[-1].labels.images == ("000009",)
    part.rename(voc2012.parent / "VOC2007")
    data = load(voc2012.parent)
    assert data.name == "voc2012" and f"voc2007={voc2012.parent}" in str(data.findings[0])


def test_everything_that_is_wrong_with_lists_photos_and_boxes_is_told_at_once_and_once(voc2012: Path) -> None:
    main, annotations = voc2012 / "ImageSets" / "Main", voc2012 / "Annotations"
    text = (main / "person_train.txt").read_text()
    lines = text.splitlines()
    wrong = [lines[0].replace("1", "7"), *lines[2:], lines[2], "x", "2008_000099 2"]
    (main / "person_train.txt").write_text("\n".join(wrong))
    file = "ImageSets/Main/person_train.txt"
    expected = [f"{file}, line {line}" for line in (1, 10, 11, 12)]
    assert places("voc2012", voc2012) == [*expected, file]
    (main / "person_train.txt").write_text(text.replace("2008_000003", "2008_00003"))
    (main / "train.txt").write_text("2008_000098\n2008_000099\n" + (main / "train.txt").read_text()[12:])
    (main / "aeroplane_val.txt").write_text("")
    (main / "train_val.txt").unlink()
    (voc2012 / "JPEGImages" / "2008_000012.jpg").unlink()
    (annotations / "2008_000001.xml").write_text("<annotation><object>")
    names = ("train", "person", "other", "person", "person")
    objects = [OBJECT.format(name=name, box=(1, 2, 3, 4), more="") for name in names]
    objects[1] = objects[1].replace("<xmin>1</xmin>", "")
    objects[3] = objects[3].replace("<ymax>4<", "<ymax>four<")
    objects[4] = objects[4].replace("bndbox", "box")
    (annotations / "2009_000004.xml").write_text(f"<annotation>{''.join(objects)}</annotation>")
    lists = ["train.txt, line 1", "person_train.txt, line 2", "aeroplane_val.txt"]
    others = ["ImageSets/Main", "JPEGImages/2008_000012.jpg", "Annotations/2008_000001.xml"]
    expected = [*(f"ImageSets/Main/{each}" for each in lists), *others, *["Annotations/2009_000004.xml"] * 3]
    assert places("voc2012", voc2012) == expected
    found = refused("voc2012", voc2012)
    assert [each.split(": ")[1] for each in found[-3:]] == [f"object {place} (person)" for place in (2, 4, 5)]
    for path in main.glob("*_val.txt"):
        path.unlink()
    assert "ImageSets/Main" in places("voc2012", voc2012)
    nothing = ["ImageSets/Main/*_train.txt", "ImageSets/Main/*_val.txt", "JPEGImages/*.jpg"]
    assert places("voc2012", annotations) == nothing


def test_a_list_of_a_part_of_the_images_is_used_with_a_warning(voc2012: Path) -> None:
    main, whole = voc2012 / "ImageSets" / "Main", load("voc2012", voc2012)
    (main / "train.txt").write_text("2008_000012\n2008_000003\n2008_000030 \n2008_000008\n2008_000009\n")
    for image in ("2008_000007", "2008_000022"):  # nobody needs them
        (voc2012 / "JPEGImages" / f"{image}.jpg").unlink()
    text = (main / "person_train.txt").read_text()
    (main / "person_train.txt").write_text(text.replace("2008_000001", "2008_000999 "))
    assert places("voc2012", voc2012) == ["ImageSets/Main/person_train.txt, line 4"]
    (main / "person_train.txt").write_text("".join(text.splitlines(keepends=True)[1:]))  # without 2008_000007
    data = load("voc2012", voc2012)
    labels = labels_of(whole)
    names = [name for split in data.splits[:2] for name in split.labels.images]
    assert sorted(names) == [f"2008_{number:06d}" for number in (3, 8, 9, 12, 30)]
    assert data.train.labels.to_dense().tolist() == [labels[name] for name in data.train.labels.images]
    assert [finding for finding in data.findings if finding.warning] == [ImagesNotListed("train.txt", 5, 5)]
    (main / "train.txt").write_text("\n")
    assert places("voc2012", voc2012)[0] == "ImageSets/Main/train.txt"


def test_boxes_without_a_pixel_beyond_their_image_or_of_no_class_are_warnings(voc2012: Path) -> None:
    (voc2012 / "Annotations" / "2008_000001.xml").unlink()
    size = "<size><width>50</width><height>40</height></size>"
    boxes = [(-40, 1, 9, 9), (1, 1, 52, 9), (1, 1, 9, 42), (0, 0, 51, 41), (9, 2, 3, 40)]  # the fourth is no mistake
    objects = [OBJECT.format(name="person", box=box, more="") for box in boxes]
    objects += ["<object><name>unicorn</name></object>"]
    (voc2012 / "Annotations" / "2009_000004.xml").write_text(f"<annotation>{size}{''.join(objects)}</annotation>")
    missing, empty, outside, other = (str(each) for each in load("voc2012", voc2012).findings if each.warning)
    assert missing.endswith("2008_000001.xml") and empty.endswith("2009_000004.xml, object 5 (person)")
    assert outside.startswith("3 ") and other.endswith("2009_000004.xml, object 6 (unicorn)")
    assert not any(finding.warning for finding in load("voc2012", voc2012, boxes=False).findings)
    (voc2012 / "JPEGImages" / "2008_000012.jpg").unlink()  # a problem, beside which photos are noted as well
    (voc2012 / "JPEGImages" / "2008_000007.jpg").write_bytes(b"")
    with pytest.raises(ProblemsError, match="1 problem, ") as told:
        load("voc2012", voc2012)
    _, problem, *notes = str(told.value).splitlines()
    assert "JPEGImages/2008_000012.jpg" in problem and len(notes) == 5
    assert all(note.startswith("  note: ") for note in notes) and "2008_000007.jpg" in notes[-1]


def test_the_real_sample_agrees_with_the_papers_labels(shared_data: Path) -> None:
    data = load(shared_data / "VOCdevkit")
    assert [len(split) for split in data.splits] == [1280, 320, 800] and len(data.classes) == 20
    known = load("features", shared_data / "voc2012_resnet50_448.npz")
    assert data.classes == known.classes
    assert labels_of(data).items() <= labels_of(known).items()
    assert all(split.labels.complete and split.boxes is not None for split in data.splits)
    assert sum(split.boxes.difficult.sum() for split in data.splits) == 818  # type: ignore[union-attr]
    first = data.train.images[0]
    inside = data.train.boxes.corners[data.train.boxes.rows == 0]  # type: ignore[union-attr]
    height, width = first.shape[:2]
    assert min(height, width) == 224 and (inside[:, 2] < width).all() and (inside[:, 3] < height).all()
