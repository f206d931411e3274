"""Fuzz the readers of data sets: features, COCO, VOC, spml, CheXpert, ARFF, Hugging Face, other tools, recipes of runs.

    python benchmarks/fuzz_datasets.py [CASES] [--seed SEED] [--keep FOLDER]

Every case takes a small data set, damages its bytes, its arrays, its JSON or its XML, and loads it. It is loaded, or
refused with a message: any other error is a failure, and so is memory that grows by more than a gigabyte, since a few
kilobytes can claim to be terabytes. 100,000 cases take some minutes of one core. ``fuzz_importers.py`` does the same
for tables of labels. Failing cases are printed with their number, which reproduces them, and stored in FOLDER.
"""

from __future__ import annotations

import argparse
import copy
import io
import json
import resource
import shutil
import struct
import sys
import tempfile
import time
import traceback
import zipfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from labelgap.core.errors import LabelGapError
from labelgap.data import load, load_from_recipe
from labelgap.data.writers.formats import read_fiftyone, read_label_studio, write_fiftyone
from labelgap.labels.io.classes import implied_labels, read_name_pairs, resolve_aliases

CLASSES: Final = ("cat", "dog", "owl")
MEMORY: Final = 1 << 30
MAX_MESSAGE: Final = 20_000
NUMBERS: Final = (0, -1, 1.5, 1e999, -1e999, float("nan"), 10**30, 2**63, True, None, "", "1", "x" * 500, "1e999")
TEXTS: Final = ("a\nb", "a\0b", "../../secret", "\ud800", "\x1b[2J", "=1+1")
VALUES: Final[list[Any]] = [*NUMBERS, *TEXTS, [], {}, [[]], {"a": 1}, [1, 2]]
SHAPES: Final = ("()", "(0,)", "(1,)", "(-1,)", "(10**18,)", "(9999999999999,)", "(2,2,2)", "(True,)", "('a',)", "")
DESCRIPTIONS: Final = ("<f4", "<f8", "|O", "<U9", "|V8", "<M8[s]", "|b1", "<c16", "<U999999999", "<i8", "x", "<f4,<f4")
PIECES: Final = [
    *(b"", b"\0", b"\xff", b'"', b"{", b"[", b"]" * 99, b"1e999", b"NaN", b"-Infinity", b"9" * 5_000, b"nan", b"inf"),
    *(b"<!DOCTYPE a [<!ENTITY b 'c'>]>", b"&b;", b"&#0;", b"<object>", b"</annotation>", b"<a>" * 200, b"[" * 5_000),
    *(
        b'<!DOCTYPE a [<!ENTITY b SYSTEM "secret.txt">]>',
        b"\xef\xbb\xbf",
        b"\xff\xfe",
        b"\r",
        b",",
        b"\n",
        b"'=",
    ),
]
LAUGHS: Final = b"".join(
    [b"<!DOCTYPE a [<!ENTITY e0 'ha'>", *(b"<!ENTITY e%d '%b'>" % (n, b"&e%d;" % (n - 1) * 10) for n in range(1, 10))]
)


