"""``labelgap convert`` as a person meets it."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image
from tests.cli.conftest import call
from tests.data.writers.read_coco import read_coco

from labelgap.data.writers.fiftyone import read_fiftyone
from labelgap.data.writers.label_studio import read_label_studio
from labelgap.labels import LabelTable

TAGS = """image,split,cat,dog
a.jpg,train,1,
b.jpg,train,0,1
c.jpg,val,,1
d.jpg,test,0,0
"""


@pytest.fixture
def tags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("photos").mkdir()
    for number, name in enumerate("abcd"):
        Image.effect_noise((40 + 9 * number, 30), 60).save(f"photos/{name}.jpg")
    Path("tags.csv").write_text(TAGS)
    return tmp_path


def test_a_csv_goes_to_every_format_and_comes_back(tags: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = LabelTable.from_csv("tags.csv")
    readers = {"coco": read_coco, "fiftyone": read_fiftyone, "labelstudio": read_label_studio}
    for to in ("csv", "parquet", *readers):
        out = Path(f"out-{to}.{to if to in ('csv', 'parquet') else 'json'}")
        assert call("convert", "tags.csv", "--images", "photos", "--to", to, "--out", str(out)) == 0
        said = capsys.readouterr().out
        assert f"wrote    {out}" in said and "3 present, 3 absent, 2 unknown; 2 classes; 2 train, 1 val, 1 test" in said
        if to in readers:
            back = readers[to](out)
            assert back.table == expected and back.splits == ("train", "train", "val", "test")
            assert "open" in said
    assert LabelTable.from_parquet("out-parquet.parquet") == expected
    assert Path("out-csv.csv").read_text() == TAGS


def test_a_converted_csv_is_read_like_the_first(tags: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("convert", "tags.csv", "--images", "photos", "--to", "csv", "--out", "a.csv") == 0
    assert call("convert", "a.csv", "--images", "photos", "--to", "csv", "--out", "b.csv") == 0
    assert Path("a.csv").read_bytes() == Path("b.csv").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to", "cocoa", "--out", "x.json"], "Did you mean 'coco'"),
        (["--to", "csv", "--out", "tags.csv"], "never overwritten"),
        (["--to", "csv", "--out", "tags.csv", "--force"], "never overwritten"),
        (["--to", "csv", "--out", "other.txt"], "--force"),
        (["--to", "csv", "--out", "nowhere/x.csv"], "does not exist"),
        (["--to", "coco", "--out", "x.json", "--prefix", "p"], "--prefix is for"),
    ],
)
def test_what_cannot_be_done_is_said(
    tags: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    Path("other.txt").write_text("kept")
    before = sorted(path.name for path in tags.iterdir())
    assert call("convert", "tags.csv", "--images", "photos", *arguments) == 2
    said = capsys.readouterr().err
    assert message in said and said.startswith("labelgap: ") and "Traceback" not in said
    assert Path("tags.csv").read_text() == TAGS and Path("other.txt").read_text() == "kept"
    assert sorted(path.name for path in tags.iterdir()) == before
