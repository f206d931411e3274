"""Labels that models or other people gave: read in every form, measured on the known labels, used by an audit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

import labelgap as lg
from labelgap.data import Dataset, load_from_recipe
from labelgap.data.prior import Prior, PriorSource, read_prior
from labelgap.labels import LabelTable

CLASSES = ("cat", "dog", "owl")
IMAGES = {"a.jpg", "b.jpg"}
NAN = float("nan")


def said(prior: Prior, source: str) -> list[list[float]]:
    table = LabelTable.from_dense(np.full((2, 3), -1, dtype=np.int8), CLASSES, sorted(IMAGES))
    return [[round(value, 3) for value in row] for row in prior.of_table(source, table).tolist()]


def equal(one: list[list[float]], other: list[list[float]]) -> bool:
    return bool(np.array_equal(np.array(one), np.array(other), equal_nan=True))


def test_every_form_of_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "clip.csv").write_text("image,class,score,more\nphotos/a.jpg,cat,0.9,1\nb.jpg,owl,0,2\nz.jpg,owl,1,2\n")
    wide = {"image": ["a.jpg", "b.jpg"], "cat": [0.25, None], "dgo": [0.5, 0.5]}
    pq.write_table(pa.table(wide), tmp_path / "old.parquet")
    rows = [
        {"image": "a.jpg", "present": ["dog"], "annotator": "ann"},
        {"image": "b.jpg", "present": ["cat"], "annotator": "ann"},
        {"image": "a.jpg", "present": [], "annotator": "bob"},
    ]
    (tmp_path / "people.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "lists.csv").write_text("image,present,absent\na.jpg,cat; owl,\nb.jpg,,dog\n")
    prior, notes = read_prior(tmp_path, CLASSES, IMAGES)
    assert prior.sources == ("ann", "clip", "lists", "old"), "bob has used no tag, so he says nothing"
    assert equal(said(prior, "clip"), [[0.9, NAN, NAN], [NAN, NAN, 0.0]])
    assert equal(said(prior, "old"), [[0.25, NAN, NAN], [NAN, NAN, NAN]])
    assert equal(said(prior, "ann"), [[0.0, 1.0, NAN], [1.0, 0.0, NAN]])
    assert equal(said(prior, "lists"), [[1.0, NAN, 1.0], [NAN, 0.0, NAN]])
    assert [("1 class " in str(note), "1 image " in str(note)) for note in notes] == [(True, False), (False, True)]
    assert "dog?" in str(notes[0])


def test_names_mean_images_as_those_of_a_table_do(tmp_path: Path) -> None:
    text = "image,class,probability\n{},cat,0.5\n{},cat,0.25\n"
    for number, names in enumerate((("a", "b"), ("photos/A", "x\\B.JPEG"), ("a.jpg", "b"))):
        (tmp_path / f"{number}.csv").write_text(text.format(*names))
        prior, notes = read_prior(tmp_path / f"{number}.csv", CLASSES, IMAGES)
        assert equal(said(prior, str(number)), [[0.5, NAN, NAN], [0.25, NAN, NAN]]) and not notes
    (tmp_path / "two.csv").write_text(text.format("a", "b"))
    prior, notes = read_prior(tmp_path / "two.csv", CLASSES, {"a.jpg", "a.png", "b.jpg"})
    assert equal(said(prior, "two"), [[NAN, NAN, NAN], [0.25, NAN, NAN]]) and "1 image " in str(notes[0])


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "a.csv",
            "image,class,probability\na.jpg,cat,1.5\nb.jpg,dog,x\na.jpg,,0.5\n",
            "(?s)line 2 .*1.5.*line 3 .*x.*line 4",
        ),
        ("a.csv", "image,class,probability\na.jpg,cat,0.5\nx/a.jpg,cat,0.5\n", "a says something of 1 labels twice"),
        ("a.csv", "photo,cat\na.jpg,1\n", "no column 'image'"),
        ("a.csv", "image,cat\nz.jpg,1\n", "it has no image"),
        ("a.csv", "image,lion\na.jpg,1\n", "it has no class"),
        ("a.csv", "image\na.jpg\n", "no labels"),
        ("a.csv", "image,cat,dog\na.jpg,yes,0.5\nb.jpg,,3\n", "(?s)2 problems.*line 2 .*yes.*line 3 .*3"),
        ("a.csv", "image,cat,cat\na.jpg,1,1\n", "'cat' twice"),
        ("a.csv", "image,tags,absent\na.jpg,cat;dog,dog\n", "'dog' is both"),
        ("a.jsonl", '{"image": "a.jpg", "class": ["cat"], "probability": 1}', "has lists"),
        ("a.txt", "", r"\.csv"),
        ("a.jsonl", "{", "cannot be read"),
        ("a.parquet", "PAR", "cannot be read"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(lg.InputError, match=said):
        read_prior(tmp_path / name, CLASSES, IMAGES)


@pytest.mark.parametrize(
    "text",
    [
        b"image,class,score,probability,label,mark\na.jpg,cat,0.5,0.25,present,known\na.jpg,dog,0.75,,absent,raw\n",
        b"image;class;probability\r\nphotos\\a.jpg;cat;0.25\r\nC:\\x\\a.jpg;dog;0.75\r\n",
        b"\xef\xbb\xbfImage,Class,Probability\na.jpg,cat,0.25\na.jpg,dog,0.75\nb.jpg,dog,n/a\nb.jpg,cat,\n",
        b"image,cat,dog,caf\xe9\na.jpg,0.25,0.75,yes\n".replace(b"yes", b"1"),
    ],
    ids=["predict", "semicolons", "byte-order-mark", "cp1252"],
)
def test_what_other_programs_write_is_read(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "s.csv").write_bytes(text)
    prior, _ = read_prior(tmp_path / "s.csv", CLASSES, IMAGES)
    assert equal(said(prior, "s"), [[0.25, 0.75, NAN], [NAN, NAN, NAN]])


def test_digits_in_a_name_are_no_number(tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_text("image,class,probability\n0001,7,0.25\n0010,7,0.75\n")
    prior, _ = read_prior(tmp_path / "s.csv", ("7",), {"0001", "0010"})
    assert prior.images == {"0001": 0, "0010": 1} and prior.probability.tolist() == [0.25, 0.75]


def test_a_source_that_says_one_number_of_all_counts_nothing() -> None:
    table = LabelTable.from_dense(np.full((1000, 1), -1, dtype=np.int8), ["cat"])
    row = np.arange(900)
    prior = Prior(
        ("s",),
        {name: at for at, name in enumerate(table.images)},
        ("cat",),
        row * 0,
        row,
        row * 0,
        row * 0 + np.float32(0.3),
    )
    assert not prior.standardized("s", {"train": table})["train"].any()


def test_a_source_that_says_nothing_of_these_data_has_no_numbers() -> None:
    silent = PriorSource("other", 0, 0, NAN, NAN, NAN, NAN, NAN)
    assert "labels present" not in str(silent) and "0 images" not in str(silent)


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(lg.InputError, match="does not exist"):
        read_prior(tmp_path / "none.csv", CLASSES, IMAGES)
    with pytest.raises(lg.InputError, match="no file"):
        read_prior(tmp_path, CLASSES, IMAGES)


def write_wide(path: Path, data: Dataset, probability: NDArray[np.float64]) -> None:
    columns = dict(zip(data.classes, probability.T, strict=True))
    pq.write_table(pa.table({"image": pa.array(data.train.labels.images), **columns}), path)


def test_an_audit_believes_a_source_as_far_as_the_known_labels_do(tmp_path: Path) -> None:
    """A teacher that is mostly right finds missing labels sooner; one that guesses changes next to nothing."""
    random = np.random.default_rng(0)
    features = random.normal(size=(400, 8)).astype(np.float32)
    truth = features @ random.normal(size=(8, 3)) + 3 * random.normal(size=(400, 3)) > 2
    known = random.random(truth.shape) < 0.3
    labels = np.where(known, truth.astype(np.int8), -1)
    np.savez(tmp_path / "x.npz", classes=np.array(CLASSES), train_features=features, train_labels=labels)
    data = lg.load(f"features={tmp_path / 'x.npz'}")
    noise = random.normal(size=(2, *truth.shape))
    (tmp_path / "said").mkdir()
    write_wide(tmp_path / "said" / "teacher.parquet", data, 1 / (1 + np.exp(-(2.0 * (2 * truth - 1) + 1.5 * noise[0]))))
    write_wide(tmp_path / "said" / "guess.parquet", data, 1 / (1 + np.exp(-noise[1])))
    with_prior = lg.load(f"features={tmp_path / 'x.npz'}", prior=tmp_path / "said")
    assert load_from_recipe(with_prior.recipe).prior is not None
    sources = {each.source: each for each in with_prior.findings if isinstance(each, PriorSource)}
    assert sources["teacher"].is_informative and sources["teacher"].ranked > 0.9
    assert not sources["guess"].is_informative and "says nothing" in str(sources["guess"])
    assert sources["teacher"].present == pytest.approx(np.mean(1.5 * noise[0][labels == 1] >= -2))

    run = lg.fit(data, method="an", out=tmp_path / "run", quiet=True)
    precision = []
    for seen in (data, with_prior):
        audit = lg.find_missing(run, data=seen, out=tmp_path / f"audit-{seen is data}", quiet=True)
        table = audit.of_kind("missing")
        rows = [int(data.train.labels.images.index(name)) for name in table["image"].to_pylist()]
        columns = [data.classes.index(name) for name in table["class"].to_pylist()]
        found = truth[rows, columns]
        precision.append(np.mean(np.cumsum(found)[found] / (np.flatnonzero(found) + 1)))
    slopes = audit.metadata["priors"]
    assert slopes["teacher"] > 0.2 and slopes["guess"] < 0.2 * slopes["teacher"]
    assert precision[1] > precision[0] + 0.05
    assert any(name == "prior" and "teacher adds" in lines[0] for name, lines in audit.facts())
