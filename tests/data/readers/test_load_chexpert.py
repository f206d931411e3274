"""CheXpert's tables: 1, 0, −1 = uncertain, blank; uncertain is decided by the user, patients stay together."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image
from tests.data.readers.refused import places, refused
from tests.data.sentences import sentences

from labelgap.core.errors import InputError
from labelgap.data.findings import LeaksAllowed
from labelgap.data.registry import describe_dataset, load
from labelgap.data.split import hold_out_val

FACTS = "Path,Sex,Age,Frontal/Lateral,AP/PA"
CLASSES = ("No Finding", "Cardiomegaly", "Edema", "Support Devices")
HEADER = f"{FACTS},{','.join(CLASSES)}\n"
CELLS = ("1.0,,,", ",1.0,-1.0,0.0", ",-1.0,0.0,", ",,1.0,1.0")


def row(split: str, patient: int, view: int = 1, cells: str = CELLS[0], version: str = "CheXpert-v1.0-small") -> str:
    image = f"{version}/{split}/patient{patient:05d}/study1/view{view}_frontal.jpg"
    return f"{image},Female,{60 + patient},Frontal,AP,{cells}\n"


def photo(folder: Path, line: str, first: int = 1) -> None:
    path = folder.joinpath(*line.partition(",")[0].split("/")[first:])
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (9, 8), 40).save(path)


def chexpert(folder: Path, name: str = "CheXpert-v1.0-small", valid: bool = True) -> Path:
    """Write the tables and images of six patients of train, two images each, and of two of valid."""
    root = folder / name
    root.mkdir(parents=True)
    train = [row("train", patient, view, CELLS[patient % 4]) for patient in range(1, 7) for view in (1, 2)]
    (root / "train.csv").write_text(HEADER + "".join(train))
    others = [row("valid", patient, cells="0.0,1.0,0.0,1.0") for patient in (64541, 64542)] if valid else []
    if valid:
        (root / "valid.csv").write_text(HEADER + "".join(others))
    for line in (*train, *others):
        photo(root, line)
    return root


@pytest.mark.parametrize(("uncertain", "counts"), [("unknown", (10, 8)), ("present", (18, 8)), ("absent", (10, 16))])
def test_uncertain_becomes_what_was_asked_for(tmp_path: Path, uncertain: str, counts: tuple[int, int]) -> None:
    data = load(chexpert(tmp_path), uncertain=uncertain)
    assert data.classes == CLASSES and [len(split) for split in data.splits] == [12, 2] and data.test is None
    assert any("8 uncertain labels" in each for each in sentences(data))
    assert data.train.labels.counts().total[:2] == counts and data.train.images[0].shape == (8, 9, 3)


def test_without_a_choice_nothing_is_loaded(tmp_path: Path) -> None:
    root = chexpert(tmp_path)
    (message,) = refused("chexpert", root)
    assert all(each in message for each in ("8 in train.csv", *(f"--uncertain {each}" for each in UNCERTAIN)))
    with pytest.raises(InputError, match="uncertain='maybe'"):
        load("chexpert", root, uncertain="maybe")
    assert load(root / "train.csv", uncertain="unknown").recipe["name"] == "chexpert"  # is no table of tags
    table = root / "train.csv"
    table.write_text(table.read_text().replace("-1.0", ""))
    assert load("chexpert", root).train.labels.counts().total[:2] == (10, 8)  # nothing to ask for


UNCERTAIN = ("unknown", "present", "absent")


def test_val_is_the_published_one_and_else_one_of_patients(tmp_path: Path) -> None:
    whole = load("chexpert", chexpert(tmp_path), uncertain="unknown")
    assert whole.val is not None and all("valid/" in name for name in whole.val.labels.images)
    root = chexpert(tmp_path / "alone", "other name", valid=False)
    data = load("chexpert", root, uncertain="unknown")
    assert data.val is None and data.train.groups is not None and len({*data.train.groups.tolist()}) == 6
    held = hold_out_val(data)
    assert held.val is not None and len(held.val)
    patients = [{name.split("/")[2] for name in split.labels.images} for split in (held.train, held.val)]
    assert not patients[0] & patients[1]
    given = tmp_path / "valid2.csv"
    given.write_text(HEADER + row("train", 99, cells="0,1,0,1"))
    photo(root, row("train", 99))
    assert len(load("chexpert", root, uncertain="unknown", test=given).splits) == 2
    given.write_text(given.read_text() + row("train", 1, 3))
    photo(root, row("train", 1, 3))
    (leak,) = refused("chexpert", root, uncertain="unknown", val=given)
    assert leak.startswith("valid2.csv, line 3: ") and "train.csv, line 2" in leak
    leaking = load("chexpert", root, uncertain="unknown", val=given, allow_leaks=True)
    assert len(leaking.splits[1]) == 2 and any(isinstance(each, LeaksAllowed) for each in leaking.findings)


def test_paths_are_found_with_and_without_their_first_part(tmp_path: Path) -> None:
    root = chexpert(tmp_path, "CheXpert-v1.0-small")
    elsewhere = tmp_path / "a" / "tables"
    elsewhere.mkdir(parents=True)
    for name in ("train.csv", "valid.csv"):
        (elsewhere / name).write_bytes((root / name).read_bytes())
    copy = chexpert(tmp_path, "copy")  # beside a folder of the name in the paths: its own images are taken
    (copy / "train" / "patient00001" / "study1" / "view1_frontal.jpg").unlink()
    assert places("chexpert", copy, uncertain="unknown") == ["train.csv, line 2"]
    with pytest.raises(InputError, match="--images DIR"):
        load("chexpert", elsewhere, uncertain="unknown")
    for images in (tmp_path, root):
        assert load("chexpert", elsewhere, images=images, uncertain="unknown").train.images[3].shape == (8, 9, 3)


def test_bad_tables_are_one_error_with_file_and_line(tmp_path: Path) -> None:
    root = chexpert(tmp_path)
    table = root / "train.csv"
    lines = table.read_text().splitlines(keepends=True)
    lines[2] = lines[2].replace(CELLS[1], ",2.0,-1.0,0.0")
    lines[3] = lines[1]
    lines[5], lines[6] = row("train", 77), row("train", 7).replace("study1", "s" * 300)  # that no disk takes
    table.write_text("".join(lines)[:-30])
    (root / "valid.csv").write_text(
        HEADER.replace("Cardiomegaly", "No Finding") + row("valid", 64541, cells="0,0,0,maybe")
    )
    expected = {f"train.csv, line {line}" for line in (3, 4, 6, 7, 13)} | {f"valid.csv, line {line}" for line in (1, 2)}
    assert {*places("chexpert", root)} == expected


@pytest.mark.parametrize(("old", "new"), [("Edema", "Cardiomegaly"), ("Path", "Where"), ("Edema", "Oedema")])
def test_other_headers_are_refused(tmp_path: Path, old: str, new: str) -> None:
    root = chexpert(tmp_path)
    (root / "valid.csv").write_text(HEADER.replace(old, new) + row("valid", 64541, cells="0,0,0,1"))
    assert {*places("chexpert", root, uncertain="unknown")} == {"valid.csv, line 1"}
    (root / "train.csv").write_text("image,cat\na.jpg,1\n")
    (root / "train" / "mimic-cxr-2.0.0-chexpert.csv.gz").touch()  # as it is published
    for path, named in ((root, r"train\.csv, line 1"), (root / "train", "gunzip")):
        with pytest.raises(InputError, match=named):
            load("chexpert", path, uncertain="unknown")


def test_images_of_mimic_have_the_labels_of_their_study(tmp_path: Path) -> None:
    table, splits = (tmp_path / f"mimic-cxr-2.0.0-{name}.csv" for name in ("chexpert", "split"))
    studies = [(10000032, 50414267, "1.0,,-1.0"), (10000764, 57375967, ",0.0,"), (10000935, 50578979, ",,1.0")]
    header = "subject_id,study_id,Atelectasis,Edema,Fracture\n"
    table.write_text(header + "".join(f"{a},{b},{c}\n" for a, b, c in studies))
    images = [("02aa", 50414267, 10000032, "train"), ("174f", 50414267, 10000032, "train")]
    images += [("096d", 57375967, 10000764, "validate"), ("dead", 59999999, 10000935, "test")]
    rows = "".join(f"{','.join(map(str, each))}\n" for each in images)
    splits.write_text(f"dicom_id,study_id,subject_id,split\n{rows}")
    for dicom, study, subject, _ in images[:3]:
        path = tmp_path / "files" / f"p{str(subject)[:2]}" / f"p{subject}" / f"s{study}" / f"{dicom}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 4)).save(path)
    data = load(tmp_path, uncertain="absent")
    assert data.train.labels.to_dense().tolist() == [[1, -1, 0]] * 2 and data.train.images[1].shape == (4, 4, 3)
    assert data.val is not None and data.val.labels.to_dense().tolist() == [[-1, 0, -1]]
    with pytest.raises(InputError, match="MIMIC"):
        load("chexpert", tmp_path, uncertain="absent", val=table)
    splits.write_text(splits.read_text().replace("validate", "dev").replace("50414267,10000032", "50414267,7", 1))
    assert places("chexpert", tmp_path, uncertain="absent") == [f"{splits.name}, line {line}" for line in (2, 4)]
    assert not describe_dataset("chexpert").problems(tmp_path)
    splits.unlink()
    assert places("chexpert", tmp_path, uncertain="absent") == [splits.name]
