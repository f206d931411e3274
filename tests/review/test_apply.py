"""The better table: people's decisions laid over what was observed, and nothing else unless asked for."""

from __future__ import annotations

import csv
import uuid
from pathlib import Path

import pytest
from tests.review.sample_photos import TAGS, make_photos

import labelgap as lg
from labelgap.core.errors import InputError, UnknownNameError
from labelgap.data.dataset import Dataset
from labelgap.labels import Revision, Revisions
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.labels.revisions import read_provenance
from labelgap.review import ReviewFolder, create_random_review, open_review_folder
from labelgap.review.apply import apply_decisions
from labelgap.review.database import FILE
from labelgap.review.store import Decision, DecisionStore, LabelKey
from labelgap.training.config import RunConfig, write_config


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dataset:
    monkeypatch.setenv("LABELGAP_CACHE", str(tmp_path / "cache"))
    return make_photos(tmp_path)


@pytest.fixture
def drawn(data: Dataset, tmp_path: Path) -> ReviewFolder:
    return create_random_review(data, "train", 5, 0, tmp_path / "review")


def decide(folder: Path, *said: tuple[str, str, str, int]) -> None:
    store = DecisionStore(folder / FILE)
    made = [Decision(LabelKey(split, image, name), value, uuid.uuid4().hex) for split, image, name, value in said]
    store.append(made, reviewer="anna", client="window-1")
    store.close()


