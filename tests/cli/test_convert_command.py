"""``labelgap convert`` as a person meets it."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image
from syrupy.assertion import SnapshotAssertion
from tests.cli.conftest import Screen, call
from tests.data.writers.read_coco import read_coco

from labelgap.data.writers.formats import read_fiftyone, read_label_studio
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


def test_a_csv_goes_to_every_format_and_comes_back(tags: Path, screen: Screen, snapshot: SnapshotAssertion) -> None:
    expected = LabelTable.from_csv("tags.csv")
    readers = {"coco": read_coco, "fiftyone": read_fiftyone, "labelstudio": read_label_studio}
    for to in ("csv", "parquet", *readers):
        out = Path(f"out-{to}.{to if to in ('csv', 'parquet') else 'json'}")
        said = screen("convert", "tags.csv", "--images", "photos", "--to", to, "--out", str(out))
        assert said == snapshot(name=to)
        if to in readers:
            back = readers[to](out)
            assert back.table == expected and back.splits == ("train", "train", "val", "test")
    assert LabelTable.from_parquet("out-parquet.parquet") == expected
    assert Path("out-csv.csv").read_text() == TAGS
    assert call("convert", "out-csv.csv", "--images", "photos", "--to", "csv", "--out", "b.csv") == 0
    assert Path("out-csv.csv").read_bytes() == Path("b.csv").read_bytes()


def test_what_cannot_be_done_is_said(tags: Path, screen: Screen, snapshot: SnapshotAssertion) -> None:
    Path("other.txt").write_text("kept")
    found = screen.errors(
        "convert tags.csv --images photos",
        *("--to cocoa --out x.json", "--to csv --out tags.csv", "--to csv --out tags.csv --force"),
        *("--to csv --out other.txt", "--to csv --out nowhere/x.csv", "--to coco --out x.json --prefix p"),
    )
    assert found == snapshot
    assert Path("tags.csv").read_text() == TAGS and Path("other.txt").read_text() == "kept"
