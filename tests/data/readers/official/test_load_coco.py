"""COCO in its own layout: ids sorted as texts, categories in the file's order, crowds, images without annotations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tests.data.readers.refused import places, refused

from labelgap.core.errors import InputError
from labelgap.data.registry import load
from labelgap.labels import ABSENT, PRESENT, paper_split

CATEGORIES = [
    {"supercategory": "person", "id": 1, "name": "person"},
    {"supercategory": "vehicle", "id": 2, "name": "bicycle"},
    {"supercategory": "outdoor", "id": 13, "name": "stop sign"},
    {"supercategory": "animal", "id": 90, "name": "ant"},
]
COLUMN = {1: 0, 2: 1, 13: 2, 90: 3}
TRAIN = {9: [1, 90], 100: [2], 25: [13], 30: [], 1000: [1], 7: [90, 90], 200: [1], 81: [2]}
VAL = {42: [1], 5: [2, 13], 6: []}
RLE = {"counts": [0, 3, 10], "size": [40, 50]}


def content(images: dict[int, list[int]], split: str, crowd: int | None = None) -> dict[str, Any]:
    """An instances file as the organisers wrote it."""
    marked = [(image, category) for image, categories in images.items() for category in categories]
    polygon, same = [[1.5, 2.0, 11.5, 2.0, 11.5, 22.0]], {"area": 100.0, "bbox": [1.5, 2.0, 10.0, 20.0]}
    annotations: list[dict[str, Any]] = [
        {"image_id": image, "category_id": category, "id": number, "iscrowd": int(image == crowd), **same}
        | {"segmentation": RLE if image == crowd else polygon}
        for number, (image, category) in enumerate(marked, 1)
    ]
    size = {"license": 1, "height": 40, "width": 50}
    listed = [{"file_name": f"COCO_{split}_{number:012d}.jpg", "id": number, **size} for number in images]
    return {"info": {}, "licenses": [], "images": listed, "annotations": annotations, "categories": CATEGORIES}


def coco(folder: Path, year: str = "2014", inside: str = "") -> Path:
    (folder / "annotations").mkdir(parents=True)
    for split, images, crowd in ((f"train{year}", TRAIN, 1000), (f"val{year}", VAL, None)):
        (folder / inside / split).mkdir(parents=True)
        for number in images:
            file = folder / inside / split / f"COCO_{split}_{number:012d}.jpg"
            Image.new("RGB", (50, 40), (number % 256, 1, 2)).save(file)
        (folder / "annotations" / f"instances_{split}.json").write_text(json.dumps(content(images, split, crowd)))
    return folder


def change(folder: Path, split: str, **changes: Any) -> None:
    path = folder / "annotations" / f"instances_{split}.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize("start", ["", "annotations", "annotations/instances_train2017.json"])
def test_coco_is_recognized_wherever_one_points(tmp_path: Path, start: str) -> None:
    data = load(coco(tmp_path, "2017") / start)
    assert data.name == "coco2017" and data.classes == ("person", "bicycle", "stop sign", "ant")
    assert sum(map(len, data.splits)) == 9


@pytest.mark.parametrize("inside", ["", "images"])
def test_rows_are_sorted_as_texts_and_cut_as_in_the_papers(tmp_path: Path, inside: str) -> None:
    data = load("coco2014", coco(tmp_path, inside=inside))
    ids = ["100", "1000", "200", "25", "7", "81", "9"]
    train, val = paper_split(len(ids))
    names = [f"COCO_train2014_{int(number):012d}.jpg" for number in ids]
    assert data.val is not None and data.test is not None
    assert data.train.labels.images == tuple(names[row] for row in train)
    assert data.val.labels.images == tuple(names[row] for row in val)
    assert data.test.labels.images == tuple(f"COCO_val2014_{number:012d}.jpg" for number in (42, 5))
    assert data.train.origin is not None and data.train.origin.tolist() == train.tolist()
    crowds = {}
    for split in data.splits:
        boxes = split.boxes
        assert split.labels.complete and boxes is not None and boxes.difficult is not None
        assert (boxes.corners == [1.5, 2.0, 10.5, 21.0]).all(), "inclusive"
        for row, name in enumerate(split.labels.images):
            number = int(name[-16:-4])
            present = {COLUMN[category] for category in {**TRAIN, **VAL}[number]}
            expected = [PRESENT if column in present else ABSENT for column in range(4)]
            assert split.labels.to_dense()[row].tolist() == expected
            assert {*boxes.classes[boxes.rows == row].tolist()} == present
            assert abs(int(split.images[row][0, 0, 0]) - number % 256) < 8
            crowds[number] = bool(boxes.difficult[boxes.rows == row].any())
    assert [number for number, crowd in crowds.items() if crowd] == [1000]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"categories": CATEGORIES[:2]}, "category 90 "),
        ({"images": []}, "image 9 "),
        ({"annotations": []}, "annotations"),
        ({"annotations": [{"image_id": 9}]}, r"annotations\[0\]\.category_id: "),
        ({"images": 3}, "'images'"),
        ({"categories": [*CATEGORIES[:3], {"id": 90, "name": "bee"}]}, "ant, bee"),
    ],
)
def test_a_file_that_is_not_as_it_should_be_is_refused(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    folder = coco(tmp_path)
    change(folder, "train2014", **changes)
    with pytest.raises(InputError, match=named):
        load("coco2014", folder)


def test_every_problem_of_both_files_and_of_the_photos_is_told_at_once(tmp_path: Path) -> None:
    folder = coco(tmp_path)
    annotations = content(TRAIN, "train2014")["annotations"]
    annotations[1]["bbox"] = [1, 2, 3]
    annotations[3] = {**annotations[3], "image_id": 11, "category_id": 5}
    del annotations[4]["category_id"]
    annotations[5] = "none"
    change(folder, "train2014", annotations=annotations)
    change(folder, "val2014", categories=[*CATEGORIES, {"id": "1", "name": "again"}, {"id": 2.5, "name": "half"}])
    for number in (9, 81):
        (folder / "train2014" / f"COCO_train2014_{number:012d}.jpg").unlink()
    file = "annotations/instances_{}2014.json: {}: "
    wrong = ("[1].bbox", "[4].category_id", "[5]", "[3]", "[3]")
    expected = [file.format("train", f"annotations{each}") for each in wrong]
    expected += [file.format("val", "categories[5].id"), file.format("val", "categories[4]")]
    expected += [f"train2014/COCO_train2014_{number:012d}.jpg: " for number in (81, 9)]
    found = refused("coco2014", folder)
    assert len(found) == len(expected) and all(map(str.startswith, found, expected))


def test_ids_photos_and_entries_are_told_in_one_error_and_each_mistake_once(tmp_path: Path) -> None:
    folder = coco(tmp_path)
    images = content(TRAIN, "train2014")["images"]
    images[0]["file_name"] = None  # of the image 9: its annotations are no further problem
    images[4]["file_name"] = images[3]["file_name"]
    categories = [*CATEGORIES[:2], {**CATEGORIES[2], "name": " "}]  # which of 90 are wrong is told when that is mended
    change(folder, "train2014", images=images, categories=categories)
    (folder / "train2014" / "COCO_train2014_000000000025.jpg").unlink()
    (folder / "val2014").rename(folder / "elsewhere")
    file = "annotations/instances_train2014.json: {}: "
    expected = [file.format(each) for each in ("categories[2].name", "images[0].file_name", "images")]
    expected += ["train2014/COCO_train2014_000000000025.jpg: ", "val2014: "]
    found = refused("coco2014", folder)
    assert len(found) == len(expected) and all(map(str.startswith, found, expected))
    del images[1]["id"]
    images[0]["file_name"], images[4]["file_name"] = "a.jpg", "b.jpg"
    change(folder, "train2014", images=images, categories=["person", *CATEGORIES[1:]])
    expected = [file.format(each) for each in ("categories[0]", "images[1].id")]  # no other id is called unknown
    assert all(map(str.startswith, refused("coco2014", folder), expected))


def test_boxes_without_a_pixel_are_a_warning(tmp_path: Path) -> None:
    folder = coco(tmp_path)
    annotations = content(TRAIN, "train2014")["annotations"]
    for number, box in ((0, [5, 5, 0, 4]), (1, [5, 5, 3, -2]), (2, [-9, 5, 4, 4]), (3, [-2, 5, 4, 0.5])):
        annotations[number]["bbox"] = box
    change(folder, "train2014", annotations=annotations)
    empty, outside = (str(each) for each in load("coco2014", folder).findings if each.warning)
    assert outside.startswith("1 ") and outside.endswith("instances_train2014.json, annotations[3]")
    assert all(f"instances_train2014.json, annotations[{number}]" in empty for number in range(3))


def test_files_that_are_not_there_or_no_json_are_refused(tmp_path: Path) -> None:
    folder = coco(tmp_path / "a")
    files = [f"annotations/instances_{split}2014.json" for split in ("train", "val")]
    (folder / files[1]).unlink()
    assert places("coco2014", folder) == files[1:]
    for text in ("{", "[]", "[" * 200_000):
        (folder / files[0]).write_text(text)
        assert places("coco2014", folder)[:2] == files
    assert places("coco2017", folder)[0] == "annotations/instances_train2017.json"
