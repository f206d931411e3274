"""Open Images in the layouts of V3 and of V4 to V7: what is known, and every problem at once with file and line."""

from __future__ import annotations

import codecs
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.data.readers.refused import places, refused

from labelgap.core.errors import InputError, UnknownNameError
from labelgap.data import load, load_from_recipe
from labelgap.data.findings import NoValRows
from labelgap.data.readers import openimages
from labelgap.data.registry import describe_dataset
from labelgap.labels.io import table_file as problem_list

HEADER = "ImageID,Source,LabelName,Confidence\n"
DESCRIPTIONS = '/m/cat,Cat\n/m/dog,"Dog, domestic"\n/m/bat,Bat\n/m/bat2,Bat\n/m/owl,Owl\n'
A, B, C = "00000000000000a1", "fffffffffffffff2", "0123456789abcdef"
LABELS = {
    "train": f"{B},verification,/m/cat,1\n{B},crowdsource-verification,/m/bat2,0\n{A},verification,/m/bat,0.0\n"
    f"{A},verification,/m/owl,1\n{C},verification,/m/owl,1\n",
    "validation": f"{A[:-1]}2,verification,/m/cat,0\n",
    "test": f"{A[:-1]}3,verification,/m/cat,1\n{A[:-1]}3,verification,/m/bat,1\n",
}
IMAGES = {"train": [B, A, C], "validation": [A[:-1] + "2"], "test": [A[:-1] + "3"]}


@pytest.fixture
def v3(tmp_path: Path) -> Path:
    """A folder as the archives of V3 unpack, beside folders of images."""
    root = tmp_path / "oi"
    base = root / "2017_11"
    for split, labels in LABELS.items():
        (base / split).mkdir(parents=True)
        (base / split / "annotations-human.csv").write_text(HEADER + labels)
        (root / split).mkdir()
        for image in IMAGES[split]:
            Image.new("RGB", (8, 4)).save(root / split / f"{image}.jpg")
    (base / "class-descriptions.csv").write_text(DESCRIPTIONS)
    (base / "classes-trainable.txt").write_text("/m/bat2\n/m/cat\n/m/bat\n")
    (base / "classes-bbox.txt").write_text("/m/cat\n")
    return root