class Case:
    """One damaged data set, with its random numbers and its folder."""

    def __init__(self, number: int, seed: int, folder: Path) -> None:
        self.random = np.random.default_rng([seed, number])
        self.folder = folder

    def below(self, count: int) -> int:
        """Draw a number from 0 below ``count``."""
        return int(self.random.integers(max(count, 1)))

    def pick(self, values: Any) -> Any:
        """Choose one of several."""
        return values[self.below(len(values))]

    def damage_bytes(self, data: bytes) -> bytes:
        """Change, insert, remove or repeat bytes, once or a few times."""
        for _ in range(1 + self.below(4)):
            at, kind = self.below(len(data)), self.below(5)
            if kind == 0:
                data = data[:at] + bytes([self.below(256)]) + data[at + 1 :]
            elif kind == 1:
                data = data[:at] + self.pick(PIECES) + data[at:]
            elif kind == 2:
                data = data[:at] + data[at + 1 + self.below(20) :]
            elif kind == 3:
                data = data[:at]
            else:
                data = data[:at] + data[max(at - self.below(200), 0) :]
        return data

    def damage_tree(self, value: Any) -> Any:
        """Replace or remove some values of nested lists and mappings."""
        value = copy.deepcopy(value)
        for _ in range(1 + self.below(3)):
            place: Any = value
            for _ in range(6):
                if not isinstance(place, dict | list) or not place:
                    break
                key = self.pick(list(place)) if isinstance(place, dict) else self.below(len(place))
                if not isinstance(place[key], dict | list) or not place[key] or self.below(4) == 0:
                    if self.below(5) == 0:
                        del place[key]
                    elif self.below(8) == 0 and isinstance(place, dict):
                        place[str(self.pick(VALUES))] = place.pop(key)
                    else:
                        place[key] = copy.deepcopy(self.pick(VALUES))
                    break
                place = place[key]
        return value


def feature_arrays() -> dict[str, Any]:
    random = np.random.default_rng(0)
    arrays: dict[str, Any] = {"classes": np.array(CLASSES)}
    for split, count in (("train", 9), ("val", 4), ("test", 3)):
        arrays[f"{split}_features"] = random.normal(size=(count, 5)).astype(np.float32)
        arrays[f"{split}_ids"] = np.array([f"{split}{row}" for row in range(count)])
        arrays[f"{split}_truth"] = random.integers(0, 2, (count, 3)).astype(np.int8)
        arrays[f"{split}_observed"] = np.where(random.random((count, 3)) < 0.5, arrays[f"{split}_truth"], -1)
    return arrays


def npy(array: np.ndarray[Any, Any], description: str, shape: str) -> bytes:
    """An array with a header of one's own."""
    header = f"{{'descr': {description!r}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + array.tobytes()


def check_features(case: Case) -> None:
    path = case.folder / "case.npz"
    arrays = feature_arrays()
    kind = case.below(4)
    if kind == 0:
        for _ in range(1 + case.below(2)):
            name = case.pick(list(arrays))
            changed = np.atleast_1d(arrays.pop(name))
            other = [
                np.float32(1),
                changed[:1],
                changed[..., None],
                changed[:0],
                changed.astype(str),
                changed.ravel()[:2],
            ]
            other += [np.zeros((3, 3), case.pick(["M8[s]", "c8", "f2", "?", "S3", "u8"])), changed.T]
            if changed.dtype.kind == "U":
                codes = case.pick([[0x110000], [0xFFFFFFFF], [0xD800], [10], [0]]) * len(changed)
                other.append(np.array(codes, dtype=np.uint32).view("<U1"))
            arrays[case.pick([name, name, "extra", "train_labels"])] = np.asarray(case.pick(other))
        np.savez(path, **arrays)
    elif kind == 1:
        with zipfile.ZipFile(path, "w", case.pick([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])) as archive:
            chosen = case.pick(list(arrays))
            for name, array in arrays.items():
                text = npy(array, array.dtype.str, str(array.shape))
                if name == chosen:
                    shape = case.pick([*SHAPES, str(array.shape)])
                    text = npy(array, case.pick([*DESCRIPTIONS, array.dtype.str]), shape)
                archive.writestr(f"{name}.npy", text)
    else:
        buffer = io.BytesIO()
        (np.savez if kind == 2 else np.savez_compressed)(buffer, **arrays)
        path.write_bytes(case.damage_bytes(buffer.getvalue()))
    load("features", path)


