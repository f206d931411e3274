"""Files made to break a reader: absurd claims, entities, nesting, names that lead elsewhere. Each ends in a message."""

from __future__ import annotations

import json
import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.data.readers.official.test_load_coco import change, coco
from tests.data.readers.official.test_load_cub_nuswide import cub, nuswide
from tests.data.readers.official.test_load_voc import devkit
from tests.data.readers.refused import places, refused
from tests.data.readers.test_load_features import arrays, stored

from labelgap.core.errors import InputError, ProblemsError
from labelgap.data.registry import load
from labelgap.data.writers.fiftyone import read_fiftyone
from labelgap.data.writers.label_studio import read_label_studio
from labelgap.labels import LabelTable
from labelgap.labels.io import formats as parquet_module
from labelgap.labels.io.formats import read_parquet

LAUGHS = "".join(["<!DOCTYPE a [<!ENTITY e0 'ha'>", *(f"<!ENTITY e{n} '{f'&e{n - 1};' * 10}'>" for n in range(1, 10))])
BOX = "<bndbox><xmin>{}</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax></bndbox>"
OBJECT = f"<annotation><object><name>train</name>{BOX}</object></annotation>"


@pytest.fixture
def voc(tmp_path: Path) -> Path:
    return devkit(tmp_path, "2012", {"train": [f"2008_00000{number}" for number in range(6)], "val": ["2009_000001"]})


@pytest.mark.parametrize(
    "text",
    [
        LAUGHS + "]><annotation>&e9;</annotation>",
        '<!DOCTYPE a [<!ENTITY b SYSTEM "../secret.txt">]><annotation>&b;</annotation>',
        "<annotation>" + "<a>" * 100_000,
        "<annotation>" + " " * (5 << 20) + "</annotation>",
        *(OBJECT.format(number) for number in ("nan", "1e400", "9" * 30, "one")),
        "<annotation><object><name>train</name></object></annotation>",
        '<?xml version="1.0" encoding="rot13"?><annotation/>',
    ],
)
def test_annotations_of_voc_are_plain_xml(voc: Path, text: str) -> None:
    for encoding in ("utf-8", "utf-16"):
        (voc / "Annotations" / "2008_000003.xml").write_text(text, encoding=encoding)
        (message,) = refused("voc2012", voc)
        assert message.startswith("Annotations/2008_000003.xml: ") and len(message) < 1_000


def test_the_lists_of_voc_name_photos_in_their_folder(voc: Path) -> None:
    for file in (voc / "ImageSets" / "Main").glob("*_train.txt"):
        file.write_text(file.read_text() + f"../../../other  1\n{voc.parent / 'other'} 1\n{'x' * 300} 1\n")
    (voc.parent / "other.xml").write_text("<annotation><object>")  # not read
    assert "other" not in " ".join(name for split in load("voc2012", voc).splits for name in split.labels.images)
    (voc / "ImageSets" / "Main" / "train.txt").unlink()  # which has others only
    assert len(refused("voc2012", voc)) == 3
    (voc / "ImageSets" / "Main" / "person_train.txt").write_text("".join(f"{row} 1\n" for row in range(12_000)))
    assert "ImageSets/Main/person_train.txt, line 1" in places("voc2012", voc), "12,000 lines in one message"
    for name in ("Annotations/2008_000003.xml", "ImageSets/Main/person_train.txt"):
        (voc / name).unlink()
        os.mkfifo(voc / name)
        assert name in places("voc2012", voc)


def test_numbers_of_coco_are_whole_and_finite(tmp_path: Path) -> None:
    path = coco(tmp_path) / "annotations" / "instances_train2014.json"
    published = path.read_text()
    for place in ("images", "annotations", "categories", "category_id", "image_id"):
        content = json.loads(published)
        if place == "annotations":
            content["annotations"][0]["bbox"][2] = "HERE"
        elif place in ("images", "categories"):
            content[place][0]["id"] = "HERE"
        else:
            content["annotations"][0][place] = "HERE"
        for number in ("Infinity", "NaN", "1e999", "1.5", "1" + "0" * 30, "1" + "0" * 400, "true", "null"):
            path.write_text(json.dumps(content).replace('"HERE"', number))
            if place == "annotations" and number in ("1.5", "true"):
                load("coco2014", tmp_path)
            else:
                with pytest.raises(InputError, match=r"instances_train2014\.json"):
                    load("coco2014", tmp_path)


