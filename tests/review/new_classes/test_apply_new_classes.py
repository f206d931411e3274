"""The better table has the classes that people added: a column or a name more, unknown where nobody decided."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from tests.cli.conftest import call
from tests.review.sample_photos import TAGS, make_photos

import labelgap as lg
from labelgap.core.errors import InputError
from labelgap.data.dataset import Dataset
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.labels.revisions import read_provenance
from labelgap.review import ReviewFolder, create_random_review
from labelgap.review.apply import apply_decisions, decided_images
from labelgap.review.database import FILE
from labelgap.review.store import Decision, DecisionStore, LabelKey, Undo


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dataset:
    monkeypatch.setenv("LABELGAP_CACHE", str(tmp_path / "cache"))
    return make_photos(tmp_path)


def loaded(path: Path, name: str = "csv", **options: Any) -> Dataset:
    return lg.load(name, path, images=path.parent / "photos", duplicates="off", **options)


def decide(
    folder: ReviewFolder, data: Dataset, *said: tuple[str, str, int], classes: Sequence[str] = ("zebra",)
) -> None:
    """Add classes, and decide labels."""
    store = DecisionStore(folder.path / FILE)
    for name in classes:
        store.add_class(name, "anna")
    splits = {name: split.name for split in data.splits for name in split.labels.images}
    made = [Decision(LabelKey(splits[image], image, tag), value, uuid.uuid4().hex) for image, tag, value in said]
    store.append(made, reviewer="anna", client="window-1")
    store.close()


def reviewed(
    data: Dataset, out: Path, *said: tuple[str, str, int], classes: Sequence[str] = ("zebra",)
) -> ReviewFolder:
    """A review of all images with classes added and labels decided."""
    folder = create_random_review(data, "train", 9, 0, out)
    decide(folder, data, *said, classes=classes)
    return folder


def codes(data: Dataset, name: str) -> dict[str, int]:
    """The known labels of a class by image."""
    column = data.classes.index(name)
    pairs = [pair for split in data.splits for pair in zip(split.labels.images, split.labels.to_dense(), strict=True)]
    return {image: int(row[column]) for image, row in pairs if row[column] != UNKNOWN}


SAID = (
    ("1.jpg", "zebra", PRESENT),
    ("0.jpg", "zebra", ABSENT),
    ("3.jpg", "zebra", UNKNOWN),
    ("6.jpg", "zebra", PRESENT),
)
ZEBRA = {"1.jpg": PRESENT, "0.jpg": ABSENT, "6.jpg": PRESENT}


def test_a_wide_table_gets_a_column_and_rows_stay_letter_by_letter(data: Dataset, tmp_path: Path) -> None:
    written = apply_decisions(reviewed(data, tmp_path / "review", *SAID), tmp_path / "better.csv")
    cells = {"image": "zebra", "1.jpg": "1", "0.jpg": "0", "6.jpg": "1"}
    lines = [f"{line},{cells.get(line.partition(',')[0], '')}" for line in TAGS.splitlines()]
    assert written.path.read_text().splitlines() == lines
    assert written.added == ("zebra",) and written.decided == 4 and written.changed == {"review": 3}
    back = loaded(written.path)
    assert back.classes == ("cat", "dog", "owl", "zebra") == written.data.classes
    assert [split.labels for split in back.splits] == [split.labels for split in written.data.splits]
    assert codes(back, "zebra") == ZEBRA
    told = [(entry.revision.image, entry.before, entry.revision.value) for entry in read_provenance(written.provenance)]
    assert ("1.jpg", UNKNOWN, PRESENT) in told and ("3.jpg", UNKNOWN, UNKNOWN) in told and len(told) == 4


def test_words_quotes_and_blank_lines_stay_as_they_are(data: Dataset, tmp_path: Path) -> None:
    text = 'image\tcat\tdog\r\n\r\n"1.jpg"\tTRUE\t\r\n0.jpg\tNA\tFALSE\r\n2.jpg\tNA\tTRUE\r\n'
    (tmp_path / "words.csv").write_bytes(text.encode())
    folder = reviewed(loaded(tmp_path / "words.csv"), tmp_path / "review", *SAID[:2])
    written = apply_decisions(folder, tmp_path / "better.csv").path.read_bytes().decode()
    new = '"1.jpg"\tTRUE\t\tTRUE\r\n0.jpg\tNA\tFALSE\tFALSE\r\n2.jpg\tNA\tTRUE\tNA\r\n'
    assert written == f"image\tcat\tdog\tzebra\r\n\r\n{new}"


@pytest.mark.parametrize("separator", [";", ", ", " | "])
def test_lists_get_the_name_of_the_class(data: Dataset, tmp_path: Path, separator: str) -> None:
    rows = {"0.jpg": f"cat{separator}dog", "1.jpg": "", "2.jpg": "owl", "6.jpg": "dog"}
    text = "".join(f'{name},"{tags}"\n' for name, tags in rows.items())
    (tmp_path / "lists.csv").write_text("image,tags\n" + text)
    written = apply_decisions(reviewed(loaded(tmp_path / "lists.csv"), tmp_path / "r", *SAID[:2]), tmp_path / "b.csv")
    back = loaded(written.path)
    assert back.classes == ("cat", "dog", "owl", "zebra") and codes(back, "zebra") == {
        "1.jpg": PRESENT,
        "0.jpg": ABSENT,
    }
    assert codes(back, "dog") == {"0.jpg": PRESENT, "6.jpg": PRESENT}
    assert written.own_format is not None and written.added == ("zebra",)


def test_lists_that_cannot_say_unknown_become_a_column_per_class(data: Dataset, tmp_path: Path) -> None:
    (tmp_path / "lists.csv").write_text("image,present\n0.jpg,cat\n1.jpg,dog\n2.jpg,\n")
    data = loaded(tmp_path / "lists.csv", unlisted="absent")
    (tmp_path / "run").mkdir()
    folder = ReviewFolder(tmp_path / "run", data.classes, data.recipe, source=str(tmp_path / "lists.csv"))
    decide(folder, data, *SAID[:2])
    written = apply_decisions(folder, tmp_path / "better.csv")
    back = loaded(written.path)
    assert codes(back, "zebra") == {"1.jpg": PRESENT, "0.jpg": ABSENT} and written.own_format is None
    assert codes(back, "dog") == {"0.jpg": ABSENT, "1.jpg": PRESENT, "2.jpg": ABSENT}


@pytest.mark.parametrize("kind", ["wide", "lists", "own"])
def test_a_parquet_file_gets_the_class_too(data: Dataset, tmp_path: Path, kind: str) -> None:
    path, images = tmp_path / "tags.parquet", ["0.jpg", "1.jpg", "2.jpg"]
    if kind == "wide":
        columns = {"image": images, "cat": pa.array([True, None, False]), "dog": pa.array([None, True, None])}
        pq.write_table(pa.table(columns), path)
    elif kind == "lists":
        pq.write_table(pa.table({"image": images, "present": [["cat"], ["dog"], []]}), path)
    else:
        lg.LabelTable.from_lists([["cat"], ["dog"], []], images=images).to_parquet(path)
    folder = reviewed(loaded(path, "parquet"), tmp_path / "review", *SAID[:2])
    written = apply_decisions(folder, tmp_path / "better.parquet")
    back = loaded(written.path, "parquet")
    assert back.classes == ("cat", "dog", "zebra") and codes(back, "zebra") == {"1.jpg": PRESENT, "0.jpg": ABSENT}
    assert codes(back, "dog") == codes(loaded(path, "parquet"), "dog")
    if kind == "wide":
        assert pq.read_schema(written.path).field("zebra").type == pa.bool_()


def test_other_formats_and_hidden_labels_give_a_column_per_class(data: Dataset, tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / "folders" / name).mkdir(parents=True)
        for number in range(2):
            Image.new("RGB", (8, 8), (50 * number, 9, 99 if name == "cat" else 0)).save(
                tmp_path / "folders" / name / f"{number}.png"
            )
    folders = lg.load("folder", tmp_path / "folders", duplicates="off")
    for source, image in ((folders, "cat/0.png"), (data.observe(1, 0, seed=1), "1.jpg")):
        folder = reviewed(source, tmp_path / f"review-{len(source.classes)}", (image, "zebra", PRESENT))
        written = apply_decisions(folder, tmp_path / "better.csv", force=True)
        images = tmp_path / ("folders" if source is folders else "photos")
        back = lg.load("csv", written.path, images=images, duplicates="off")
        assert back.classes == (*source.classes, "zebra") and codes(back, "zebra") == {image: PRESENT}


def test_two_reviews_that_added_a_class_agree_on_its_name(data: Dataset, tmp_path: Path) -> None:
    first = reviewed(data, tmp_path / "a", ("1.jpg", "Fire Truck", PRESENT), classes=("Fire Truck",))
    said = (
        ("2.jpg", "fire truck", PRESENT),
        ("1.jpg", "fire truck", ABSENT),
        ("4.jpg", "DOG", ABSENT),
        ("5.jpg", "gnu", ABSENT),
    )
    second = reviewed(data, tmp_path / "b", *said, classes=("fire truck", "DOG", "gnu"))
    written = apply_decisions([first, second], tmp_path / "better.csv")
    assert written.added == ("Fire Truck", "gnu") and written.contradicted == 1
    assert codes(written.data, "Fire Truck") == {"1.jpg": ABSENT, "2.jpg": PRESENT}
    assert codes(loaded(written.path), "dog")["4.jpg"] == ABSENT


def test_a_class_without_a_decision_that_says_something_is_left_out(data: Dataset, tmp_path: Path) -> None:
    folder = reviewed(
        data,
        tmp_path / "review",
        ("1.jpg", "zebra", PRESENT),
        ("2.jpg", "gnu", UNKNOWN),
        classes=("zebra", "gnu", "yak"),
    )
    written = apply_decisions(folder, tmp_path / "a.csv")
    assert written.added == ("zebra",) and written.decided == 2
    store = DecisionStore(folder.path / FILE)
    store.append([Undo(event.id, uuid.uuid4().hex) for event in store.accepted()], reviewer="anna", client="window-1")
    store.close()
    assert apply_decisions(folder, tmp_path / "b.csv").path.read_text() == TAGS


def test_a_class_that_nobody_added_is_an_error_as_before(data: Dataset, tmp_path: Path) -> None:
    folder = reviewed(data, tmp_path / "review", ("1.jpg", "zebra", PRESENT), classes=("gnu",))
    with pytest.raises(InputError, match="decision about the class 'zebra'"):
        apply_decisions(folder, tmp_path / "better.csv")
    assert not (tmp_path / "better.csv").exists()


@pytest.mark.parametrize("name", ["split", "a;b", "a\x1bb", "x" * 500])
def test_a_name_that_no_page_would_have_taken_is_refused(data: Dataset, tmp_path: Path, name: str) -> None:
    folder = reviewed(data, tmp_path / "review", ("1.jpg", name, PRESENT), classes=(name,))
    with pytest.raises(InputError, match=r"the name of a class|Choose another|Leave it out"):
        apply_decisions(folder, tmp_path / "better.csv")


def test_what_a_table_cannot_write_is_said_with_the_way_out(data: Dataset, tmp_path: Path) -> None:
    (tmp_path / "latin.csv").write_bytes("image,Caf\u00e9,dog\n0.jpg,1,0\n1.jpg,,1\n".encode("cp1252"))
    folder = reviewed(loaded(tmp_path / "latin.csv"), tmp_path / "a", ("1.jpg", "犬", PRESENT), classes=("犬",))
    with pytest.raises(InputError, match=r"cp1252, which cannot write '犬'.+parquet"):
        apply_decisions(folder, tmp_path / "better.csv")
    assert apply_decisions(folder, tmp_path / "better.parquet", force=True).added == ("犬",)
    (tmp_path / "lists.csv").write_text("image,tags\n0.jpg,cat dog\n1.jpg,dog\n")
    spaced = loaded(tmp_path / "lists.csv", separator="space")
    folder = reviewed(spaced, tmp_path / "b", ("1.jpg", "fire truck", PRESENT), classes=("fire truck",))
    with pytest.raises(InputError, match="cannot hold 'fire truck'"):
        apply_decisions(folder, tmp_path / "spaced.csv")


def test_a_column_of_the_name_that_was_left_out_is_used(data: Dataset, tmp_path: Path) -> None:
    folder = reviewed(
        loaded(tmp_path / "tags.csv", classes=["cat", "dog"]),
        tmp_path / "r",
        ("2.jpg", "owl", ABSENT),
        classes=("owl",),
    )
    written = apply_decisions(folder, tmp_path / "better.csv")
    assert written.path.read_text() == TAGS.replace("2.jpg,train,0,,", "2.jpg,train,0,,0") and written.added == ("owl",)


def test_an_accuracy_is_that_of_the_classes_of_the_data(data: Dataset, tmp_path: Path) -> None:
    unknown = [
        (image, name, ABSENT)
        for image, row in zip(data.train.labels.images, data.train.labels.to_dense(), strict=True)
        for name, code in zip(data.classes, row, strict=True)
        if code == UNKNOWN
    ]
    measured = decided_images(reviewed(data, tmp_path / "review", *unknown, *SAID))
    assert measured.classes == data.classes and len(measured.train) == len(data.train)


def test_the_commands_take_the_class_along(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = reviewed(data, tmp_path / "review", *SAID)
    monkeypatch.chdir(tmp_path)

    def command(*words: str) -> str:
        assert call(*words) == 0
        return capsys.readouterr().out

    applied = command("apply", str(folder.path), "--out", "better.csv")
    assert "1 added: zebra; unknown where nobody decided" in applied
    assert "zebra" in command("revisions", str(folder.path))
    inspected = json.loads(command("inspect", "better.csv", "--images", "photos", "--json"))
    assert "zebra" in json.dumps(inspected)
    command("verify", str(folder.path))
