"""ARFF of Mulan and MEKA, dense and sparse, with the oddities of real files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.cli.conftest import call
from tests.data.sentences import sentences

from labelgap.core.errors import InputError, ProblemsError
from labelgap.data.feature_vectors import FeatureVectors
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
    for split in data.splits:
        assert isinstance(split.images, FeatureVectors) and np.allclose(split.images.vectors, np.array(FEATURES))
        assert split.labels.to_dense().tolist() == CODES
    first = 12  # the line of the first row
    assert data.train.labels.images[:2] == (f"emotions-train.arff:{first}", f"emotions-train.arff:{first + 1}")
    said = " | ".join(sentences(data))
    assert "3 attributes as 5 features" in said and "1 attribute of text or dates left out" in said
    assert "4 missing features are the means of train" in said and "3 train, 3 test" in said


@pytest.mark.parametrize(("count", "classes"), [("3", "abc"), ("-2", "de")])
def test_meka_counts_the_labels_in_the_relation(tmp_path: Path, count: str, classes: str) -> None:
    kinds = {name: "{0,1}" if name != "c" else "numeric" for name in "abcde"}
    header = f"@relation 'Music: -C {count} -split-percent 50'\n" + "".join(
        f"@attribute {name} {kind}\n" for name, kind in kinds.items()
    )
    (tmp_path / "emotions.xml").write_text(XML)  # of another table
    path = tmp_path / "Music.arff"
    path.write_text(f"{header}@data\n1,0,1,0,1\n0,1,0,1,0\n")
    data = load(path)
    assert "".join(data.classes) == classes and data.test is None and data.val is None
    assert data.train.labels.to_dense()[0].tolist() == ([1, 0, 1] if count == "3" else [0, 1])
    assert "no split given: all 2 images are train" in sentences(data)
    (tmp_path / "Music.xml").write_text('<labels><label name="a"/></labels>')
    with pytest.raises(ProblemsError, match=r"line 1: -C counts other labels than Music.xml names"):
        load("arff", path)


def test_sparse_and_dense_are_the_same_table_at_random(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    values = np.where(random.random((40, 12)) < 0.3, random.integers(1, 9, (40, 12)), 0)
    codes = random.integers(0, 2, (40, 4))
    names = "".join(f"@attribute f{n} numeric\n" for n in range(12)) + "".join(
        f"@attribute y{n} {{0,1}}\n" for n in range(4)
    )
    table = np.concatenate([values, codes], axis=1)
    dense = "".join(",".join(map(str, row)) + "\n" for row in table.tolist())
    sparse = "".join(
        "{" + ",".join(f"{n} {cell}" for n, cell in enumerate(row) if cell) + "}\n" for row in table.tolist()
    )
    for rows in (dense, sparse):
        path = tmp_path / "x.arff"
        path.write_text(f"@relation 'x: -C -4'\n{names}@data\n{rows}")
        train = load("arff", path).train
        assert isinstance(train.images, FeatureVectors) and (train.images.vectors == values).all()
        assert (train.labels.to_dense() == codes).all()


@pytest.mark.parametrize(
    ("rows", "line", "message"),
    [
        ("1,low,x,1,1,0\n", 12, "6 cells where there are 7 attributes"),
        ("one,low,x,1,1,0,0\n", 12, "'one' under Mean_Acc: it is no number"),
        ("nan,low,x,1,1,0,0\n", 12, "'nan' under Mean_Acc: it is no number"),
        ("1e39,low,x,1,1,0,0\n", 12, "'1e39' under Mean_Acc: it is no number, or too large"),
        ("1,'loud,x,1,1,0,0\n", 12, "a quote is opened and never closed"),
        (DENSE + "1,low,x,1,2,0,0\n", 17, "'2' under amazed-suprised: it is one of 0, 1"),
        ("{0 1, 9 1}\n", 12, "there is no column 9: they are counted from 0 to 6"),
        ("{0 1, 0 2}\n", 12, "column 0 is there twice"),
        ("{0 1, x}\n", 12, "'x': a cell of a sparse row is a number of a column and its value"),
        ("{0 1, 1 low\n", 12, "no closing brace: is the file complete?"),
    ],
)
def test_bad_rows_of_both_files_are_named_by_line(tmp_path: Path, rows: str, line: int, message: str) -> None:
    with pytest.raises(ProblemsError) as error:
        load("arff", mulan(tmp_path, rows, rows))
    for split in ("train", "test"):
        assert f"emotions-{split}.arff, line {line}: " in str(error.value)
    assert "2 problems" in str(error.value) and message in str(error.value)


def test_bad_headers_and_labels_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.arff"
    for text, message in (
        (HEADER.replace("isNew", "note") + DENSE, "line 7: 'note' is declared again (first in line 6)"),
        (HEADER.replace("string", "relational"), "line 6: 'note' is of type 'relational'"),
        (HEADER.replace("{1,0}", "{1,0"), "line 10: the values of 'quiet' have no closing brace"),
        (HEADER.partition("@data")[0], "line 10: the file ends before @data: is it complete?"),
        (HEADER, "x.arff: there is no row after @data"),
        ("image,cat\na.jpg,1\n", "line 1: 'image,cat': a line before @data is @relation NAME or @attribute NAME TYPE"),
        (HEADER + DENSE, "line 3: nothing says which attributes are labels: put Mulan's x.xml beside it"),
        (HEADER.replace("Emotions: 3", "Emotions: -C 8") + DENSE, "line 3: -C 8 labels, and there are 7 attributes"),
        (HEADER.replace("Emotions: 3", "E: -C -7") + DENSE, "line 6: the label 'note' is text"),
    ):
        path.write_text(text)
        with pytest.raises(ProblemsError) as error:
            load("arff", path)
        assert message in str(error.value)
    folder = mulan(tmp_path / "m", test=DENSE)
    test = folder / "emotions-test.arff"
    test.write_text(test.read_text().replace("{low,", "{loud,"))
    with pytest.raises(ProblemsError, match=r"test.arff, line 12: 'low' under it's loud"):
        load("arff", folder)
    test.write_text(test.read_text().replace("isNew", "isOld").replace("{loud,", "{low,"))
    with pytest.raises(ProblemsError, match=r"test.arff, line 7: 'isOld' \(nominal\), where line 7 of emotions-train"):
        load("arff", folder)
    (folder / "emotions.xml").write_text(XML.replace("quiet", "calm").replace("happy pleased", "amazed-suprised"))
    with pytest.raises(ProblemsError) as error:
        load("arff", folder)
    assert "emotions.xml: 'calm' is no attribute of emotions-train.arff" in str(error.value)
    assert "emotions.xml: the label 'amazed-suprised' is there twice" in str(error.value)
    (folder / "other.arff").write_text(HEADER)
    (folder / "emotions-train.arff").rename(folder / "emotions.arff")
    with pytest.raises(InputError, match="holds several tables"):
        load("arff", folder)


@pytest.mark.usefixtures("undrawn")
def test_commands_train_a_linear_head_on_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    random = np.random.default_rng(0)
    names = "".join(f"@attribute f{n} numeric\n" for n in range(4)) + "".join(
        f"@attribute y{n} {{0,1}}\n" for n in range(3)
    )
    for split in ("train", "test"):
        values = random.normal(size=(60, 4))
        rows = [[*map("{:.4f}".format, row), *(row[:3] > 0).astype(int)] for row in values]
        text = "".join(",".join(map(str, row)) + "\n" for row in rows)
        (tmp_path / f"toy-{split}.arff").write_text(f"@relation 'toy: -C -3'\n{names}@data\n{text}")
    assert call("inspect", str(tmp_path)) == 0
    assert "an .arff file, or a folder with NAME-train.arff" in capsys.readouterr().out
    run = tmp_path / "run"
    assert call("train", str(tmp_path), "--method", "an", "--epochs", "3", "--out", str(run)) == 0
    measured = json.loads((run / "config.json").read_text())
    assert measured["backbone"] == "features" and (run / "predictions.parquet").exists()
    assert call("predict", str(run), str(tmp_path / "toy-test.arff"), "--out", str(tmp_path / "scores.csv")) == 0
    assert (tmp_path / "scores.csv").read_text().splitlines()[1].startswith('"toy-test.arff:10",')
