"""Where decisions go: the better table with the classes that people added, Label Studio and FiftyOne."""

from __future__ import annotations

import csv
import json
import uuid
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.review.samples import TAGS, make_photos
from tests.training.plain_config import PLAIN

import labelgap as lg
from labelgap.core.errors import InputError, UnknownNameError
from labelgap.data.dataset import Dataset
from labelgap.labels import Revision, Revisions
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.labels.revisions import read_provenance
from labelgap.review import Review, ReviewFolder, create_random_review, decisions, open_review_folder
from labelgap.review.apply import apply_decisions
from labelgap.review.database import FILE
from labelgap.review.external_tools import export_candidates, import_decisions
from labelgap.review.store import Decision, DecisionStore, LabelKey
from labelgap.training.config import RunConfig, write_config


@pytest.fixture
def data(tmp_path: Path) -> Dataset:
    return make_photos(tmp_path)


@pytest.fixture
def drawn(data: Dataset, tmp_path: Path) -> ReviewFolder:
    return create_random_review(data, "train", 5, 0, tmp_path / "review")


Said = tuple[str, str, int]


def decide(folder: ReviewFolder, *said: Said, classes: Sequence[str] = ()) -> None:
    """Add classes, and decide labels: image, class and value of each."""
    splits = {name: split.name for split in folder.data.splits for name in split.labels.images}
    with closing(DecisionStore(folder.path / FILE)) as store:
        for name in classes:
            store.add_class(name, "anna")
        made = [Decision(LabelKey(splits[image], image, tag), value, uuid.uuid4().hex) for image, tag, value in said]
        store.append(made, reviewer="anna", client="window-1")


SAID = (
    ("0.jpg", "dog", PRESENT),
    ("0.jpg", "owl", ABSENT),
    ("1.jpg", "owl", PRESENT),  # was absent
    ("2.jpg", "cat", UNKNOWN),  # was absent, and nobody can tell
    ("2.jpg", "dog", UNKNOWN),  # was unknown, and stays it
    ("6.jpg", "cat", PRESENT),
)
EXPECTED = """image,split,cat,dog,owl
0.jpg,train,1,1,0
1.jpg,train,,1,1
2.jpg,train,,,
3.jpg,train,,,1
4.jpg,train,,1,
5.jpg,val,1,,
6.jpg,val,1,0,
7.jpg,test,,1,0
"""


def test_decisions_become_cells_and_all_else_stays(drawn: ReviewFolder, tmp_path: Path) -> None:
    decide(drawn, *SAID)
    written = apply_decisions(drawn, tmp_path / "better.csv")
    assert (tmp_path / "better.csv").read_text() == EXPECTED and (tmp_path / "tags.csv").read_text() == TAGS
    assert written.changed == {"review": 5} and written.decided == 6
    for path in (written.path, apply_decisions(drawn, tmp_path / "other.parquet").path):
        back = lg.load(path.suffix[1:], path, images=tmp_path / "photos", duplicates="off")
        assert [split.labels for split in back.splits] == [split.labels for split in written.data.splits]
    with written.provenance.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["image"], row["class"], row["before"], row["after"]) for row in rows] == [
        ("0.jpg", "dog", "unknown", "present"),
        ("0.jpg", "owl", "unknown", "absent"),
        ("1.jpg", "owl", "absent", "present"),
        ("2.jpg", "cat", "absent", "unknown"),
        ("2.jpg", "dog", "unknown", "unknown"),
        ("6.jpg", "cat", "unknown", "present"),
    ]
    assert {(row["source"], row["author"], row["run"]) for row in rows} == {("review", "anna", str(drawn.path))}


def test_tables_of_val_and_test_are_written_beside_the_table(data: Dataset, tmp_path: Path) -> None:
    """Where a label changed, or a zero that meant unknown is cleared."""
    tables = {"a": "0.jpg,1,\n1.jpg,0,1\n", "b": "5.jpg,1,0\n", "c": "7.jpg,,1\n"}
    for name, rows in tables.items():
        (tmp_path / f"{name}.csv").write_text("image,cat,dog\n" + rows)
    others = {"val": tmp_path / "b.csv", "test": tmp_path / "c.csv", "images": tmp_path / "photos"}
    for zeros in ("absent", "unknown"):
        split = lg.load("csv", tmp_path / "a.csv", **others, zeros=zeros, duplicates="off")
        folder = create_random_review(split, "train", 9, 0, tmp_path / zeros)
        decide(folder, ("0.jpg", "dog", ABSENT), ("5.jpg", "dog", PRESENT))
        written = apply_decisions(folder, tmp_path / f"{zeros}-better.csv")
        cell = "" if zeros == "unknown" else "0"
        assert written.path.read_text() == f"image,cat,dog\n0.jpg,1,0\n1.jpg,{cell},1\n"
        assert [*written.others] == (["val", "test"] if zeros == "unknown" else ["val"])
        assert written.others["val"].read_text() == "image,cat,dog\n5.jpg,1,1\n"
        for taken in ("b.csv", "c.csv"):
            with pytest.raises(InputError, match=taken):
                apply_decisions(folder, tmp_path / taken, force=True)