def test_coco_with_more_labels_than_memory_is_refused(tmp_path: Path) -> None:
    categories = [{"id": number, "name": str(number)} for number in range(15_000)]
    images = [{"id": number, "file_name": f"{number}.jpg"} for number in range(15_000)]
    marks = [{"image_id": number, "category_id": 0} for number in range(15_000)]
    change(coco(tmp_path), "train2014", categories=categories, images=images, annotations=marks)
    change(tmp_path, "val2014", categories=categories, images=images[:1], annotations=marks[:1])
    with pytest.raises(InputError, match="15,000 classes"):
        load("coco2014", tmp_path)


@pytest.mark.parametrize("name", ["a\nb.jpg", "a\0.jpg", "../x.jpg", "a" * 5_000])
def test_names_of_photos_are_paths_below_their_folder(tmp_path: Path, name: str) -> None:
    path = coco(tmp_path) / "annotations" / "instances_train2014.json"
    content = json.loads(path.read_text())
    content["images"][0]["file_name"] = name
    path.write_text(json.dumps(content))
    assert len(refused("coco2014", tmp_path)) == 1
    if ".." not in name and len(name) < 100:
        pq.write_table(pa.table({"image": ["b.jpg", name], "cat": [1, 0]}), tmp_path / "a.parquet")
        with pytest.raises(ProblemsError, match="row 2"):
            read_parquet(tmp_path / "a.parquet")


@pytest.mark.parametrize("name", ["classes", "train_features", "train_ids", "train_truth", "train_observed", "val_ids"])
def test_feature_files_with_arrays_of_another_dimension_are_refused(tmp_path: Path, name: str) -> None:
    for changed in (np.float32(1), np.zeros((2, 2, 2)), np.array("text")):
        with pytest.raises(InputError, match=name):
            load("features", stored(tmp_path, {**arrays(), name: changed}))


@pytest.mark.parametrize("shape", ["(10**18,)", "(-1, 4)", "(2**62, 2**62)", "('a',)"])
def test_feature_files_cannot_claim_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: str) -> None:
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    for compression in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        with zipfile.ZipFile(tmp_path / "x.npz", "w", compression) as archive:
            text = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(64)
            archive.writestr("train_features.npy", text)
        assert "damaged" in refused("features", tmp_path / "x.npz")[0]
    for content in (b"", b"PK\x03\x04", b"\x93NUMPY", text, text[:-1]):
        (tmp_path / "x.npz").write_bytes(content)
        refused("features", tmp_path / "x.npz")
    monkeypatch.setattr("labelgap.data.readers.features._UNPACKED_BYTES", 1 << 16)
    np.savez_compressed(tmp_path / "x.npz", train_features=np.zeros((1 << 16, 4)))  # a hundred times its size
    assert "2,097,152 bytes" in refused("features", tmp_path / "x.npz")[0]


def test_a_parquet_file_that_claims_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.parquet"
    names = pa.DictionaryArray.from_arrays(pa.array(np.zeros(300_000, dtype=np.int8)), pa.array(["a.jpg"]))
    pq.write_table(pa.table({"image": names, "cat": np.ones(300_000, dtype=np.int8)}), path)
    assert "300,000 rows" in refused("parquet", path)[0]
    monkeypatch.setattr(parquet_module, "_UNPACKED_BYTES", 1 << 10)
    pq.write_table(pa.table({"image": ["a" * 1_000_000]}), path, compression="zstd", use_dictionary=False)
    for read in (read_parquet, LabelTable.from_parquet):
        with pytest.raises(InputError, match="1,000,0"):
            read(path)
    note = pa.DictionaryArray.from_arrays(pa.array(np.zeros(5_000, dtype=np.int32)), pa.array(["x" * 1_000_000]))
    monkeypatch.undo()
    pq.write_table(pa.table({"image": [f"{row}.jpg" for row in range(5_000)], "note": note, "cat": [1] * 5_000}), path)
    with pytest.raises(ProblemsError, match="'note'"):
        read_parquet(path)  # the long text is in memory once


