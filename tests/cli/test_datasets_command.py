"""``labelgap datasets NAME [PATH]``: where the files come from, how they must lie, and what is missing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.cli.conftest import call
from tests.data.readers.official.test_load_coco import coco
from tests.data.readers.official.test_load_voc import devkit

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


def test_lists_of_a_devkit_that_differ_in_length_are_not_complete(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = devkit(tmp_path, "2012", {"train": ["2008_000001", "2008_000002"], "val": ["2009_000001"]})
    main = root / "ImageSets" / "Main"
    for number in range(17):  # the published devkit has 20 classes
        for split in ("train", "val"):
            shutil.copy(main / f"person_{split}.txt", main / f"class{number}_{split}.txt")
    assert call("datasets", "voc2012", str(tmp_path)) == 0
    capsys.readouterr()
    (main / "person_train.txt").write_text("2008_000001 1\n")
    (main / "val.txt").write_text("2009_000001\n2009_000002\n")
    (root / "JPEGImages" / "2008_000002.jpg").unlink()
    assert call("datasets", "voc2012", str(tmp_path)) == 2
    assert capsys.readouterr().err.splitlines()[1:] == [
        "  ImageSets/Main/person_train.txt: no line about 2008_000002",
        "  ImageSets/Main/val.txt, line 2: 2009_000002: no label, in no file of a class (*_val.txt)",
        "  JPEGImages/2008_000002.jpg: does not exist",
    ]
    shutil.rmtree(root / "JPEGImages")
    assert call("datasets", "voc2012", str(tmp_path)) == 2
    assert capsys.readouterr().err.splitlines()[1:] == ["  JPEGImages/*.jpg is missing (the photos)"]


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
