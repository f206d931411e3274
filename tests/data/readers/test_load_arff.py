"""ARFF of Mulan and MEKA, dense and sparse, with the oddities of real files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.data.readers.refused import places
from tests.data.sentences import sentences

from labelgap.core.errors import InputError, UnknownNameError
from labelgap.data.dataset import Dataset
from labelgap.data.findings import NoSplit
from labelgap.data.images import FeatureVectors
from labelgap.data.registry import load

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
    assert load(path).classes == ("a",)


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


ROWS = "".join(f"p{n},{n},{n % 2},{n // 2 % 2}\n" for n in range(12))


def real_table(
    folder: Path, name: str = "medical-train", relation: str = "medical", label: str = "sore throat"
) -> Path:
    """A table in the layout of Mulan's: an attribute with a value per row, a number, and two labels at the end."""
    folder.mkdir(exist_ok=True)
    proteins = ",".join(f"p{n}" for n in range(14))
    names = [f"protein {{{proteins}}}", "word numeric", f"{label} {{0,1}}", "cough {0,1}"]
    header = f"@relation '{relation}'\n" + "".join(f"@attribute {each}\n" for each in names)
    (folder / f"{name}.arff").write_text(f"{header}@data\n{ROWS}")
    return folder / f"{name}.arff"


def labels_xml(*names: str) -> str:
    return "<labels>" + "".join(f'<label name="{each}"/>' for each in names) + "</labels>"


def cautions(data: Dataset) -> list[str]:
    return [str(finding) for finding in data.findings if finding.warning and finding.topic == "source"]


@pytest.mark.parametrize("xml", ["medical.xml", "other.xml"])
def test_the_xml_wins_over_a_stale_count_and_it_is_said(tmp_path: Path, xml: str) -> None:
    path = real_table(tmp_path, relation="medical: -C 2", label="'sore throat'")
    (tmp_path / xml).write_text(labels_xml("cough", "sore throat"))
    data = load(path, ignore_columns=["protein"])
    assert data.classes == ("sore throat", "cough")
    assert len(cautions(data)) == 1 and cautions(data)[0].startswith("medical-train.arff, line 1:")
    (tmp_path / xml).write_text(labels_xml("cat"))  # of another table
    assert places("arff", path)[0] == ("medical.xml" if xml == "medical.xml" else "medical-train.arff, line 2")


@pytest.mark.parametrize("written", ["m'usica", r"m\'usica"])
def test_an_escaped_quote_in_a_name_without_quotes_is_part_of_the_name(tmp_path: Path, written: str) -> None:
    path = real_table(tmp_path, "delicious-train", label=r"TAG_m\'usica")
    (tmp_path / "delicious.xml").write_text(labels_xml(f"TAG_{written}", "cough"))
    assert load(path).classes == ("TAG_m'usica", "cough")


def test_sparse_files_find_their_xml_and_each_other(tmp_path: Path) -> None:
    train = real_table(tmp_path, "Corel5k-train-sparse", label="sun")
    real_table(tmp_path, "Corel5k-test-sparse", label="sun")
    (tmp_path / "Corel5k.xml").write_text(labels_xml("sun", "cough"))
    (tmp_path / "other.xml").write_text(labels_xml("cough"))
    for place in (tmp_path, train):
        data = load(place)
        assert data.classes == ("sun", "cough") and [split.name for split in data.splits] == ["train", "test"]
    assert load(train, xml=tmp_path / "other.xml", ignore_columns=["protein", "sun"]).classes == ("cough",)
    with pytest.raises(InputError, match=r"none\.xml"):
        load(train, xml=tmp_path / "none.xml")


def test_an_attribute_with_a_value_per_row_is_warned_of_and_left_out_on_request(tmp_path: Path) -> None:
    path = real_table(tmp_path, label="throat")
    (tmp_path / "medical.xml").write_text(labels_xml("throat", "cough"))
    data = load(path)
    assert isinstance(data.train.images, FeatureVectors) and data.train.images.width == 15
    assert len(cautions(data)) == 1 and "protein" in cautions(data)[0]
    data = load(path, ignore_columns=["protein", "cough"])
    assert isinstance(data.train.images, FeatureVectors) and data.train.images.vectors.tolist() == [
        [n] for n in range(12)
    ]
    assert data.classes == ("throat",) and not cautions(data)
    assert places("arff", path, ignore_columns=["throat", "cough"]) == ["medical-train.arff"]
    with pytest.raises(UnknownNameError, match="protein"):
        load(path, ignore_columns=["protien"])