def test_several_reviews_are_merged_and_of_two_answers_the_newer_counts(data: Dataset, tmp_path: Path) -> None:
    first, second = (create_random_review(data, "train", 5, seed, tmp_path / f"review-{seed}") for seed in range(2))
    decide(first, ("0.jpg", "dog", PRESENT), ("3.jpg", "cat", ABSENT))
    decide(second, ("0.jpg", "dog", ABSENT), ("3.jpg", "cat", ABSENT), SAID[1])
    for order in ([first, second], [second, first]):
        written = apply_decisions(order, tmp_path / "better.csv", force=True)
        text = written.path.read_text()
        assert "0.jpg,train,1,0,0\n" in text and "3.jpg,train,0,,1\n" in text
        assert (written.decided, written.contradicted) == (3, 1)
    runs = [row.rpartition(",")[2] for row in written.provenance.read_text().splitlines()[1:]]
    assert runs == [str(second.path)] * 3


def test_the_next_table_remembers_what_people_decided_for_this_one(drawn: ReviewFolder, tmp_path: Path) -> None:
    decide(drawn, ("0.jpg", "cat", PRESENT), ("0.jpg", "dog", PRESENT))
    apply_decisions(drawn, tmp_path / "better.csv")
    better = lg.load("csv", tmp_path / "better.csv", images=tmp_path / "photos", duplicates="off")
    again = create_random_review(better, "train", 5, 0, tmp_path / "again")
    decide(again, ("0.jpg", "dog", ABSENT), ("4.jpg", "owl", ABSENT))
    entries = read_provenance(apply_decisions(again, tmp_path / "best.csv").provenance)
    told = [(entry.revision.image, entry.revision.class_name, entry.revision.value) for entry in entries]
    assert told == [("0.jpg", "dog", ABSENT), ("4.jpg", "owl", ABSENT), ("0.jpg", "cat", PRESENT)]
    (tmp_path / "better.provenance.csv").write_text("image,split,class,before,after\n0.jpg,train,cat,maybe,present\n")
    with pytest.raises(InputError, match=r"better\.provenance\.csv.+line 2"):
        apply_decisions(again, tmp_path / "last.csv")


@pytest.fixture
def run(data: Dataset, tmp_path: Path) -> ReviewFolder:
    """The folder of a run whose method revised labels; it was not finished, so all its revisions count."""
    folder = tmp_path / "run"
    folder.mkdir()
    own = {"data": dict(data.recipe), "classes": data.classes, "method": "ll-cp", "options": {}}
    write_config(folder, RunConfig.checked(**PLAIN | own))
    (folder / "metrics.jsonl").write_text("")
    Revisions(
        [
            Revision("0.jpg", "dog", PRESENT, "ll-cp", epoch=1),
            Revision("3.jpg", "cat", PRESENT, "ll-cp", epoch=2),
            Revision("1.jpg", "owl", PRESENT, "ll-cp", epoch=2),  # observed absent: a model never overrules that
            Revision("4.jpg", "cat", PRESENT, "ll-cp", target=0.8, epoch=2),
        ]
    ).to_parquet(folder / "revisions.parquet")
    return open_review_folder(folder)


def test_a_models_revisions_come_in_only_when_named(run: ReviewFolder, tmp_path: Path) -> None:
    decide(run, ("0.jpg", "dog", ABSENT))
    apply_decisions(run, tmp_path / "people.csv")
    assert "0.jpg,train,1,0," in (tmp_path / "people.csv").read_text()
    assert "3.jpg,train,,,1" in (tmp_path / "people.csv").read_text()

    written = apply_decisions(run, tmp_path / "both.csv", ["ll-cp"])
    text = (tmp_path / "both.csv").read_text()
    assert "0.jpg,train,1,0," in text and "3.jpg,train,1,,1" in text and "1.jpg,train,,1,0" in text
    assert "4.jpg,train,,1," in text and written.soft == 1
    assert written.changed == {"review": 1, "ll-cp": 1}
    assert "3.jpg,train,cat,unknown,present,ll-cp,,,2" in written.provenance.read_text()


ADDED: list[Said] = [
    ("1.jpg", "zebra", PRESENT),
    ("0.jpg", "zebra", ABSENT),
    ("3.jpg", "zebra", UNKNOWN),
    ("6.jpg", "zebra", PRESENT),
]
ZEBRA = {"1.jpg": PRESENT, "0.jpg": ABSENT}


def loaded(path: Path, **options: Any) -> Dataset:
    return lg.load(path.suffix[1:], path, images=path.parent / "photos", duplicates="off", **options)


