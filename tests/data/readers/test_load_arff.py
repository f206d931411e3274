"""ARFF of Mulan and MEKA, dense and sparse, with the oddities of real files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.data.readers.refused import places, refused
from tests.data.sentences import sentences

from labelgap.core.errors import InputError
from labelgap.data.feature_vectors import FeatureVectors
from labelgap.data.findings import NoSplit
from labelgap.data.opening import load

HEADER = """% a comment, and a blank line

@RELATION 'Emotions: 3'
@attribute Mean_Acc numeric
@ATTRIBUTE "it's loud" {low,'very high',"a,b"}   % three values
@attribute note string
@attribute isNew {0,1}
@attribute amazed-suprised {0,1}
@attribute 'happy pleased' {0,1}
@attribute quiet {1,0}
@data
"""
DENSE = """0.5,low,'a note, with a comma',1,1,0,0
-2e1,'very high','',0,0,?,1
?,"a,b",x,?,0,1,?   % missing ones

% the end
"""
SPARSE = """{0 .5, 2 'a note, with a comma', 3 1, 4 1, 6 0}
{0 -20,1 'very high',2 '',5 ?}
{ 0 ?, 1 "a,b", 2 x, 3 ?, 5 1, 6 ? }
"""
XML = """<?xml version="1.0" encoding="utf-8"?>
<labels xmlns="http://mulan.sourceforge.net/labels">
  <label name="quiet"></label>
  <label name="amazed-suprised"><label name="happy pleased"/></label>
