"""CheXpert's tables: 1, 0, −1 = uncertain, blank; uncertain is decided by the user, patients stay together."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image
from tests.cli.conftest import call
from tests.data.sentences import sentences

from labelgap.core.errors import InputError, ProblemsError
from labelgap.data.opening import load
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
    root = chexpert(tmp_path)
    data = load(root, uncertain=uncertain)
    assert data.classes == CLASSES and [len(split) for split in data.splits] == [12, 2] and data.test is None
    assert data.train.labels.counts().total[:2] == counts
    assert f"8 uncertain labels (-1) are {uncertain}, as asked" in " ".join(sentences(data))
    assert data.train.images[0].shape == (8, 9, 3)


def test_without_a_choice_nothing_is_loaded_and_the_error_names_all_three(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = chexpert(tmp_path)
    assert call("inspect", str(root)) == 2
    said = capsys.readouterr().err
    assert "has 8 uncertain labels (-1: 8 in train.csv)" in said
    assert all(f"--uncertain {choice}" in said for choice in ("unknown", "present", "absent"))
    assert call("inspect", str(root / "train.csv"), "--uncertain", "maybe") == 2
    assert "uncertain='maybe': it is 'unknown', 'present' or 'absent'" in capsys.readouterr().err
    assert call("inspect", str(root / "train.csv"), "--uncertain", "unknown", "--json") == 0  # is no table of tags
    assert "recognized as chexpert" in (said := capsys.readouterr().out) and "8 patients" in said
    out = ["--out", str(tmp_path / "run"), "--backbone", "tiny-cnn"]
    assert call("train", str(root), "--uncertain", "absent", "--dry-run", *out) == 0
    sure = tmp_path / "sure"
    chexpert(sure, valid=False)
    table = sure / "CheXpert-v1.0-small" / "train.csv"
    table.write_text(table.read_text().replace("-1.0", ""))
    assert load("chexpert", table.parent).train.labels.counts().total[:2] == (10, 8)  # nothing to ask for


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
    given.write_text(HEADER + row("train", 99, cells="0,1,0,1") + row("train", 1, 3))
    photo(root, row("train", 1, 3))
    where = r"valid2\.csv, line 3: .*\(val\) is of one group with .*\(train in train\.csv, line 2\)"
    with pytest.raises(ProblemsError, match=where):
        load("chexpert", root, uncertain="unknown", val=given)
    leaking = load("chexpert", root, uncertain="unknown", val=given, allow_leaks=True)
    assert len(leaking.splits[1]) == 2 and "7 patients" in sentences(leaking), "not each in one split"


def test_paths_are_found_with_and_without_their_first_part(tmp_path: Path) -> None:
    root = chexpert(tmp_path, "CheXpert-v1.0-small")
    elsewhere = tmp_path / "a" / "tables"
    elsewhere.mkdir(parents=True)
    for name in ("train.csv", "valid.csv"):
        (elsewhere / name).write_bytes((root / name).read_bytes())
    copy = chexpert(tmp_path, "copy")  # beside a folder of the name in the paths: its own images are taken
    (copy / "train" / "patient00001" / "study1" / "view1_frontal.jpg").unlink()
    with pytest.raises(ProblemsError, match=r"1 problem, .*\n  train.csv, line 2: .*/copy/train/.* does not exist"):
        load("chexpert", copy, uncertain="unknown")
    with pytest.raises(InputError, match=r"none of its 14 images .* \(--images DIR\)"):
        load("chexpert", elsewhere, uncertain="unknown")
    for images in (tmp_path, root):
        assert load("chexpert", elsewhere, images=images, uncertain="unknown").train.images[3].shape == (8, 9, 3)


def test_bad_tables_are_one_error_with_file_and_line(tmp_path: Path) -> None:
    root = chexpert(tmp_path)
    table = root / "train.csv"
    lines = table.read_text().splitlines(keepends=True)
    lines[2] = lines[2].replace(CELLS[1], ",2.0,-1.0,0.0")
    lines[3] = lines[1]
    lines[5], lines[6] = row("train", 77), row("train", 7).replace("study1", "s" * 300)
    table.write_text("".join(lines)[:-30])
    header = HEADER.replace("Cardiomegaly", "No Finding")
    (root / "valid.csv").write_text(header + row("valid", 64541, cells="0,0,0,maybe"))
    with pytest.raises(ProblemsError) as error:
        load("chexpert", root)
    said = str(error.value)
    assert "train.csv, line 3: '2.0' under Cardiomegaly" in said
    assert "train.csv, line 13: 2 cells where the header has 9" in said
    assert "valid.csv, line 2: 'maybe' under Support Devices" in said
    assert "valid.csv, line 1: the column 'No Finding' is there twice" in said
    assert "train.csv, line 4: " in said and "is listed again (first in line 2)" in said
    assert "train.csv, line 6: " in said and "patient00077/study1/view1_frontal.jpg does not exist" in said
    assert "train.csv, line 7: " in said  # a name that no disk takes


def test_every_table_has_the_observations_of_train(tmp_path: Path) -> None:
    root = chexpert(tmp_path)
    (root / "valid.csv").write_text(HEADER.replace("Edema", "Oedema") + row("valid", 64541, cells="0,0,0,1"))
    with pytest.raises(ProblemsError) as error:
        load("chexpert", root, uncertain="unknown")
    assert len(error.value.problems) == 2 and all("valid.csv, line 1" in each.message for each in error.value.problems)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (HEADER.replace("Edema", "Cardiomegaly"), "line 1: the column 'Cardiomegaly' is there twice"),
        (HEADER.replace("Path", "Where"), "valid.csv, line 1: no column is called 'image'"),
        (f"{FACTS}\n", "valid.csv, line 1: no class"),
    ],
)
def test_other_headers_are_refused(tmp_path: Path, header: str, message: str) -> None:
    root = chexpert(tmp_path)
    (root / "valid.csv").write_text(header + row("valid", 1))
    with pytest.raises(ProblemsError, match=message):
        load("chexpert", root, uncertain="unknown")
    (root / "train.csv").write_text("image,cat\na.jpg,1\n")
    with pytest.raises(InputError, match=r"train\.csv, line 1: its first columns are not Path"):
        load("chexpert", root, uncertain="unknown")
    (root / "train" / "mimic-cxr-2.0.0-chexpert.csv.gz").touch()  # as it is published
    with pytest.raises(InputError, match=r"holds no table of CheXpert.*Unpack"):
        load("chexpert", root / "train", uncertain="unknown")


def test_a_column_of_something_else_is_reported_once(tmp_path: Path) -> None:
    root = chexpert(tmp_path)
    table = root / "train.csv"
    table.write_text(
        "".join(
            f"{line},{'doctor' if n == 0 else f'Dr {n}'}\n" for n, line in enumerate(table.read_text().splitlines())
        )
    )
    with pytest.raises(ProblemsError, match=r"the column 'doctor' .*--ignore-columns doctor leaves it out"):
        load("chexpert", root, uncertain="unknown")
    assert load("chexpert", root, uncertain="unknown", ignore_columns=["doctor"]).classes == CLASSES
    chosen = load("chexpert", root, uncertain="unknown", ignore_columns=["doctor"], classes=["Edema", "Cardiomegaly"])
    assert chosen.classes == ("Edema", "Cardiomegaly")
    sure = load("chexpert", root, ignore_columns=["doctor"], classes=["No Finding", "Support Devices"])
    assert "no label is uncertain" in sentences(sure)[0], "of the classes in use"


def test_images_of_mimic_have_the_labels_of_their_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, splits = (tmp_path / f"mimic-cxr-2.0.0-{name}.csv" for name in ("chexpert", "split"))
    studies = [(10000032, 50414267, "1.0,,-1.0"), (10000764, 57375967, ",0.0,"), (10000935, 50578979, ",,1.0")]
    table.write_text(
        "subject_id,study_id,Atelectasis,Edema,Fracture\n" + "".join(f"{a},{b},{c}\n" for a, b, c in studies)
    )
    images = [("02aa", 50414267, 10000032, "train"), ("174f", 50414267, 10000032, "train")]
    images += [("096d", 57375967, 10000764, "validate"), ("dead", 59999999, 10000935, "test")]
    splits.write_text(
        "dicom_id,study_id,subject_id,split\n" + "".join(f"{','.join(map(str, each))}\n" for each in images)
    )
    for dicom, study, subject, _ in images[:3]:
        path = tmp_path / "files" / f"p{str(subject)[:2]}" / f"p{subject}" / f"s{study}" / f"{dicom}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 4)).save(path)
    data = load(tmp_path, uncertain="absent")
    assert data.train.labels.to_dense().tolist() == [[1, -1, 0]] * 2 and data.train.images[1].shape == (4, 4, 3)
    assert data.val is not None and data.val.labels.to_dense().tolist() == [[-1, 0, -1]]
    assert "1 images without labels and 1 labeled studies without images are left out" in " ".join(sentences(data))
    splits.write_text(splits.read_text().replace("validate", "dev").replace("50414267,10000032", "50414267,7", 1))
    with pytest.raises(ProblemsError) as error:
        load("chexpert", tmp_path, uncertain="absent")
    assert "split.csv, line 4: 'dev' under split: train, validate or test" in str(error.value)
    assert "split.csv, line 2: study 50414267 is of 10000032 in line 2" in str(error.value)
    assert call("datasets", "chexpert", str(tmp_path)) == 0
    splits.unlink()
    assert call("datasets", "chexpert", str(tmp_path)) == 2
    assert "split.csv is missing, which names the images" in capsys.readouterr().err
    with pytest.raises(ProblemsError, match=r"mimic-cxr-2.0.0-split.csv does not exist"):
        load("chexpert", tmp_path, uncertain="absent")