def check_feature_table(case: Case) -> None:
    path = case.folder / "case.parquet"
    splits = ["train"] * 6 + ["val"] * 2
    columns: dict[str, Any] = {"id": [str(row) for row in range(8)], "split": splits}
    columns |= {"features": [[1.0, 2.0]] * 8, "labels": [[1, 0, -1]] * 8}
    table = pa.table(columns).replace_schema_metadata({"classes": json.dumps(CLASSES)})
    if case.below(2):
        name = case.pick(table.column_names)
        values: Any = case.pick(
            [[None] * 8, [[None]] * 8, ["a"] * 8, [[]] * 8, [[1.0]] * 7 + [[1.0, 2.0]], [b"\xff"] * 8]
        )
        table = table.set_column(table.column_names.index(name), name, pa.array(values))
    metadata = {"classes": case.pick(["[]", "{", json.dumps(CLASSES), "[1,[2]]", "[" * 9999])}
    pq.write_table(table.replace_schema_metadata(metadata), path)
    if case.below(2):
        path.write_bytes(case.damage_bytes(path.read_bytes()))
    load("features", path)


def make_coco(folder: Path) -> dict[str, Any]:
    """Photos of COCO; returned are the contents of its two files."""
    contents = {}
    for split in ("train2014", "val2014"):
        (folder / "coco" / split).mkdir(parents=True)
        images = [{"id": number, "file_name": f"{number}.jpg"} for number in (9, 100, 25, 7)]
        for each in images:
            Image.new("RGB", (4, 4)).save(folder / "coco" / split / str(each["file_name"]))
        marks = [
            {"id": number, "image_id": image, "category_id": 1 + number % 3, "bbox": [1, 2.5, 3, 4], "iscrowd": 0}
            for number, image in enumerate((9, 100, 25, 9, 100))
        ]
        categories = [{"id": number, "name": name} for number, name in enumerate(CLASSES, 1)]
        contents[split] = {"images": images, "annotations": marks, "categories": categories}
    (folder / "coco" / "annotations").mkdir()
    return contents


def check_coco(case: Case, contents: dict[str, Any]) -> None:
    damaged = case.pick(list(contents))
    for split, content in contents.items():
        path = case.folder / "coco" / "annotations" / f"instances_{split}.json"
        data = json.dumps(content).encode()
        if split == damaged:
            tree = json.dumps(case.damage_tree(content)).encode()
            data = tree if case.below(3) else case.damage_bytes(data)
        path.write_bytes(data)
    load("coco2014", case.folder / "coco")


def make_voc(folder: Path) -> dict[Path, bytes]:
    """A devkit; returned are its texts."""
    root = folder / "VOCdevkit" / "VOC2012"
    for name in ("ImageSets/Main", "JPEGImages", "Annotations"):
        (root / name).mkdir(parents=True)
    texts: dict[Path, bytes] = {}
    for split, images in (("train", "abcdef"), ("val", "gh")):
        for number, name in enumerate(CLASSES):
            lines = [f"{image} {(1, -1, 0)[(row + number) % 3]:2d}\n" for row, image in enumerate(images)]
            texts[root / "ImageSets" / "Main" / f"{name}_{split}.txt"] = "".join(lines).encode()
        for image in images:
            Image.new("RGB", (4, 4)).save(root / "JPEGImages" / f"{image}.jpg")
            box = "<bndbox><xmin>1</xmin><ymin>2</ymin><xmax>3.5</xmax><ymax>4</ymax></bndbox>"
            marked = f"<annotation><object><name>cat</name><difficult>0</difficult>{box}</object></annotation>"
            texts[root / "Annotations" / f"{image}.xml"] = marked.encode()
    for path, data in texts.items():
        path.write_bytes(data)
    return texts


def check_voc(case: Case, texts: dict[Path, bytes]) -> None:
    path = case.pick(list(texts))
    data = case.damage_bytes(texts[path])
    if path.suffix == ".xml" and case.below(20) == 0:
        data = LAUGHS + b"]><annotation>&e9;</annotation>"
    if path.suffix == ".xml" and case.below(6) == 0:
        data = data.decode("latin-1").encode("utf-16")
    path.write_bytes(data)
    try:
        load("voc2012", case.folder / "VOCdevkit")
    finally:
        path.write_bytes(texts[path])