def test_verified_labels_are_present_or_absent_and_others_unknown(v3: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = load(v3)
    assert data.classes == ("Bat (/m/bat2)", "Cat", "Bat (/m/bat)"), "in the order of the list; equal names get ids"
    assert data.train.labels.images == (A, B), "sorted; the third image has no label of a class in use"
    dense = [split.labels.to_dense().tolist() for split in data.splits]
    assert dense == [[[-1, -1, 0], [0, 1, -1]], [[-1, 0, -1]], [[-1, 1, 1]]]
    assert data.train.images[1].shape == (4, 8, 3) and "Open Images V3" in str(data.findings[1])
    everything = load("openimages", v3, classes="all")
    assert everything.classes[:2] == ("Cat", "Dog, domestic") and len(everything.train) == 3
    assert load("openimages", v3, classes=["boxable"]).classes == ("Cat",)
    named = load("openimages", v3, classes=["Owl", "/m/cat"])
    assert named.classes == ("Owl", "Cat") and named.train.labels.images == (A, C, B)
    assert named.train.labels.to_dense().tolist() == [[1, -1], [1, -1], [-1, 1]]
    monkeypatch.setattr(openimages, "_BLOCK_BYTES", 160)
    again = load_from_recipe({**named.recipe, "options": {"classes": ["Owl", "Cat"]}})
    assert again.train.labels == named.train.labels, "in blocks of a few rows"


def test_later_versions_have_the_split_in_the_name(v3: Path, tmp_path: Path) -> None:
    root, base = tmp_path / "v6", v3 / "2017_11"
    root.mkdir()
    for split, prefix in {"train": "oidv6-train", "validation": "validation", "test": "test"}.items():
        shutil.copy(base / split / "annotations-human.csv", root / f"{prefix}-annotations-human-imagelabels.csv")
    (root / "oidv6-class-descriptions.csv").write_text("LabelName,DisplayName\n" + DESCRIPTIONS)
    shutil.copy(base / "classes-trainable.txt", root / "oidv6-classes-trainable.txt")
    flat = tmp_path / "photos"
    flat.mkdir()
    for file in v3.glob("t*/*.jpg"):
        shutil.copy(file, flat)
    with pytest.raises(InputError, match=r"00000000000000a2\.jpg.*--images"):
        load("openimages", root, images=flat)
    data = load("openimages", root, images=flat, on_bad_image="skip")
    assert data.train.labels == load("openimages", v3).train.labels and data.val is None
    assert data.findings[-1] == NoValRows(2) and "V4 to V7" in str(data.findings[0])
    (root / "train_f").mkdir()
    shutil.copy(flat / f"{B}.jpg", root / "train_f")
    archives = load("openimages", root, on_bad_image="skip")
    assert archives.train.labels.images == (B,) and archives.train.images[0].shape == (4, 8, 3)
    shutil.copytree(base / "validation", root / "validation")
    (root / "validation-annotations-human-imagelabels.csv").unlink()
    assert "validation/annotations-human.csv" in places("openimages", root), "of another version"


def test_labels_of_a_network_and_boxes_are_read_on_request(v3: Path) -> None:
    machine = f"{A},machine,/m/cat,0.9\n{A},machine,/m/bat,1.0\n{B},machine,/m/bat,0.6\n"
    boxes = f"{B},xclick,/m/cat,1,0.25,0.75,0,0.5,0,0,1\n{B},xclick,/m/cat,1,0,0.01,0.5,1,0,0,0\n"
    boxes += f"{C},xclick,/m/owl,1,0,1,0,1,0,0,0\n{B},xclick,/m/cat,1,1,1,1,1,0,0,0\n"
    boxes += f"{A},xclick,/m/owl,1,0,1,0,1,0,0,0\n{B},xclick,/m/ghost,1,0,1,0,1,0,0,0\n{A},x,/m/owl,1,0,1,0,1,0,0,0\n"
    edges = "ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax,IsOccluded,IsTruncated,IsGroupOf\n"
    for split in LABELS:
        folder = v3 / "2017_11" / split
        (folder / "annotations-machine.csv").write_text(HEADER + (machine if split == "train" else ""))
        (folder / "annotations-human-bbox.csv").write_text(edges + (boxes if split == "train" else ""))
    plain = load("openimages", v3)
    assert plain.train.boxes is None and plain.train.labels.to_dense().tolist() == [[-1, -1, 0], [0, 1, -1]]
    data = load("openimages", v3, machine=0.9, boxes=True)
    assert data.train.labels.to_dense().tolist() == [[-1, 1, 0], [0, 1, -1]], "what people verified stays"
    found = data.train.boxes
    assert found is not None and found.difficult is not None
    assert found.rows.tolist() == [1, 1, 1] and found.classes.tolist() == [1, 1, 1]
    assert np.allclose(found.corners, [[2, 0, 5, 1], [0, 2, 0, 3], [7, 3, 7, 3]]), "in pixels of 8 × 4, edges inclusive"
    assert found.difficult.tolist() == [True, False, False], "a group"
    assert any(str(each).endswith("Owl 2, /m/ghost 1") for each in data.findings), "left out"
    file = v3 / "2017_11/train/annotations-human-bbox.csv"
    wrong = {"0.25,0.75": "0.25,0.75,", "0.01": "x", f"{B},xclick,/m/ghost,1,0,1": f"{B},xclick,/m/ghost,1,1,0"}
    for old, new in wrong.items():
        boxes = boxes.replace(old, new, 1)
    file.write_text(edges + boxes)
    where = "2017_11/train/annotations-human-bbox.csv, line "
    assert places("openimages", v3, boxes=True) == [f"{where}{line}" for line in (2, 3, 7)]
    with pytest.raises(InputError, match="machine=2"):
        load("openimages", v3, machine=2.0)


def test_repeated_rows_count_once_and_contradicted_labels_are_unknown(v3: Path) -> None:
    file = v3 / "2017_11/train/annotations-human.csv"
    file.write_text(file.read_text() + f"{B},verification,/m/cat,1\n{A},verification,/m/bat,1\n")
    data = load("openimages", v3)
    assert data.train.labels.to_dense().tolist() == [[0, 1, -1]], "an image without a known label is left out"
    assert data.train.labels.images == (B,)
    assert sum(str(each).startswith(("1 label", "1 row")) for each in data.findings) == 2


def test_every_problem_of_every_file_is_told_at_once(v3: Path) -> None:
    base = v3 / "2017_11"
    bad = f'{B},verification,/m/cat,0.7\n{A}\n\n{B},"two\nlines",/m/cat,1\nABC,verification,/m/cat,1\n'
    bad += f"{C},verification,/m/cow,1\n{A},verif"
    (base / "train/annotations-human.csv").write_text(HEADER + bad)
    (base / "test/annotations-human.csv").write_text("ImageID,ImageID,LabelName,Confidence\n")
    (base / "validation/annotations-human.csv").write_text("")
    expected = [f"2017_11/train/annotations-human.csv, line {line}" for line in (2, 3, 7, 8, 9)]
    expected += [f"2017_11/{split}/annotations-human.csv, line 1" for split in ("validation", "test")]
    assert sorted(places("openimages", v3)) == sorted(expected)


@pytest.mark.parametrize("start", [b"", codecs.BOM_UTF8])
def test_bytes_that_are_no_text_have_their_line(v3: Path, start: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    base, more = v3 / "2017_11", f"{A},verification,/m/cat,1\n" * 9000
    file = base / "train/annotations-human.csv"
    file.write_bytes(start + (HEADER + LABELS["train"]).encode() + b"\xff\xfe\x80,ab\n\xc3,\xff,a,1\n" + more.encode())
    (base / "class-descriptions.csv").write_bytes(start + DESCRIPTIONS.encode())
    assert places("openimages", v3) == [f"2017_11/train/annotations-human.csv, line {line}" for line in (7, 8, 8)]
    file.write_bytes(start + (HEADER + LABELS["train"].replace("crowdsource", "Zoé")).encode())
    (base / "class-descriptions.csv").write_bytes(start + DESCRIPTIONS.encode().replace(b"Owl", b"\xffwl"))
    assert places("openimages", v3) == ["2017_11/class-descriptions.csv, line 5"]
    assert capfd.readouterr() == ("", ""), "no traceback of pyarrow"


def test_after_too_many_problems_reading_stops(v3: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(problem_list, "MAX_PROBLEMS", 5)
    (v3 / "2017_11/train/annotations-human.csv").write_text(HEADER + "a,b\n" * 9)
    assert len(refused("openimages", v3)) == 6


def test_bad_lists_of_classes_and_missing_files_are_told(v3: Path) -> None:
    base = v3 / "2017_11"
    long = f"/m/{'x' * 100}"
    (base / "class-descriptions.csv").write_text(DESCRIPTIONS + f"/m/cat,Cat again\nnonsense\n{long},A\n{long},A\n")
    (base / "classes-trainable.txt").write_text("/m/cat\n/m/cow\n/m/cat\n")
    expected = [f"2017_11/class-descriptions.csv, line {line}" for line in (6, 7, 9)]
    assert places("openimages", v3) == expected + [f"2017_11/classes-trainable.txt, line {line}" for line in (2, 3)]
    (base / "class-descriptions.csv").write_text(f'{DESCRIPTIONS}/m/ant,"{"a" * 140_000}')
    assert places("openimages", v3)[0] == "2017_11/class-descriptions.csv, line 6"
    (base / "class-descriptions.csv").write_text(DESCRIPTIONS)
    with pytest.raises(InputError, match="'boxable'"):
        load("openimages", v3, classes=["Owl", "boxable"])
    with pytest.raises(UnknownNameError, match="'Owl'"):
        load("openimages", v3, classes=["Owll"])
    shutil.copy(v3 / "train" / f"{A}.jpg", v3 / "test")
    (base / "test/annotations-human.csv").write_text(HEADER + f"{A},verification,/m/cat,1\n")
    with pytest.raises(InputError, match=A):
        load("openimages", v3, classes="all")
    (base / "test/annotations-human.csv").unlink()
    (base / "classes-trainable.txt").unlink()
    assert places("openimages", v3, classes="trainable") == ["test/annotations-human.csv", "classes-trainable.txt"]


def test_without_a_list_of_classes_all_that_are_described_are_used(v3: Path, tmp_path: Path) -> None:
    base = v3 / "2017_11"
    (base / "classes-trainable.txt").unlink()
    layout = describe_dataset("openimages")
    data, everything = load(v3), load("openimages", v3, classes="all")
    assert data.train.labels == everything.train.labels and len(data.classes) == 5 and not layout.problems(v3)
    assert len(data.findings) == len(everything.findings) + 2, "recognized; and which classes are used"
    boxable = tmp_path / "boxable"
    boxable.mkdir()
    for split in LABELS:
        name = f"{split}-annotations-human-imagelabels-boxable.csv"
        shutil.copy(base / split / "annotations-human.csv", boxable / name)
    (boxable / "class-descriptions-boxable.csv").write_text("/m/cat,Cat\n/m/owl,Owl\n")
    found = load(boxable, images=v3)
    assert found.classes == ("Cat", "Owl") and found.train.labels.shape == (3, 2) and not layout.problems(boxable)
    (boxable / "class-descriptions-boxable.csv").unlink()
    assert len(layout.problems(boxable)) == 1