SAID = (
    ("train", "0.jpg", "dog", PRESENT),
    ("train", "0.jpg", "owl", ABSENT),
    ("train", "1.jpg", "owl", PRESENT),  # was absent
    ("train", "2.jpg", "cat", UNKNOWN),  # was absent, and nobody can tell
    ("train", "2.jpg", "dog", UNKNOWN),  # was unknown, and stays it
    ("val", "6.jpg", "cat", PRESENT),
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


def test_decisions_become_cells_all_else_stays_and_beside_it_stands_who_said_what(
    drawn: ReviewFolder, tmp_path: Path
) -> None:
    decide(drawn.path, *SAID)
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


LISTS = "id;tags;notes;image\n1;owl, cat;x;5.jpg\n2;;;1.jpg\n3;dog;y;0.jpg\n"
NEW_LISTS = "id;tags;notes;image;absent\n1;owl, cat;x;5.jpg;\n2;cat;;1.jpg;dog\n3;;y;0.jpg;dog\n"


def test_lists_stay_lists_in_their_own_order_and_the_printed_command_reads_them(data: Dataset, tmp_path: Path) -> None:
    (tmp_path / "lists.csv").write_text(LISTS)
    options = {"rename": {"tags": "present"}, "ignore_columns": ["id", "notes"], "duplicates": "off"}
    lists = lg.load("csv", tmp_path / "lists.csv", images=tmp_path / "photos", **options)
    folder = create_random_review(lists, "train", 9, 0, tmp_path / "lists-review")
    assert apply_decisions(folder, tmp_path / "same.csv").path.read_text() == LISTS
    said = [("1.jpg", "cat", PRESENT), ("1.jpg", "dog", ABSENT), ("0.jpg", "dog", ABSENT)]
    names = {name: split.name for split in lists.splits for name in split.labels.images}
    decide(folder.path, *((names[image], image, tag, value) for image, tag, value in said))
    written = apply_decisions(folder, tmp_path / "better.csv")
    assert written.path.read_text() == NEW_LISTS
    assert written.own_format is not None and written.own_format.absent_added


def test_tables_of_val_and_test_are_written_beside_the_table(data: Dataset, tmp_path: Path) -> None:
    """Where a label changed, or a zero that meant unknown is cleared."""
    tables = {
        "a": "image,cat,dog\n0.jpg,1,0\n1.jpg,0,1\n",
        "b": "image,cat,dog\n5.jpg,1,0\n",
        "c": "image,dog\n7.jpg,1\n",
    }
    for name, text in tables.items():
        (tmp_path / f"{name}.csv").write_text(text)
    others = {"val": tmp_path / "b.csv", "test": tmp_path / "c.csv", "images": tmp_path / "photos"}
    for zeros in ("absent", "unknown"):
        split = lg.load("csv", tmp_path / "a.csv", **others, zeros=zeros, duplicates="off")
        folder = create_random_review(split, "train", 9, 0, tmp_path / zeros)
        decide(folder.path, ("train", "0.jpg", "dog", ABSENT), ("val", "5.jpg", "dog", PRESENT))
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
    decide(first.path, ("train", "0.jpg", "dog", PRESENT), ("train", "3.jpg", "cat", ABSENT))
    decide(second.path, ("train", "0.jpg", "dog", ABSENT), ("train", "3.jpg", "cat", ABSENT), SAID[1])
    for order in ([first, second], [second, first]):
        written = apply_decisions(order, tmp_path / "better.csv", force=True)
        text = written.path.read_text()
        assert "0.jpg,train,1,0,0\n" in text and "3.jpg,train,0,,1\n" in text
        assert (written.decided, written.contradicted) == (3, 1)
    runs = [row.rpartition(",")[2] for row in written.provenance.read_text().splitlines()[1:]]
    assert runs == [str(second.path)] * 3


def test_the_next_table_remembers_what_people_decided_for_this_one(drawn: ReviewFolder, tmp_path: Path) -> None:
    decide(drawn.path, ("train", "0.jpg", "cat", PRESENT), ("train", "0.jpg", "dog", PRESENT))
    apply_decisions(drawn, tmp_path / "better.csv")
    better = lg.load("csv", tmp_path / "better.csv", images=tmp_path / "photos", duplicates="off")
    again = create_random_review(better, "train", 5, 0, tmp_path / "again")
    decide(again.path, ("train", "0.jpg", "dog", ABSENT), ("train", "4.jpg", "owl", ABSENT))
    entries = read_provenance(apply_decisions(again, tmp_path / "best.csv").provenance)
    told = [(entry.revision.image, entry.revision.class_name, entry.revision.value) for entry in entries]
    assert told == [("0.jpg", "dog", ABSENT), ("4.jpg", "owl", ABSENT), ("0.jpg", "cat", PRESENT)]
    (tmp_path / "better.provenance.csv").write_text("image,split,class,before,after\n0.jpg,train,cat,maybe,present\n")
    with pytest.raises(InputError, match=r"better\.provenance\.csv is not a list .+line 2"):
        apply_decisions(again, tmp_path / "last.csv")


@pytest.fixture
def run(data: Dataset, tmp_path: Path) -> ReviewFolder:
    """The folder of a run whose method revised labels; it was not finished, so all its revisions count."""
    folder = tmp_path / "run"
    folder.mkdir()
    settings = {"method": "ll-cp", "why": None, "backbone": "small-cnn", "protocol": "linear", "epochs": 3}
    numbers = {
        "lr": 0.1,
        "backbone_lr": 0.1,
        "batch_size": 4,
        "flip": False,
        "seed": 0,
        "select": "last",
        "trace": "off",
    }
    write_config(folder, RunConfig.checked(data=dict(data.recipe), classes=data.classes, **settings, **numbers))
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


def test_a_models_revisions_come_in_only_when_named_and_never_before_a_persons(
    run: ReviewFolder, tmp_path: Path
) -> None:
    decide(run.path, ("train", "0.jpg", "dog", ABSENT))
    apply_decisions(run, tmp_path / "people.csv")
    assert "0.jpg,train,1,0," in (tmp_path / "people.csv").read_text()
    assert "3.jpg,train,,,1" in (tmp_path / "people.csv").read_text()

    written = apply_decisions(run, tmp_path / "both.csv", ["ll-cp"])
    text = (tmp_path / "both.csv").read_text()
    assert "0.jpg,train,1,0," in text and "3.jpg,train,1,,1" in text and "1.jpg,train,,1,0" in text
    assert "4.jpg,train,,1," in text and written.soft == 1
    assert written.changed == {"review": 1, "ll-cp": 1}
    assert "3.jpg,train,cat,unknown,present,ll-cp,,,2" in written.provenance.read_text()


def test_a_source_that_revised_nothing_is_named(run: ReviewFolder, drawn: ReviewFolder, tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'll-cp'"):
        apply_decisions(run, tmp_path / "a.csv", ["ll-ct"])
    with pytest.raises(UnknownNameError, match="No method revised"):
        apply_decisions(drawn, tmp_path / "a.csv", ["ll-cp"])
    assert not (tmp_path / "a.csv").exists()


def test_the_data_themselves_and_other_files_are_never_overwritten(drawn: ReviewFolder, tmp_path: Path) -> None:
    for force in (False, True):
        with pytest.raises(InputError, match="never overwritten"):
            apply_decisions(drawn, tmp_path / "tags.csv", force=force)
    (tmp_path / "tags.provenance.csv").unlink(missing_ok=True)
    assert (tmp_path / "tags.csv").read_text() == TAGS
    (tmp_path / "other.csv").write_text("mine")
    with pytest.raises(InputError, match="--force"):
        apply_decisions(drawn, tmp_path / "other.csv")
    assert (tmp_path / "other.csv").read_text() == "mine"
    apply_decisions(drawn, tmp_path / "other.csv", force=True)
    with pytest.raises(InputError, match=r"other\.csv is there already|provenance"):
        apply_decisions(drawn, tmp_path / "other.csv")
    with pytest.raises(InputError, match=r"\.csv or \.parquet"):
        apply_decisions(drawn, tmp_path / "other.txt")