def make_published(folder: Path) -> dict[str, tuple[Path, dict[str, Any]]]:
    """A folder of each layout that is damaged byte by byte, with the options to read it."""
    header = "Path,Sex,Age,Frontal/Lateral,AP/PA," + ",".join(CLASSES)
    attributes = "".join(f"@attribute {name} {{0,1}}\n" for name in CLASSES) + "@attribute x numeric\n@data\n"
    roots = {name: folder / name for name in ("chexpert", "arff", "huggingface", "spml")}
    for root in roots.values():
        (root / "train").mkdir(parents=True)
        for row in range(4):
            Image.new("RGB", (4, 4)).save(root / "train" / f"{row}.jpg")
    rows = [
        f"v1/train/{row}.jpg,Male,5{row},Frontal,AP,{cells}"
        for row, cells in enumerate(("1,,-1", "0,1,", ",1.0,0", ",,1"))
    ]
    (roots["chexpert"] / "train.csv").write_text("\n".join([header, *rows]))
    (roots["arff"] / "a-train.arff").write_text(f"@relation 'a: -C 3'\n{attributes}1,0,?,0.5\n'0',1,1,?\n")
    (roots["arff"] / "a-test.arff").write_text(f"@relation 'a: -C 3'\n{attributes}{{0 1,3 0.5}}\n{{1 ?, 2 1}}\n")
    (roots["arff"] / "a.xml").write_text(
        "<labels>" + "".join(f'<label name="{name}"/>' for name in CLASSES) + "</labels>"
    )
    photo = (roots["spml"] / "train" / "0.jpg").read_bytes()
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table({"image": pa.array([{"bytes": photo}] * 4, kind), "tags": [["cat"], [], ["owl", "dog"], None]})
    with (
        pa.OSFile(str(roots["huggingface"] / "data.arrow"), "wb") as sink,
        pa.ipc.new_stream(sink, table.schema) as out,
    ):
        out.write_table(table)
    (roots["huggingface"] / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))
    (roots["huggingface"] / "dataset_info.json").write_text(json.dumps({"features": {"image": {"_type": "Image"}}}))
    (folder / "hub" / "data").mkdir(parents=True)
    pq.write_table(table, folder / "hub" / "data" / "train-00000-of-00001.parquet", row_group_size=2)
    for split, names in (("train", "012"), ("val", "3")):
        images, labels = np.array([f"train/{name}.jpg" for name in names]), np.ones((len(names), 3))
        for name, array in (("images", images), ("labels", labels), ("labels_obs", np.eye(3)[: len(names)])):
            np.save(roots["spml"] / f"formatted_{split}_{name}.npy", array)
    return {
        **{name: (root, {"uncertain": "absent"} if name == "chexpert" else {}) for name, root in roots.items()},
        "huggingface Parquet": (folder / "hub", {}),
    }


def check_published(case: Case, name: str, root: Path, options: dict[str, Any]) -> None:
    path = case.pick(sorted(each for each in root.rglob("*") if each.is_file() and each.suffix != ".jpg"))
    whole = path.read_bytes()
    path.write_bytes(case.damage_bytes(whole))
    try:
        data = load(name.partition(" ")[0], root, **options)
        if name.startswith("huggingface"):
            [data.train.images[row] for row in range(len(data.train))]
    finally:
        path.write_bytes(whole)


def check_exchange(case: Case) -> None:
    data = load("digits", train=3, val=2, test=0)
    path, studio = case.folder / "case.json", case.below(2)
    files = [path, *([path.with_suffix(".xml")] if studio else [])]
    if studio:
        task = {"image": "a.jpg", "name": "a.jpg", "split": "train"}
        choices = {"from_name": "present", "value": {"choices": list(CLASSES[:2])}}
        path.write_text(json.dumps([{"data": task, "annotations": [{"result": [choices]}]}]))
        names = "".join(f'<Choice value="{name}"/>' for name in CLASSES)
        files[1].write_text(f'<View><Choices name="present">{names}</Choices></View>')
    else:
        write_fiftyone(data, path)
    damaged = case.pick(files)
    if damaged is path and case.below(3):
        path.write_text(json.dumps(case.damage_tree(json.loads(path.read_text()))))
    else:
        damaged.write_bytes(case.damage_bytes(damaged.read_bytes()))
    (read_label_studio if studio else read_fiftyone)(path)


