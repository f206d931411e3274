"""VOC in the devkit's own layout, oddities included, and the real sample where it is to be had."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.data.sentences import sentences

from labelgap.cli.printing import print_skipped
from labelgap.core.errors import InputError, ProblemsError
from labelgap.data.opening import load
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
    objects = ""
    for name, code in codes_of(number).items():
        if code != ABSENT - 1:
            more = (
                "\t\t<difficult>1</difficult>\n"
                if code == ABSENT
                else ("\t\t<difficult>0</difficult>\n" if number % 2 else "")
            )
            objects += OBJECT.format(
                name=name, box=(1, 2, "45.700000762939453", 40), more=more + PART * (name == "person")
            )
    return f"<annotation>\n\t<size><width>50</width></size>\n{objects}</annotation>"


@pytest.fixture
def voc2012(tmp_path: Path) -> Path:
    train = [f"2008_{number:06d}" for number in (7, 3, 12, 1, 9, 30, 22, 15, 8, 2)]
    return devkit(tmp_path, "2012", {"train": train, "val": ["2009_000004", "2009_000001"]})


@pytest.mark.parametrize("start", ["", "VOCdevkit", "VOCdevkit/VOC2012"])
def test_a_devkit_is_recognized_wherever_one_points(voc2012: Path, start: str) -> None:
    data = load(voc2012.parent.parent / start)
    assert sentences(data)[0] == "recognized as voc2012: a VOC devkit"
    assert [len(split) for split in data.splits] == [8, 2, 2] and data.classes == CLASSES


def test_codes_are_theirs_and_not_ours(voc2012: Path) -> None:
    data = load("voc2012", voc2012)
    images = sorted([*data.train.labels.images, *data.splits[1].labels.images])
    assert images == sorted(f"2008_{number:06d}" for number in (7, 3, 12, 1, 9, 30, 22, 15, 8, 2))
    number_of = {image: number for number, image in enumerate([*images, "2009_000001", "2009_000004"])}
    difficult = 0
    for split in data.splits:
        assert split.labels.complete
        for image, row in zip(split.labels.images, split.labels.to_dense().tolist(), strict=True):
            theirs = codes_of(number_of[image])
            assert row == [PRESENT if theirs[name] == PRESENT else ABSENT for name in CLASSES]
            difficult += sum(code == 0 for code in theirs.values())
    assert f"taken as absent as in the papers ({difficult} labels); every label is known" in sentences(data)[0]


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


def test_boxes_count_from_zero_and_difficult_ones_are_marked(voc2012: Path) -> None:
    data = load("voc2012", voc2012)
    boxes = data.train.boxes
    assert boxes is not None and boxes.difficult is not None
    labels = data.train.labels.to_dense()
    assert {*zip(boxes.rows[~boxes.difficult].tolist(), boxes.classes[~boxes.difficult].tolist(), strict=True)} == {
        (int(row), int(column)) for row, column in np.argwhere(labels == PRESENT)
    }
    assert (
        boxes.difficult.any() and (labels[boxes.rows[boxes.difficult], boxes.classes[boxes.difficult]] == ABSENT).all()
    )
    assert np.allclose(boxes.corners, [0, 1, 44.700000762939453, 39])
    assert load("voc2012", voc2012, boxes=False).train.boxes is None


def test_pixels_belong_to_their_rows(voc2012: Path) -> None:
    data = load("voc2012", voc2012)
    images = sorted(path.stem for path in (voc2012 / "JPEGImages").iterdir())
    for split in data.splits:
        for row, image in enumerate(split.labels.images):
            assert split.images[row].shape == (40, 50, 3)
            assert abs(int(split.images[row][0, 0, 0]) - images.index(image)) <= 3


def test_voc2007_tests_on_its_test_list_and_without_it_on_val(tmp_path: Path) -> None:
    lists = {
        "train": ["000005", "000007"],
        "val": ["000009"],
        "trainval": ["000005", "000007", "000009"],
        "test": ["000001"],
    }
    data = load(devkit(tmp_path / "full", "2007", lists))
    assert sorted([*data.train.labels.images, *data.splits[1].labels.images]) == ["000005", "000007", "000009"]
    assert data.splits[-1].labels.images == ("000001",) and data.name == "voc2007"
    part = {split: images for split, images in lists.items() if split in ("train", "val")}
    data = load("voc2007", devkit(tmp_path / "part", "2007", part))
    assert data.splits[-1].labels.images == ("000009",)


def test_both_years_in_one_devkit_are_told(voc2012: Path) -> None:
    devkit(voc2012.parent.parent / "other", "2007", {"train": ["000005", "000006"], "val": ["000009"]}).rename(
        voc2012.parent / "VOC2007"
    )
    data = load(voc2012.parent)
    assert data.name == "voc2012" and sentences(data)[0].endswith(f"; voc2007 is there too: voc2007={voc2012.parent}")


def test_everything_that_is_wrong_with_the_lists_is_told_at_once(voc2012: Path) -> None:
    main = voc2012 / "ImageSets" / "Main"
    text = (main / "person_train.txt").read_text().splitlines()
    (main / "person_train.txt").write_text("\n".join([text[0].replace("1", "7"), *text[2:], text[2], "x"]))
    with pytest.raises(ProblemsError) as caught:
        load("voc2012", voc2012)
    assert [problem.message for problem in caught.value.problems] == [
        "ImageSets/Main/person_train.txt, line 1: '2008_000007 7': a line is an image and 1, 0 or -1",
        "ImageSets/Main/person_train.txt, line 10: 2008_000012 is listed again (first in line 2)",
        "ImageSets/Main/person_train.txt, line 11: 'x': a line is an image and 1, 0 or -1",
        "ImageSets/Main/person_train.txt: no line about 2008_000003",
    ]


def test_everything_that_is_wrong_with_both_splits_and_with_the_boxes_is_told_at_once(voc2012: Path) -> None:
    main, annotations = voc2012 / "ImageSets" / "Main", voc2012 / "Annotations"
    kept = {split: (main / f"person_{split}.txt").read_text() for split in ("train", "val")}
    for split, text in kept.items():
        (main / f"person_{split}.txt").write_text(text + "2008_000099 2\n")
    with pytest.raises(ProblemsError) as told:
        load("voc2012", voc2012)
    assert [problem.message for problem in told.value.problems] == [
        f"ImageSets/Main/person_{split}.txt, line {line}: '2008_000099 2': a line is an image and 1, 0 or -1"
        for split, line in (("train", 11), ("val", 3))
    ]
    for split, text in kept.items():
        (main / f"person_{split}.txt").write_text(text)
    (annotations / "2008_000001.xml").write_text("<annotation><object>")
    names = ("train", "person", "other", "person", "person")
    wrong = [OBJECT.format(name=name, box=(1, 2, 3, 4), more="") for name in names]
    wrong[1] = wrong[1].replace("<xmin>1</xmin>", "")
    wrong[3] = wrong[3].replace("<ymax>4<", "<ymax>four<")
    wrong[4] = wrong[4].replace("bndbox", "box")
    (annotations / "2009_000004.xml").write_text(f"<annotation>{''.join(wrong)}</annotation>")
    with pytest.raises(ProblemsError) as told:
        load("voc2012", voc2012)
    first, *others = (problem.message for problem in told.value.problems)
    assert first.startswith("Annotations/2008_000001.xml: cannot be read (no element found: line 1")
    assert others == [
        "Annotations/2009_000004.xml: object 2 (person): xmin is missing, not a number",
        "Annotations/2009_000004.xml: object 4 (person): ymax is 'four', not a number",
        "Annotations/2009_000004.xml: object 5 (person): it has no bndbox",
    ]


def test_lists_photos_and_boxes_are_told_in_one_error_and_each_mistake_once(voc2012: Path) -> None:
    main = voc2012 / "ImageSets" / "Main"
    text = (main / "person_train.txt").read_text()
    (main / "person_train.txt").write_text(text.replace("2008_000003", "2008_00003"))
    (main / "train.txt").write_text("2008_000098\n2008_000099\n" + (main / "train.txt").read_text()[12:])
    (main / "aeroplane_val.txt").write_text("")
    (main / "train_val.txt").unlink()
    (voc2012 / "JPEGImages" / "2008_000012.jpg").unlink()
    (voc2012 / "Annotations" / "2008_000001.xml").write_text("<annotation><object>")
    with pytest.raises(ProblemsError, match="Are all of its photos unpacked into JPEGImages") as told:
        load("voc2012", voc2012)
    *messages, last = (problem.message for problem in told.value.problems)
    assert messages == [
        "ImageSets/Main/train.txt, line 1: 2008_000098 and 1 more: no label, in no file of a class (*_train.txt)",
        "ImageSets/Main/person_train.txt, line 2: 2008_00003: in 1 of 3 files of classes only; no line about "
        "2008_000003",
        "ImageSets/Main/aeroplane_val.txt: no line about 2009_000001 and 1 more",
        "ImageSets/Main: there is train_train.txt, and no train_val.txt",
        "JPEGImages/2008_000012.jpg: does not exist",
    ]
    assert last.startswith("Annotations/2008_000001.xml: cannot be read")


def test_a_list_of_a_part_of_the_images_is_used_with_a_warning(
    voc2012: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main = voc2012 / "ImageSets" / "Main"
    whole = load("voc2012", voc2012)
    (main / "train.txt").write_text("2008_000012\n2008_000003\n2008_000030 \n2008_000008\n2008_000009\n")
    for image in ("2008_000007", "2008_000022"):  # nobody needs them
        (voc2012 / "JPEGImages" / f"{image}.jpg").unlink()
    text = (main / "person_train.txt").read_text()
    (main / "person_train.txt").write_text(text.replace("2008_000001", "2008_000999 "))
    with pytest.raises(ProblemsError, match=r"1 problem, .*\n.*line 4: 2008_000999: in 1 of 3 files of classes only"):
        load("voc2012", voc2012)
    (main / "person_train.txt").write_text("".join(text.splitlines(keepends=True)[1:]))  # without 2008_000007
    data = load("voc2012", voc2012)
    assert data.val is not None and whole.val is not None
    names = sorted([*data.train.labels.images, *data.val.labels.images])
    assert names == [f"2008_{number:06d}" for number in (3, 8, 9, 12, 30)]
    labels = {
        name: row.tolist()
        for split in (whole.train, whole.val)
        for name, row in zip(split.labels.images, split.labels.to_dense(), strict=True)
    }
    assert data.train.labels.to_dense().tolist() == [labels[name] for name in data.train.labels.images]
    assert [str(finding) for finding in data.findings if finding.warning] == [
        "train.txt lists 5 of the images with labels, and 5 others are left out: the splits are not those of the papers"
    ]
    print_skipped(data)
    assert capsys.readouterr().out.startswith("skipped   train.txt lists 5 of")


def test_a_listed_image_needs_a_line_in_every_file_of_a_class(voc2012: Path) -> None:
    main = voc2012 / "ImageSets" / "Main"
    for name in ("aeroplane", "train"):
        file = main / f"{name}_train.txt"
        file.write_text("".join(line for line in file.read_text().splitlines(keepends=True) if "_000012" not in line))
    with pytest.raises(ProblemsError) as told:
        load("voc2012", voc2012)
    assert [problem.message for problem in told.value.problems] == [
        f"ImageSets/Main/{name}_train.txt: no line about 2008_000012" for name in ("aeroplane", "train")
    ]
    (main / "train.txt").write_text("\n")
    with pytest.raises(ProblemsError, match=r"Main/train\.txt: is empty; without it all images"):
        load("voc2012", voc2012)


def test_missing_files_of_boxes_and_boxes_without_a_pixel_are_warnings(voc2012: Path) -> None:
    (voc2012 / "Annotations" / "2008_000001.xml").unlink()
    box = OBJECT.format(name="person", box=(9, 2, 3, 40), more="")
    (voc2012 / "Annotations" / "2009_000004.xml").write_text(f"<annotation>{box}</annotation>")
    assert [str(finding) for finding in load("voc2012", voc2012).findings if finding.warning] == [
        "1 image has no file of boxes: 2008_000001.xml",
        "1 box has no area inside the image, and counts as one pixel: 2009_000004.xml, object 1 (person)",
    ]
    assert not any(finding.warning for finding in load("voc2012", voc2012, boxes=False).findings)


def test_boxes_beyond_their_image_and_objects_of_no_class_are_warnings(voc2012: Path) -> None:
    size = "<size><width>50</width><height>40</height></size>"
    boxes = [(-40, 1, 9, 9), (1, 1, 52, 9), (1, 1, 9, 42), (0, 0, 51, 41)]  # the last: a pixel, no mistake
    objects = [OBJECT.format(name="person", box=box, more="") for box in boxes]
    objects += ["<object><name>unicorn</name></object>"]
    (voc2012 / "Annotations" / "2009_000004.xml").write_text(f"<annotation>{size}{''.join(objects)}</annotation>")
    assert [str(finding) for finding in load("voc2012", voc2012).findings if finding.warning] == [
        "3 boxes reach beyond their images: 2009_000004.xml, object 1 (person), 2009_000004.xml, object 2 (person), "
        "2009_000004.xml, object 3 (person)",
        "1 object is of no class of the lists, and is left out: 2009_000004.xml, object 5 (unicorn)",
    ]


def test_warnings_and_unreadable_photos_are_noted_beside_problems(voc2012: Path) -> None:
    (voc2012 / "JPEGImages" / "2008_000012.jpg").unlink()
    (voc2012 / "JPEGImages" / "2008_000007.jpg").write_bytes(b"")
    photo = voc2012 / "JPEGImages" / "2009_000001.jpg"
    photo.write_bytes(photo.read_bytes()[:-200])
    (voc2012 / "Annotations" / "2008_000001.xml").unlink()
    with pytest.raises(ProblemsError, match="1 problem, nothing was trained") as told:
        load("voc2012", voc2012)
    lines = str(told.value).splitlines()[1:]
    notes = [line.removeprefix("  note: ") for line in lines[1:]]
    assert lines[0] == "  JPEGImages/2008_000012.jpg: does not exist"
    assert notes[0] == "1 image has no file of boxes: 2008_000001.xml"
    assert "2008_000007.jpg is empty (0 bytes)" in notes[1] and "2009_000001.jpg is damaged" in notes[2]
    assert len(notes) == 3


def test_photos_that_are_missing_are_all_told(voc2012: Path) -> None:
    for image in ("2008_000001", "2008_000007"):
        (voc2012 / "JPEGImages" / f"{image}.jpg").unlink()
    with pytest.raises(ProblemsError, match=r"2 problems, nothing was trained\. Are all of its photos unpacked"):
        load("voc2012", voc2012)


def test_what_is_no_devkit_is_refused(tmp_path: Path, voc2012: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"ImageSets/Main/\*_train\.txt is missing"):
        load("voc2012", tmp_path / "empty")
    (voc2012 / "Annotations" / "2008_000001.xml").write_text("<annotation><object>")
    with pytest.raises(InputError, match=r"2008_000001\.xml: cannot be read"):
        load("voc2012", voc2012)
    for file in (voc2012 / "ImageSets" / "Main").glob("*_val.txt"):
        file.unlink()
    with pytest.raises(InputError, match=r"has no files of classes such as aeroplane_val\.txt"):
        load("voc2012", voc2012)


def test_the_real_sample_agrees_with_the_papers_labels(shared_data: Path) -> None:
    data = load(shared_data / "VOCdevkit")
    assert [len(split) for split in data.splits] == [1280, 320, 800] and len(data.classes) == 20
    known = load("features", shared_data / "voc2012_resnet50_448.npz")
    assert data.classes == known.classes
    official = {
        image: row
        for split in known.splits
        for image, row in zip(split.labels.images, split.evaluation_labels.to_dense().tolist(), strict=True)
    }
    for split in data.splits:
        assert split.labels.complete and split.boxes is not None
        for image, row in zip(split.labels.images, split.labels.to_dense().tolist(), strict=True):
            assert row == official[image]
    assert sum(split.boxes.difficult.sum() for split in data.splits) == 818  # type: ignore[union-attr]
    first = data.train.images[0]
    inside = data.train.boxes.corners[data.train.boxes.rows == 0]  # type: ignore[union-attr]
    height, width = first.shape[:2]
    assert min(height, width) == 224 and (inside[:, 2] < width).all() and (inside[:, 3] < height).all()