def reviewed(data: Dataset, out: Path, said: Sequence[Said], classes: Sequence[str] = ("zebra",)) -> ReviewFolder:
    """A review of all images with classes added and labels decided."""
    folder = create_random_review(data, "train", 9, 0, out)
    decide(folder, *said, classes=classes)
    return folder


def codes(data: Dataset, name: str) -> dict[str, int]:
    """The known labels of a class by image."""
    column = data.classes.index(name)
    pairs = [pair for split in data.splits for pair in zip(split.labels.images, split.labels.to_dense(), strict=True)]
    return {image: int(row[column]) for image, row in pairs if row[column] != UNKNOWN}


def test_a_wide_table_gets_a_column_and_rows_stay_letter_by_letter(data: Dataset, tmp_path: Path) -> None:
    folder = reviewed(data, tmp_path / "review", [*ADDED, ("2.jpg", "gnu", UNKNOWN)], ("zebra", "gnu", "yak"))
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
    decide(folder, *ADDED[:2], classes=["zebra"])
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


def load(path: Path) -> Any:
    return json.loads(path.read_text())


def said(review: Review) -> dict[tuple[str, str], int]:
    return {(made.image, made.class_name): made.value for made in decisions(review.path)}


def test_label_studio_gets_candidates_as_predictions_and_gives_decisions(photos_review: Review, tmp_path: Path) -> None:
    out = tmp_path / "tasks.json"
    written = export_candidates(photos_review, "labelstudio", out)
    assert written.paths == (out, tmp_path / "tasks.xml")
    tasks = load(out)
    assert [task["data"]["name"] for task in tasks] == ["0.jpg", "3.jpg", "5.jpg"]
    (prediction,) = tasks[0]["predictions"]
    assert prediction["result"][0]["value"]["choices"] == ["dog", "owl"]
    assert prediction["score"] == pytest.approx(0.9)
    assert tasks[0]["annotations"][0]["result"][0]["value"]["choices"] == ["cat"]

    choice = {"to_name": "image", "type": "choices"}
    tasks[0]["annotations"][0]["result"] = [
        {**choice, "from_name": "present", "value": {"choices": ["cat", "dog"]}},
        {**choice, "from_name": "absent", "value": {"choices": ["owl"]}},
    ]
    out.write_text(json.dumps(tasks))
    came = import_decisions(photos_review, "labelstudio", out, "ben")
    assert (came.images, came.decided, came.withdrawn) == (3, 2, 0)
    assert said(photos_review) == {("0.jpg", "dog"): PRESENT, ("0.jpg", "owl"): ABSENT}
    assert {event.kind for event in photos_review.store.events()} == {"missing"}
    again = import_decisions(photos_review, "labelstudio", out, "ben")
    assert again.decided == 0 and len(photos_review.store.events()) == 2


def test_fiftyone_gets_candidates_as_a_field_and_gives_decisions(photos_review: Review, tmp_path: Path) -> None:
    out = tmp_path / "samples.json"
    export_candidates(photos_review, "fiftyone", out)
    file = load(out)
    assert "candidates" in file["sample_fields"]
    (first, *_) = file["samples"]
    labels = [(label["label"], round(label["confidence"], 2)) for label in first["candidates"]["classifications"]]
    assert labels == [("dog", 0.9), ("owl", 0.6)]
    first["negative_labels"]["classifications"] += [{"_cls": "Classification", "label": "dog"}]
    first["positive_labels"]["classifications"] = []
    file["samples"][2]["positive_labels"]["classifications"] += [{"_cls": "Classification", "label": "owl"}]
    out.write_text(json.dumps(file))
    came = import_decisions(photos_review, "fiftyone", out, "ben")
    assert said(photos_review) == {("0.jpg", "dog"): ABSENT, ("5.jpg", "owl"): PRESENT}
    assert came.withdrawn == 1, "cat of 0.jpg was taken off there, and nothing is made of that here"
    assert [event.kind for event in photos_review.store.events()] == ["missing", "other"]


def test_what_does_not_fit_is_said(photos_review: Review, review: Review, tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'labelstudio'"):
        export_candidates(photos_review, "label-studio", tmp_path / "a.json")
    with pytest.raises(UnknownNameError):
        import_decisions(photos_review, "cvat", tmp_path / "a.json", "ben")
    with pytest.raises(InputError):
        export_candidates(review, "labelstudio", tmp_path / "a.json")
    out = tmp_path / "tasks.json"
    export_candidates(photos_review, "labelstudio", out)
    text = out.read_text()
    out.write_text(text.replace('"name":"0.jpg"', '"name":"9.jpg"'))
    with pytest.raises(InputError, match=r"9\.jpg"):
        import_decisions(photos_review, "labelstudio", out, "ben")
    out.write_text(text)
    interface = tmp_path / "tasks.xml"
    interface.write_text(interface.read_text().replace("owl", "bat"))
    with pytest.raises(InputError, match=r"bat|owl"):
        import_decisions(photos_review, "labelstudio", out, "ben")
    assert photos_review.store.events() == []
