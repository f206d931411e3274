"""Data sets in the formats that people and other tools write: a small one of each, and how it is read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

import labelgap as lg
from labelgap.data.writers.fiftyone import read_fiftyone, write_fiftyone
from labelgap.data.writers.label_studio import read_label_studio
from labelgap.labels.io.classes import implied_labels, read_name_pairs, resolve_aliases
from labelgap.labels.io.dialect import detect_dialect
from labelgap.labels.io.formats import read_csv, read_parquet
from labelgap.labels.io.parse import is_header
from labelgap.labels.io.table_file import TableOptions

CLASSES: Final = ("cat", "dog", "owl")
OPTIONS: Final = TableOptions(zeros="unknown", rename={"dog": "Dog"}, ignore_columns=("group",))


def make_data_sets(root: Path) -> None:
    """Write all of them below a folder, each in a folder of its own, but for files that stand alone."""
    for name in ("chexpert", "arff", "huggingface", "hub", "spml", "studio"):
        _photos(root / name / "train", range(4))
    rows = [
        f"v1/train/{row}.jpg,M,5,Frontal,AP,{cells}" for row, cells in enumerate(("1,,-1", "0,1,", ",1.0,0", ",,1"))
    ]
    _write(root / "chexpert/train.csv", ["Path,Sex,Age,Frontal/Lateral,AP/PA," + ",".join(CLASSES), *rows])
    head = ["@relation 'a: -C 3'", *(f"@attribute {name} {{0,1}}" for name in CLASSES), "@attribute x numeric", "@data"]
    _write(root / "arff/a-train.arff", [*head, "1,0,?,0.5", "'0',1,1,?"])
    _write(root / "arff/a-test.arff", [*head, "{0 1,3 0.5}", "{1 ?, 2 1}"])
    _write(root / "arff/a.xml", ["<labels>", *(f'<label name="{name}"/>' for name in CLASSES), "</labels>"])
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    images = pa.array([{"bytes": (root / "hub/train/0.jpg").read_bytes()}] * 4, kind)
    table = pa.table({"image": images, "tags": [["cat"], [], ["owl", "dog"], None]})
    with pa.OSFile(str(root / "huggingface/data.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)
    _write_json(root / "huggingface/state.json", {"_data_files": [{"filename": "data.arrow"}]})
    _write_json(root / "huggingface/dataset_info.json", {"features": {"image": {"_type": "Image"}}})
    (root / "hub/data").mkdir()
    pq.write_table(table, root / "hub/data/train-00000-of-00001.parquet", row_group_size=2)
    for split, names in (("train", "012"), ("val", "3")):
        arrays = {"images": np.array([f"train/{name}.jpg" for name in names]), "labels": np.ones((len(names), 3))}
        for name, array in {**arrays, "labels_obs": np.eye(3)[: len(names)]}.items():
            np.save(root / f"spml/formatted_{split}_{name}.npy", array)
    choices = {"from_name": "present", "value": {"choices": list(CLASSES[:2])}}
    task = {"data": {"image": "a.jpg", "name": "a.jpg", "split": "train"}, "annotations": [{"result": [choices]}]}
    _write_json(root / "studio/case.json", [task])
    values = "".join(f'<Choice value="{name}"/>' for name in CLASSES)
    _write(root / "studio/case.xml", [f'<View><Choices name="present">{values}</Choices></View>'])
    digits = lg.load("digits", train=3, val=2, test=0)
    write_fiftyone(digits, root / "fiftyone.json")
    _write(root / "names.csv", ["child,parent", "b,c", "dog,animal", "owl,animal", "'=1,x", '"q",r'])
    _voc(root / "VOCdevkit/VOC2012")
    _tables(root)


def _voc(root: Path) -> None:
    box = "<bndbox><xmin>1</xmin><ymin>2</ymin><xmax>3.5</xmax><ymax>4</ymax></bndbox>"
    marked = f"<annotation><object><name>cat</name><difficult>0</difficult>{box}</object></annotation>"
    _photos(root / "JPEGImages", "abcdefgh")
    for split, images in (("train", "abcdef"), ("val", "gh")):
        for number, name in enumerate(CLASSES):
            lines = [f"{image} {(1, -1, 0)[(row + number) % 3]:2d}" for row, image in enumerate(images)]
            _write(root / f"ImageSets/Main/{name}_{split}.txt", lines)
        for image in images:
            _write(root / f"Annotations/{image}.xml", [marked])


def _tables(root: Path) -> None:
    """Tables as programs write them: a column for each class, lists of names, other marks and encodings, Parquet."""
    random = np.random.default_rng(0)
    wide, lists = ["image,split,group,cat,dog,café"], ["image,split,present,absent"]
    for row in range(24):
        states, place = random.choice(["1", "0", ""], 3).tolist(), f"{row:03d}.png,{('train', 'val', 'test')[row % 3]}"
        wide.append(f"{place},{row // 4},{','.join(states)}")
        named = (";".join(name for name, state in zip(CLASSES, states, strict=True) if state == code) for code in "10")
        lists.append(f"{place},{','.join(named)}")
    _write(root / "wide.csv", wide)
    _write(root / "lists.csv", [line.replace(",", "\t") for line in lists])
    (root / "excel.csv").write_bytes(("sep=;\r\n" + "\r\n".join(wide).replace(",", ";")).encode("cp1252"))
    columns: dict[str, Any] = {"image": [f"{row:03d}.png" for row in range(24)], "group": ["a", "b"] * 12}
    columns |= {"cat": [0, 1] * 12, "dog": [None, True, False] * 8, "owl": [float("nan"), 1.0] * 12}
    pq.write_table(pa.table(columns), root / "wide.parquet")


def _photos(folder: Path, names: Iterable[object]) -> None:
    folder.mkdir(parents=True)
    for name in names:
        Image.new("RGB", (4, 4)).save(folder / f"{name}.jpg")


def _write(path: Path, lines: Iterable[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content))


def describe_splits(data: lg.Dataset) -> Any:
    return [(split.name, split.labels, split.truth, len(split.images)) for split in data.splits]


def _table(path: Path) -> Any:
    """Read a table: no row may be lost."""
    found = []
    for options in (TableOptions(), *([OPTIONS] if path.name != "lists.csv" else [])):
        if path.suffix == ".parquet":
            table, rows = read_parquet(path, options).table, pq.ParquetFile(path).metadata.num_rows
        else:
            table, rows = read_csv(path, options).table, _count_rows(path, options)
        assert rows is None or rows == len(table), f"{rows} rows in the file, {len(table)} in the table"
        found.append(table)
    return found


def _count_rows(path: Path, options: TableOptions) -> int | None:
    """Count the rows of a CSV without a CSV reader; None where quotes make a line something else than a row."""
    dialect = detect_dialect(path, None, None, lambda header: is_header(header, options))
    text = path.read_bytes().decode(dialect.encoding)
    lines = re.split("\r\n|\r|\n", text)[dialect.skip :]
    header, *rows = (line for line in lines if any(map(str.strip, line.split(dialect.delimiter))))
    return None if '"' in text else sum(row != header for row in rows)


def _hub(folder: Path) -> Any:
    data = lg.load("huggingface", folder)
    return [describe_splits(data), [np.asarray(data.train.images[row]) for row in range(len(data.train))]]


def _names(path: Path) -> Any:
    pairs = read_name_pairs(path, "child", "parent")
    table = lg.load("digits", train=3, val=0, test=0).train.labels
    return [implied_labels(table, pairs), resolve_aliases(pairs, "aliases")]


DATA_READERS: Final[dict[str, Callable[[Path], Any]]] = {
    "arff": lambda folder: describe_splits(lg.load("arff", folder)),
    "spml": lambda folder: describe_splits(lg.load("spml", folder)),
    "voc2012": lambda folder: describe_splits(lg.load("voc2012", folder)),
    "chexpert": lambda folder: describe_splits(lg.load("chexpert", folder, uncertain="absent")),
    "fiftyone": read_fiftyone,
    "huggingface": _hub,
    "label studio": lambda folder: read_label_studio(folder / "case.json"),
    "names": _names,
    "table": _table,
}
DATA_TARGETS: Final[dict[str, str]] = {
    **dict.fromkeys(("wide.csv", "lists.csv", "excel.csv", "wide.parquet"), "table"),
    **dict.fromkeys(("arff/a-train.arff", "arff/a-test.arff", "arff/a.xml"), "arff"),
    **dict.fromkeys(
        ("huggingface/data.arrow", "huggingface/state.json", "huggingface/dataset_info.json"), "huggingface"
    ),
    **{"hub/data/train-00000-of-00001.parquet": "huggingface", "chexpert/train.csv": "chexpert"},
    **{f"spml/formatted_train_{name}.npy": "spml" for name in ("images", "labels", "labels_obs")},
    **{f"VOCdevkit/VOC2012/{name}": "voc2012" for name in ("ImageSets/Main/cat_train.txt", "Annotations/a.xml")},
    **{"studio/case.json": "label studio", "studio/case.xml": "label studio"},
    **{"fiftyone.json": "fiftyone", "names.csv": "names"},
}
"""File to damage → its reader."""