@pytest.mark.parametrize(
    ("name", "suffix"), [("features", "npz"), ("features", "parquet"), ("parquet", "parquet"), ("csv", "csv")]
)
def test_a_folder_or_a_pipe_in_place_of_a_file_is_refused(tmp_path: Path, name: str, suffix: str) -> None:
    (tmp_path / f"folder.{suffix}").mkdir()
    os.mkfifo(tmp_path / f"pipe.{suffix}")
    for place in ("folder", "pipe"):
        with pytest.raises(InputError, match=place):
            load(name, tmp_path / f"{place}.{suffix}")


@pytest.mark.parametrize(
    ("name", "write", "files"),
    [
        ("nuswide", nuswide, ["ConceptsList/Concepts81.txt", "ImageList/TestImagelist.txt"]),
        ("nuswide", nuswide, ["ImageList/TrainImagelist.txt", "Groundtruth/TrainTestLabels/Labels_beach_Test.txt"]),
        ("cub", cub, ["images.txt", "train_test_split.txt", "bounding_boxes.txt", "attributes/certainties.txt"]),
        ("cub", cub, ["../attributes.txt", "attributes/image_attribute_labels.txt"]),
    ],
)
def test_lists_of_anything_are_refused(
    tmp_path: Path, name: str, write: Callable[[Path], Path], files: list[str]
) -> None:
    root = write(tmp_path)
    numbers = f"{'9' * 30} {'9' * 5000} 1 1 1\n1 1e999 nan -1 0\n-1 -1 -1 -1 -1\n1 1 1 300 1\n".encode()
    for file in files:
        kept = (root / file).read_bytes()
        for content in (b"", b"\xff\xfe\0\0\n" * 40, numbers, b"\0" * 5000, "١ ٢\n".encode() * 3, b"1 " * 9000):
            (root / file).write_bytes(content)
            assert max(map(len, refused(name, root))) < 2_000
        (root / file).unlink()
        os.mkfifo(root / file)
        refused(name, root)
        (root / file).unlink()
        (root / file).write_bytes(kept)
    load(name, root)


@pytest.mark.parametrize("name", ["classes", "train_ids"])
@pytest.mark.parametrize("code", [0x110000, 0xFFFFFFFF, 0xD800])
def test_texts_of_feature_files_are_texts(tmp_path: Path, name: str, code: int) -> None:
    content = arrays()
    content[name] = np.full(len(content[name]), code, dtype=np.uint32).view("<U1")
    content[name][1:] = [str(row) for row in range(1, len(content[name]))]
    with pytest.raises(InputError, match=r"character"):
        load("features", stored(tmp_path, content))


def test_names_that_no_file_can_hold_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"'\\ud800'"):
        LabelTable.from_dense([[1]], ["\ud800"])
    for tag in ("cat", "dog"):
        (tmp_path / tag).mkdir()
        (tmp_path / tag / "a.png").write_bytes(b"x")
    try:
        Path(os.fsdecode(os.fsencode(tmp_path / "cat") + b"/\xe9.png")).write_bytes(b"x")
    except OSError:
        pytest.skip("this file system has no such names")
    with pytest.raises(ProblemsError, match=r"udce9\.png'"):
        load("folder", tmp_path)


def test_files_of_other_tools_are_refused_in_a_message(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    wrong = ('{"samples": [], "info": []}', '{"samples": [], "default_classes": 5}', '{"samples": 3}')
    for text in ("[" * 100_000, *wrong, "", "{}", '[{"data": 3}]', "[1]", None):
        path.unlink(missing_ok=True) if text is None else path.write_text(text)
        for reader in (read_fiftyone, read_label_studio):
            with pytest.raises(InputError, match=r"a\.json"):
                reader(path)
    path.write_text('[{"data": {"name": "a", "split": {}}}]')
    with pytest.raises(InputError, match="split"):
        read_label_studio(path)
    path.write_text("[]")
    path.with_suffix(".xml").write_text(LAUGHS + "]><View>&e9;</View>")
    with pytest.raises(InputError, match=r"a\.xml .* document type"):
        read_label_studio(path)