def check_names(case: Case) -> None:
    path = case.folder / "case.csv"
    lines = [b"a,b", b"b,c", b"dog,animal", b"owl,animal", b"'=1,x", b'"q",r'] * (1 + case.below(3))
    path.write_bytes(case.damage_bytes(b"\n".join(lines)))
    pairs = read_name_pairs(path, "child", "parent")
    table = load("digits", train=3, val=0, test=0).train.labels
    implied_labels(table, pairs)
    resolve_aliases(pairs, "aliases")


def check_recipe(case: Case) -> None:
    recipe: dict[str, Any]
    step = {"observe": {"positives": 1, "negatives": "all", "seed": 7, "splits": ["train"]}}
    options = {"train": 4, "val": 2, "test": 0, "seed": 0}
    recipe = {"name": "digits", "path": None, "options": options, "steps": [step, {"reveal": {"splits": ["val"]}}]}
    if case.below(2):
        recipe |= {
            "name": "csv",
            "path": str(case.folder / "tags.csv"),
            "options": {"duplicates": "off", "classes": ["c"]},
        }
    load_from_recipe(case.damage_tree(recipe))


def run(case: Case, kinds: dict[str, Callable[[Case], None]]) -> str:
    """Make and check one case; return what came of it."""
    kind = case.pick(list(kinds))
    try:
        kinds[kind](case)
    except LabelGapError as error:
        if len(str(error)) > MAX_MESSAGE:
            raise AssertionError(f"an error of {len(str(error)):,} characters") from error
        return f"{kind} refused"
    return f"{kind} loaded"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="?", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, default=None, help="folder for data that fail")
    arguments = parser.parse_args()
    outcomes: Counter[str] = Counter()
    failed, started = 0, time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        coco, voc = make_coco(folder), make_voc(folder)
        published = make_published(folder / "published")
        (folder / "tags.csv").write_text("image,c\na.jpg,1\n")
        kinds: dict[str, Callable[[Case], None]] = {
            "features": check_features,
            "feature table": check_feature_table,
            "coco": lambda case: check_coco(case, coco),
            "voc": lambda case: check_voc(case, voc),
            **{
                name: partial(check_published, name=name, root=root, options=options)
                for name, (root, options) in published.items()
            },
            "exchange": check_exchange,
            "names": check_names,
            "recipe": check_recipe,
        }
        for number in range(min(50, arguments.cases)):  # what the libraries need
            run_quietly(Case(number, arguments.seed, folder), kinds)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for number in range(arguments.cases):
            try:
                outcomes[run(Case(number, arguments.seed, folder), kinds)] += 1
            except Exception:
                failed += 1
                print(f"case {number} (seed {arguments.seed}):\n{traceback.format_exc(limit=-4)[-3000:]}")
                if arguments.keep is not None:
                    shutil.copytree(folder, arguments.keep / str(number), dirs_exist_ok=True)
        grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    for outcome, count in sorted(outcomes.items()):
        print(f"{outcome:<24}{count:>9,}")
    seconds = time.perf_counter() - started
    print(f"{arguments.cases:,} cases in {seconds:.0f} s, memory grew by {grown / 2**20:.0f} MiB")
    print(f"failed {failed}")
    sys.exit(1 if failed or grown > MEMORY else 0)


def run_quietly(case: Case, kinds: dict[str, Callable[[Case], None]]) -> None:
    try:
        run(case, kinds)
    except Exception:
        return


if __name__ == "__main__":
    main()