</labels>
"""
FEATURES = [[0.5, 1.0, 0, 0, 1], [-20, 0, 1, 0, 0], [-9.75, 0, 0, 1, 0.5]]
CODES = [[1, 0, 0], [0, -1, 1], [0, 1, -1]]


def mulan(folder: Path, rows: str = DENSE, test: str | None = DENSE) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "emotions.xml").write_text(XML)
    (folder / "emotions-train.arff").write_text(HEADER + rows)
    if test is not None:
        (folder / "emotions-test.arff").write_text(HEADER + test)
    return folder


@pytest.mark.parametrize("rows", [DENSE, SPARSE])
def test_features_and_labels_are_those_of_the_file(tmp_path: Path, rows: str) -> None:
    data = load(mulan(tmp_path, rows, SPARSE))
    assert data.classes == ("amazed-suprised", "happy pleased", "quiet") and data.backbone == "features"
    assert [split.name for split in data.splits] == ["train", "test"] and data.recipe["name"] == "arff"
    for split in data.splits:
        assert isinstance(split.images, FeatureVectors) and np.allclose(split.images.vectors, np.array(FEATURES))
        assert split.labels.to_dense().tolist() == CODES
    assert any("5 features" in each for each in sentences(data)), "of 3 attributes"
    assert any(each.startswith("4 missing features") for each in sentences(data))
    assert data.train.labels.images[:2] == ("emotions-train.arff:12", "emotions-train.arff:13"), "lines"


@pytest.mark.parametrize(("count", "classes"), [("3", "abc"), ("-2", "de")])
def test_meka_counts_the_labels_in_the_relation(tmp_path: Path, count: str, classes: str) -> None:
    kinds = {name: "{0,1}" if name != "c" else "numeric" for name in "abcde"}
    names = "".join(f"@attribute {name} {kind}\n" for name, kind in kinds.items())
    (tmp_path / "emotions.xml").write_text(XML)  # of another table
    path = tmp_path / "Music.arff"
    path.write_text(f"@relation 'Music: -C {count} -split-percent 50'\n{names}@data\n1,0,1,0,1\n0,1,0,1,0\n")
    data = load(path)
    assert "".join(data.classes) == classes and NoSplit(2) in data.findings
    assert data.train.labels.to_dense()[0].tolist() == ([1, 0, 1] if count == "3" else [0, 1])
    (tmp_path / "Music.xml").write_text('<labels><label name="a"/></labels>')
    assert places("arff", path) == ["Music.arff, line 1"]


def test_sparse_and_dense_are_the_same_table_at_random(tmp_path: Path) -> None:
    random, path = np.random.default_rng(3), tmp_path / "x.arff"
    values = np.where(random.random((40, 12)) < 0.3, random.integers(1, 9, (40, 12)), 0)
    codes = random.integers(0, 2, (40, 4))
    names = "".join(f"@attribute f{n} numeric\n" for n in range(12))
    names += "".join(f"@attribute y{n} {kind}\n" for n, kind in enumerate(("{0,1}", "{0,1}", "{1,0}", "numeric")))
    table = np.concatenate([values, codes], axis=1).tolist()
    dense = "".join(",".join(map(str, row)) + "\n" for row in table)
    cells = [", ".join(f"{n} {cell}" for n, cell in enumerate(row) if cell or n == 14) for row in table]
    for rows in (dense, "".join(f"{{{each}}}\n" for each in cells)):
        path.write_text(f"@relation 'x: -C -4'\n{names}@data\n{rows}")
        train = load("arff", path).train
        assert isinstance(train.images, FeatureVectors) and (train.images.vectors == values).all()
        assert (train.labels.to_dense() == codes).all()
    path.write_text(path.read_text().replace("15 1}", "15 2}", 1))
    assert len(refused("arff", path)) == 1, "a label is 0 or 1"


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        ("1,low,x,1,1,0\n", 12),
        ("one,low,x,1,1,0,0\n", 12),
        ("nan,low,x,1,1,0,0\n", 12),
        ("1e39,low,x,1,1,0,0\n", 12),
        ("1,'loud,x,1,1,0,0\n", 12),
        (DENSE + "1,low,x,1,2,0,0\n", 17),
        ("{0 1, 9 1}\n", 12),
        ("{0 1, 0 2}\n", 12),
        ("{0 1, x}\n", 12),
        ("{0 1, 1 low\n", 12),
    ],
)
def test_bad_rows_of_both_files_are_named_by_line(tmp_path: Path, rows: str, line: int) -> None:
    found = places("arff", mulan(tmp_path, rows, rows))
    assert found == [f"emotions-{split}.arff, line {line}" for split in ("train", "test")]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (HEADER.replace("isNew", "note") + DENSE, "x.arff, line 7"),
        (HEADER.replace("string", "relational"), "x.arff, line 6"),
        (HEADER.replace("{1,0}", "{1,0"), "x.arff, line 10"),
        (HEADER.replace("{1,0}", "{1,1}"), "x.arff, line 10"),
        (HEADER.partition("@data")[0], "x.arff, line 10"),
        ("@data\n", "x.arff, line 1"),
        (HEADER, "x.arff"),
        ("image,cat\na.jpg,1\n", "x.arff, line 1"),
        (HEADER + DENSE, "x.arff, line 3"),
        (HEADER.replace("Emotions: 3", "Emotions: -C 8") + DENSE, "x.arff, line 3"),
        (HEADER.replace("Emotions: 3", "E: -C -7") + DENSE, "x.arff, line 6"),
    ],
)
def test_bad_headers_and_labels_are_refused(tmp_path: Path, text: str, place: str) -> None:
    (tmp_path / "x.arff").write_text(text)
    assert place in places("arff", tmp_path / "x.arff")


def test_files_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    folder = mulan(tmp_path)
    test = folder / "emotions-test.arff"
    for old, new in (("{low,", "{loud,"), ("isNew", "isOld"), ("@attribute quiet {1,0}\n", "")):
        test.write_text((HEADER + "1,'very high',x,1,0,0,1\n"[: 24 - 2 * (old[0] == "@q")]).replace(old, new))
        assert places("arff", folder)[0].startswith("emotions-test.arff")
    (folder / "emotions.xml").write_text(XML.replace("quiet", "calm").replace("happy pleased", "amazed-suprised"))
    test.unlink()
    assert places("arff", folder) == ["emotions.xml"] * 2
    (folder / "emotions.xml").write_text("<labels/>")
    assert places("arff", folder) == ["emotions.xml"]
    (folder / "other.arff").write_text(HEADER)
    (folder / "emotions-train.arff").rename(folder / "emotions.arff")
    for path in (folder, folder / "emotions.xml", folder / "none.arff"):
        with pytest.raises(InputError, match=path.name):
            load("arff", path)
