"""``labelgap datasets NAME [PATH]``: where the files come from, how they must lie, and what is missing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.cli.conftest import call
from tests.data.readers.official.test_load_coco import coco

from labelgap.data import describe_datasets


def test_every_data_set_says_where_it_comes_from(capsys: pytest.CaptureFixture[str]) -> None:
    for reader in describe_datasets():
        assert call("datasets", reader.name) == 0
        said = capsys.readouterr().out
        assert f"source    {reader.layout.source}" in said and "license   " in said and "read it   " in said
        if reader.layout.find is not None:
            assert (
                all(file.path.rpartition("/")[2] in said for file in reader.layout.files) and reader.reference in said
            )
    assert call("datasets", "coco2013") == 2
    assert "Did you mean 'coco2014'" in capsys.readouterr().err


def test_a_folder_is_checked_and_everything_that_is_missing_is_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = coco(tmp_path / "my coco", inside="images")
    assert call("datasets", f"coco2014={root / 'annotations'}") == 0
    said = capsys.readouterr().out
    assert f"is complete: a folder with COCO's annotations (coco2014), in {root}" in said
    assert "read as   Read COCO 2014: train and val are parts of train2014, test is val2014" in said
    assert f"labelgap inspect 'coco2014={root}/annotations'" in said
    (root / "annotations" / "instances_val2014.json").unlink()
    shutil.rmtree(root / "images" / "train2014")
    assert call("datasets", "coco2014", str(root)) == 2
    said = capsys.readouterr().err
    assert "2 problems" in said and "annotations/instances_val2014.json is missing (test)" in said
    assert "train2014/*.jpg is missing (or images/train2014/*.jpg; photos)" in said
    assert call("datasets", "coco2017", str(root)) == 2
    said = capsys.readouterr().err
    assert "4 problems" in said and f"it looks like coco2014: labelgap datasets coco2014 '{root}'" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["digits", "."], "digits takes no path"),
        (["csv", "."], "this is not a .csv file"),
        (["voc2012", "nowhere"], "nowhere does not exist"),
    ],
)
def test_a_path_to_something_else_is_refused(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert call("datasets", *arguments) == 2
    assert message in capsys.readouterr().err
