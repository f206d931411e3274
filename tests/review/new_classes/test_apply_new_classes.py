"""The better table has the classes that people added: a column or a name more, unknown where nobody decided."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.review.sample_photos import TAGS, make_photos

import labelgap as lg
from labelgap.core.errors import InputError
from labelgap.data.dataset import Dataset
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.labels.revisions import read_provenance
from labelgap.review import ReviewFolder, create_random_review
from labelgap.review.apply import apply_decisions, decided_images
from labelgap.review.database import FILE
from labelgap.review.store import Decision, DecisionStore, LabelKey

Said = tuple[str, str, int]
SAID: list[Said] = [
    ("1.jpg", "zebra", PRESENT),
    ("0.jpg", "zebra", ABSENT),
    ("3.jpg", "zebra", UNKNOWN),
    ("6.jpg", "zebra", PRESENT),
]
ZEBRA = {"1.jpg": PRESENT, "0.jpg": ABSENT}


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dataset:
    monkeypatch.setenv("LABELGAP_CACHE", str(tmp_path / "cache"))
    return make_photos(tmp_path)


def loaded(path: Path, **options: Any) -> Dataset:
    return lg.load(path.suffix[1:], path, images=path.parent / "photos", duplicates="off", **options)


def decide(folder: ReviewFolder, data: Dataset, said: Sequence[Said], classes: Sequence[str]) -> None:
    """Add classes, and decide labels."""
    splits = {name: split.name for split in data.splits for name in split.labels.images}
    with closing(DecisionStore(folder.path / FILE)) as store:
        for name in classes:
            store.add_class(name, "anna")
        made = [Decision(LabelKey(splits[image], image, tag), value, uuid.uuid4().hex) for image, tag, value in said]
        store.append(made, reviewer="anna", client="window-1")


def reviewed(data: Dataset, out: Path, said: Sequence[Said], classes: Sequence[str] = ("zebra",)) -> ReviewFolder:
    """A review of all images with classes added and labels decided."""
    folder = create_random_review(data, "train", 9, 0, out)
    decide(folder, data, said, classes)
    return folder


def codes(data: Dataset, name: str) -> dict[str, int]:
    """The known labels of a class by image."""
    column = data.classes.index(name)
    pairs = [pair for split in data.splits for pair in zip(split.labels.images, split.labels.to_dense(), strict=True)]
    return {image: int(row[column]) for image, row in pairs if row[column] != UNKNOWN}


def test_a_wide_table_gets_a_column_and_rows_stay_letter_by_letter(data: Dataset, tmp_path: Path) -> None:
    folder = reviewed(data, tmp_path / "review", [*SAID, ("2.jpg", "gnu", UNKNOWN)], ("zebra", "gnu", "yak"))
    written = apply_decisions(folder, tmp_path / "better.csv")
    cells = {"image": "zebra", "1.jpg": "1", "0.jpg": "0", "6.jpg": "1"}
    lines = [f"{line},{cells.get(line.partition(',')[0], '')}" for line in TAGS.splitlines()]
    assert written.path.read_text().splitlines() == lines
    assert written.added == ("zebra",) and written.decided == 5 and written.changed == {"review": 3}
    back = loaded(written.path)
    assert [split.labels for split in back.splits] == [split.labels for split in written.data.splits]
    told = [(entry.revision.image, entry.before, entry.revision.value) for entry in read_provenance(written.provenance)]
    assert ("1.jpg", UNKNOWN, PRESENT) in told and ("3.jpg", UNKNOWN, UNKNOWN) in told and len(told) == 4


IMAGES = ["0.jpg", "1.jpg", "2.jpg"]
TABLES: dict[str, tuple[Any, dict[str, Any]]] = {
    "words.csv": ('image\tcat\tdog\r\n\r\n"1.jpg"\tTRUE\t\r\n0.jpg\tNA\tFALSE\r\n2.jpg\tNA\tTRUE\r\n', {}),
    "lists.csv": ('image,tags\n0.jpg,"cat | dog"\n1.jpg,\n2.jpg,dog\n', {}),
    "complete.csv": ("image,present\n0.jpg,cat\n1.jpg,dog\n2.jpg,\n", {"unlisted": "absent"}),
    "wide.parquet": ({"image": IMAGES, "cat": [True, None, False], "dog": [None, True, None]}, {}),
    "lists.parquet": ({"image": IMAGES, "present": [["cat"], ["dog"], []]}, {}),
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_of_every_layout_get_the_class_and_are_read_back(data: Dataset, tmp_path: Path, name: str) -> None:
    path, (content, options) = tmp_path / name, TABLES[name]
    if isinstance(content, str):
        path.write_bytes(content.encode())
    else:
        pq.write_table(pa.table(content), path)
    before = loaded(path, **options)
    (tmp_path / "run").mkdir()
    folder = ReviewFolder(tmp_path / "run", before.classes, before.recipe, source=str(path))
    decide(folder, before, SAID[:2], ["zebra"])
    written = apply_decisions(folder, tmp_path / f"better{path.suffix}")
    back = loaded(written.path)
    assert back.classes == ("cat", "dog", "zebra") and written.added == ("zebra",)
    assert codes(back, "zebra") == ZEBRA and codes(back, "dog") == codes(before, "dog")
    assert (written.own_format is None) == ("unlisted" in options), "a list of all that is there cannot say unknown"
    if name == "words.csv":
        lines = '"1.jpg"\tTRUE\t\tTRUE\r\n0.jpg\tNA\tFALSE\tFALSE\r\n2.jpg\tNA\tTRUE\tNA\r\n'
        assert written.path.read_bytes().decode() == f"image\tcat\tdog\tzebra\r\n\r\n{lines}"
    if name == "wide.parquet":
        assert pq.read_schema(written.path).field("zebra").type == pa.bool_()


def test_two_reviews_that_added_a_class_agree_on_its_name(data: Dataset, tmp_path: Path) -> None:
    hidden = data.observe(1, 0, seed=1)  # it is written with a column per class
    first = reviewed(hidden, tmp_path / "a", [("1.jpg", "Fire Truck", PRESENT)], ["Fire Truck"])
    said = [("2.jpg", "fire truck", PRESENT), ("1.jpg", "fire truck", ABSENT), ("4.jpg", "DOG", ABSENT)]
    second = reviewed(hidden, tmp_path / "b", [*said, ("5.jpg", "gnu", ABSENT)], ("fire truck", "DOG", "gnu"))
    written = apply_decisions([first, second], tmp_path / "better.csv")
    assert written.added == ("Fire Truck", "gnu") and written.contradicted == 1 and written.own_format is None
    assert codes(written.data, "Fire Truck") == {"1.jpg": ABSENT, "2.jpg": PRESENT}
    assert codes(loaded(written.path), "dog")["4.jpg"] == ABSENT


@pytest.mark.parametrize("name", ["split", "a;b", "a\x1bb", "x" * 500])
def test_a_name_that_no_page_would_have_taken_is_refused(data: Dataset, tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError):
        apply_decisions(reviewed(data, tmp_path / "a", [("1.jpg", name, PRESENT)], [name]), tmp_path / "better.csv")
    with pytest.raises(InputError):  # nor one that nobody added
        apply_decisions(reviewed(data, tmp_path / "b", [("1.jpg", name, PRESENT)], ["gnu"]), tmp_path / "better.csv")
    assert not (tmp_path / "better.csv").exists()


def test_what_a_table_cannot_write_is_said_with_the_way_out(data: Dataset, tmp_path: Path) -> None:
    (tmp_path / "latin.csv").write_bytes("image,Caf\u00e9,dog\n0.jpg,1,0\n1.jpg,,1\n".encode("cp1252"))
    folder = reviewed(loaded(tmp_path / "latin.csv"), tmp_path / "a", [("1.jpg", "犬", PRESENT)], ["犬"])
    with pytest.raises(InputError, match="parquet"):
        apply_decisions(folder, tmp_path / "better.csv")
    assert apply_decisions(folder, tmp_path / "better.parquet", force=True).added == ("犬",)
    (tmp_path / "lists.csv").write_text("image,tags\n0.jpg,cat dog\n1.jpg,dog\n")
    spaced = loaded(tmp_path / "lists.csv", separator="space")
    folder = reviewed(spaced, tmp_path / "b", [("1.jpg", "fire truck", PRESENT)], ["fire truck"])
    with pytest.raises(InputError, match="fire truck"):
        apply_decisions(folder, tmp_path / "spaced.csv")


def test_a_column_of_the_name_that_was_left_out_is_used(data: Dataset, tmp_path: Path) -> None:
    narrow = loaded(tmp_path / "tags.csv", classes=["cat", "dog"])
    written = apply_decisions(
        reviewed(narrow, tmp_path / "r", [("2.jpg", "owl", ABSENT)], ["owl"]), tmp_path / "better.csv"
    )
    assert written.path.read_text() == TAGS.replace("2.jpg,train,0,,", "2.jpg,train,0,,0") and written.added == ("owl",)


def test_an_accuracy_is_that_of_the_classes_of_the_data(data: Dataset, tmp_path: Path) -> None:
    unknown = [
        (image, name, ABSENT)
        for image, row in zip(data.train.labels.images, data.train.labels.to_dense(), strict=True)
        for name, code in zip(data.classes, row, strict=True)
        if code == UNKNOWN
    ]
    measured = decided_images(reviewed(data, tmp_path / "review", [*unknown, *SAID]))
    assert measured.classes == data.classes and len(measured.train) == len(data.train)
