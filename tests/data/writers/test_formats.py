"""Labels for other tools and back: no state is lost, none is made up."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest
from PIL import Image
from tests.data.writers.read_coco import read_coco

from labelgap.core.errors import InputError, ProblemsError, UnknownNameError
from labelgap.data import ArrayImages, Boxes, Dataset, FileImages, Split, load, load_from_recipe
from labelgap.data.writers import formats
from labelgap.data.writers.cvat import read_cvat
from labelgap.data.writers.exchange import ExchangeTable, known_class_names, merge_splits
from labelgap.data.writers.fiftyone import read_fiftyone
from labelgap.data.writers.formats import convert
from labelgap.data.writers.label_studio import read_label_studio
from labelgap.labels import ABSENT, PRESENT, UNKNOWN, LabelTable
from labelgap.labels.io.table_file import SPLITS

CLASSES = ("zebra", "Straße & <Haus>", 'a "b", c', "never seen")


def read_parquet(path: Path) -> ExchangeTable:
    return ExchangeTable(LabelTable.from_parquet(path), tuple(pq.read_table(path)["split"].to_pylist()))


def read_csv(path: Path) -> ExchangeTable:
    return ExchangeTable(LabelTable.from_csv(path), tuple(csv.read_csv(path)["split"].to_pylist()))


READERS: dict[str, Callable[[Path], ExchangeTable]] = {
    "parquet": read_parquet,
    "csv": read_csv,
    "coco": read_coco,
    "fiftyone": read_fiftyone,
    "labelstudio": read_label_studio,
    "cvat": read_cvat,
}


TABLES = ("parquet", "csv")
SUFFIXES = {"parquet": "parquet", "csv": "csv", "cvat": "xml"}


@pytest.fixture
def data(tmp_path: Path) -> Dataset:
    """Twelve photos in three splits, every combination of states, odd names."""
    root = tmp_path / "photos"
    (root / "sub folder").mkdir(parents=True)
    random = np.random.default_rng(0)
    splits = []
    for name, count in zip(SPLITS, (8, 1, 3), strict=True):
        names = [f"sub folder/{name} ä{row}.jpg" if row % 2 else f"{name}-{row}.jpg" for row in range(count)]
        codes = random.choice([PRESENT, ABSENT, UNKNOWN], (count, 4))
        codes[:, 3] = UNKNOWN
        codes[0] = UNKNOWN
        for number, image in enumerate(names):
            Image.new("RGB", (30 + number, 20)).save(root / image)
        splits.append(Split(name, FileImages(root, names), LabelTable.from_dense(codes, CLASSES, names)))
    train, val, test = splits
    return Dataset("toy", train, val, test)


@pytest.mark.parametrize("to", sorted(READERS))
def test_every_state_comes_back(data: Dataset, tmp_path: Path, to: str) -> None:
    path = tmp_path / f"labels.{SUFFIXES.get(to, 'json')}"
    written = convert(data, to, path)
    assert written.paths[0] == path and all(place.exists() for place in written.paths)
    back, expected = READERS[to](path), merge_splits(data)
    assert back.table == expected.table
    assert back.splits == expected.splits


@pytest.mark.parametrize("to", sorted({*READERS} - {"cvat"}))  # its images have no other name than their file's
def test_tools_get_the_names_of_files_and_we_get_ours_back(data: Dataset, tmp_path: Path, to: str) -> None:
    """A table may call an image 7 whose file is images/7.jpg."""
    names = [str(row) for row in range(len(data.train))]
    source = data.train.images
    assert isinstance(source, FileImages)
    table = LabelTable.from_dense(data.train.labels.to_dense(), CLASSES, names)
    renamed = Dataset("toy", Split("train", FileImages(source.root, names, source.names), table))
    path = tmp_path / "labels.json"
    convert(renamed, to, path)
    assert READERS[to](path).table == table
    if to not in TABLES:
        text = path.read_text(encoding="utf-8")
        assert all(name in text or name.replace(" ", "%20").replace("ä", "%C3%A4") in text for name in source.names)


def test_coco_has_boxes_of_known_classes_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = load("digits", train=20, val=5, test=5)
    convert(data, "coco", tmp_path / "a.json")
    file = json.loads((tmp_path / "a.json").read_text())
    boxes = data.train.boxes
    assert boxes is not None
    first = [entry for entry in file["annotations"] if entry["image_id"] == 1]
    (column,) = np.flatnonzero(data.train.labels.to_dense()[0] == PRESENT)
    corners = boxes.corners[(boxes.rows == 0) & (boxes.classes == column)]
    expected = [[x0, y0, x1 - x0 + 1, y1 - y0 + 1] for x0, y0, x1, y1 in corners.tolist()]
    assert [entry["bbox"] for entry in first] == expected and {entry["category_id"] for entry in first} == {column + 1}
    assert all(entry["area"] == entry["bbox"][2] * entry["bbox"][3] for entry in file["annotations"])
    assert file["images"][0]["width"] == 64 and file["images"][0]["split"] == "train"
    assert not file["images"][0]["neg_category_ids"] and file["images"][0]["not_exhaustive_category_ids"]
    monkeypatch.setattr(formats, "MAX_LISTED", 1)
    convert(data, "coco", tmp_path / "b.json")
    file = json.loads((tmp_path / "b.json").read_text())
    assert all(image["not_exhaustive_category_ids"] == [] for image in file["images"])
    assert read_coco(tmp_path / "b.json").table == merge_splits(data).table, "what is left out is still unknown"


def test_a_class_of_several_boxes_is_present_once(tmp_path: Path) -> None:
    table = LabelTable.from_dense([[1, 1]], ["cat", "dog"], ["a"])
    boxes = Boxes(np.array([0, 0]), np.array([0, 0]), np.array([[0, 0, 3, 3], [2.5, 1, 4, 4]]), np.array([False, True]))
    images = ArrayImages(np.zeros((1, 5, 5), dtype=np.uint8), ["a"])
    convert(Dataset("toy", Split("train", images, table, boxes=boxes)), "coco", tmp_path / "a.json")
    file = json.loads((tmp_path / "a.json").read_text())
    assert [entry.get("bbox") for entry in file["annotations"]] == [[0, 0, 4, 4], [2.5, 1, 2.5, 4], None]
    assert [entry["iscrowd"] for entry in file["annotations"]] == [0, 1, 0]
    assert read_coco(tmp_path / "a.json").table == table


def test_a_prefix_stands_before_every_name_and_goes_away_again(data: Dataset, tmp_path: Path) -> None:
    convert(data, "fiftyone", tmp_path / "a.json", prefix="/data/")
    samples = json.loads((tmp_path / "a.json").read_text())["samples"]
    assert all(sample["filepath"].startswith("/data/") for sample in samples)
    assert read_fiftyone(tmp_path / "a.json").table == merge_splits(data).table
    convert(data, "labelstudio", tmp_path / "b.json", prefix="https://example.org/")
    tasks = json.loads((tmp_path / "b.json").read_text())
    assert tasks[1]["data"]["image"] == "https://example.org/sub%20folder/train%20%C3%A41.jpg"
    convert(data, "labelstudio", tmp_path / "c.json", prefix="s3://bucket/")
    tasks = json.loads((tmp_path / "c.json").read_text())
    assert tasks[1]["data"]["image"] == "s3://bucket/sub folder/train ä1.jpg"


def test_label_studio_reads_back_its_own_export(data: Dataset, tmp_path: Path) -> None:
    """An export has ids, several annotations and cancelled ones; the last that counts is taken."""
    convert(data, "labelstudio", tmp_path / "a.json")
    tasks = json.loads((tmp_path / "a.json").read_text())
    assert "annotations" not in tasks[0], "nothing is known of the first image"
    choice = {"id": "x", "from_name": "present", "to_name": "image", "type": "choices", "value": {"choices": ["zebra"]}}
    given = [([], False), ([choice], False), ([], True)]
    tasks[0] |= {"id": 17, "annotations": [{"result": result, "was_cancelled": off} for result, off in given]}
    (tmp_path / "a.json").write_text(json.dumps(tasks))
    codes = read_label_studio(tmp_path / "a.json").table.to_dense()
    assert codes[0].tolist() == [PRESENT, UNKNOWN, UNKNOWN, UNKNOWN]
    (tmp_path / "a.xml").unlink()
    assert "never seen" not in read_label_studio(tmp_path / "a.json").table.classes


def test_nothing_is_overwritten_unless_told(data: Dataset, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    convert(data, "labelstudio", path)
    path.unlink()
    with pytest.raises(InputError, match=r"a\.xml"):
        convert(data, "labelstudio", path)
    convert(data, "labelstudio", path, force=True)
    for place in (path, tmp_path):
        with pytest.raises(InputError, match=place.name):
            convert(data, "coco", place)


def test_wrong_wishes_are_refused_with_the_way_out(data: Dataset, tmp_path: Path) -> None:
    odd = LabelTable.from_dense([[1]], ["a\x07b"], ["a.jpg"])
    bell = Dataset("toy", Split("train", FileImages(tmp_path, ["a.jpg"]), odd))
    few = load("digits", train=20, val=5, test=5)
    cases: list[tuple[Dataset, str, str, dict[str, Any], str]] = [
        (data, "parket", "a", {}, "'parquet'"),
        (data, "csv", "a.csv", {"prefix": "x"}, "--prefix"),
        (data, "labelstudio", "a.xml", {}, "suffix"),
        (few, "fiftyone", "a.json", {}, "FiftyOne"),
        (bell, "labelstudio", "a.json", {}, "cannot hold"),
    ]
    for source, to, name, options, named in cases:
        with pytest.raises((InputError, UnknownNameError), match=named):
            convert(source, to, tmp_path / name, **options)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["photos"]


def test_cvat_reads_back_its_own_export(tmp_path: Path) -> None:
    """An export of CVAT has boxes, tags of other states than ours, and subsets as people call them."""
    (tmp_path / "a.xml").write_text(
        """<annotations><meta><job><labels><label><name>dog</name></label><label><name>cat</name></label></labels></job>
        </meta><image id="0" name="a.jpg" subset="Train"><box label="cat" xtl="1"/><tag label="cat" source="manual"/>
        </image><image id="2" name="c.jpg" subset="val"/>
        <image id="1" name="b.jpg" subset="Validation"><tag label="dog">
        <attribute name="state">absent</attribute></tag></image></annotations>"""
    )
    back = read_cvat(tmp_path / "a.xml")
    assert back.table.classes == ("dog", "cat") and back.splits == ("train", "val", "val")
    assert back.table.to_dense().tolist() == [[UNKNOWN, PRESENT], [UNKNOWN, UNKNOWN], [ABSENT, UNKNOWN]]
    complete = read_cvat(tmp_path / "a.xml", unlisted="absent").table
    assert complete.to_dense().tolist() == [[ABSENT, PRESENT], [UNKNOWN, UNKNOWN], [ABSENT, ABSENT]]


def test_what_people_labeled_elsewhere_is_data(data: Dataset, tmp_path: Path) -> None:
    expected = data.train.labels
    convert(data, "cvat", tmp_path / "a.xml")
    convert(data, "labelstudio", tmp_path / "tasks.json")
    for file in ("a.xml", "tasks.json"):
        loaded = load(tmp_path / file, images=tmp_path / "photos", duplicates="off")
        assert loaded.train.labels == expected and loaded.recipe["options"]["images"] == str(tmp_path / "photos")
        assert load_from_recipe(loaded.recipe).train.labels == expected
    tasks = json.loads((tmp_path / "tasks.json").read_text())
    del tasks[1]["data"]["name"]
    tasks[1]["data"]["image"] = "/data/upload/3/0123abcd-gone.jpg"
    (tmp_path / "tasks.json").write_text(json.dumps(tasks))
    with pytest.raises(ProblemsError, match=r"task 2 .*gone\.jpg does not exist"):
        load(tmp_path / "tasks.json", images=tmp_path / "photos", duplicates="off")


def test_a_choice_is_absent_only_where_annotators_saw_all(tmp_path: Path) -> None:
    """A project of one list of choices; the second task was never opened."""
    chosen = {"id": "x", "from_name": "animal", "type": "choices", "value": {"choices": ["cat"]}}
    box = {"from_name": "box", "type": "rectanglelabels", "value": {"x": 1, "rectanglelabels": ["owl"]}}
    tasks: list[dict[str, object]] = [{"data": {"photo": f"https://example.org/p/{name}.jpg?v=2"}} for name in "ab"]
    tasks[0]["annotations"] = [{"result": [chosen, box]}]
    path = tmp_path / "tasks.json"
    path.write_text(json.dumps(tasks))
    path.with_suffix(".xml").write_text(
        '<View><Choices name="animal"><Choice value="dog"/><Choice value="cat"/><Choice value="owl"/></Choices></View>'
    )
    table = read_label_studio(path).table
    assert table.classes == ("dog", "cat", "owl") and table.images == ("p/a.jpg", "p/b.jpg")
    assert table.to_dense().tolist() == [[UNKNOWN, PRESENT, PRESENT], [UNKNOWN] * 3]
    complete = read_label_studio(path, unlisted="absent").table.to_dense().tolist()
    assert complete == [[ABSENT, PRESENT, PRESENT], [UNKNOWN] * 3]


def test_croissant_names_files_below_it(data: Dataset, tmp_path: Path) -> None:
    written = convert(data, "croissant", tmp_path / "croissant.json")
    about, table = json.loads(written.paths[0].read_text()), pq.read_table(written.paths[1]).to_pydict()
    assert all((tmp_path / name).exists() for name in table["image"]) and len(table["image"]) == 12
    present, absent = (
        [[CLASSES[column] for column in np.flatnonzero(row == state)] for row in data.train.labels.to_dense()]
        for state in (PRESENT, ABSENT)
    )
    assert table["present"][:8] == present and table["absent"][:8] == absent
    (labels, files) = about["distribution"]
    assert labels["sha256"] == hashlib.sha256(written.paths[1].read_bytes()).hexdigest()
    assert files["includes"] == ["photos/*.jpg", "photos/**/*.jpg"]
    with pytest.raises(InputError, match=r"write to .*photos/croissant\.json"):
        convert(data, "croissant", tmp_path / "sub" / "croissant.json")


@pytest.mark.filterwarnings("ignore::DeprecationWarning:rdflib")
def test_mlcroissant_reads_what_is_written(data: Dataset, tmp_path: Path) -> None:
    mlcroissant = pytest.importorskip("mlcroissant", reason="needs mlcroissant, which validates the metadata")
    convert(data, "croissant", tmp_path / "croissant.json")
    read = mlcroissant.Dataset(jsonld=str(tmp_path / "croissant.json"))
    assert not read.metadata.ctx.issues.errors
    records = list(read.records("images"))
    table = merge_splits(data).table
    widths = [30 + number for split in data.splits for number in range(len(split))]
    assert [record["images/content"].width for record in records] == widths
    for row, record in enumerate(records):
        for state, names in zip(("present", "absent"), known_class_names(table, row), strict=True):
            assert [name.decode() for name in record[f"images/{state}"]] == names


def test_a_label_that_is_said_otherwise_is_never_present(tmp_path: Path) -> None:
    tag = '<tag label="cat"><attribute name="state">Absent </attribute></tag>'
    (tmp_path / "a.xml").write_text(f'<annotations><image name="a.jpg">{tag}</image></annotations>')
    assert read_cvat(tmp_path / "a.xml").table.to_dense().tolist() == [[ABSENT]]
    result = {"type": "choices", "from_name": "tags", "value": {"choices": "cat"}}
    (tmp_path / "a.json").write_text(json.dumps([{"data": {"name": "a.jpg"}, "annotations": [{"result": [result]}]}]))
    with pytest.raises(InputError, match="a list of names"):
        read_label_studio(tmp_path / "a.json")
