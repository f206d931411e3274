"""Which files of a data set are missing or of another version, and how a layout is drawn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.data.readers.official.published_files import cub, nuswide

from labelgap.data import DatasetLayout, RequiredFile
from labelgap.data.registry import describe_dataset

FILES = (
    RequiredFile("lists/names.txt", "names", lines=3),
    RequiredFile("lists/*_train.txt", count=2),
    RequiredFile("photos/*.jpg", others=("images/*.jpg",)),
    RequiredFile("extra.txt", optional=True, check=lambda file: None if file.read_text() == "v1" else "not v1"),
)


def test_all_problems_of_a_folder_are_found_at_once(tmp_path: Path) -> None:
    layout = DatasetLayout(files=FILES, find=lambda path: path / "root" if (path / "root").is_dir() else None)
    assert layout.problems(tmp_path)[2] == "photos/*.jpg is missing (or images/*.jpg)"
    assert len(layout.problems(tmp_path)) == 3
    (tmp_path / "root" / "lists").mkdir(parents=True)
    (tmp_path / "root" / "images").mkdir()
    wrong = {"lists/names.txt": "a\n\nb\n", "lists/a_train.txt": "", "images/1.jpg": "", "extra.txt": "v2"}
    for name, text in wrong.items():
        (tmp_path / "root" / name).write_text(text)
    assert layout.problems(tmp_path) == [
        "lists/names.txt: 2 lines, the published version has 3",
        "lists/*_train.txt: 1 file, the published version has 2",
        "extra.txt: not v1",
    ]
    for name, text in {"lists/names.txt": "a\nb\nc", "lists/b_train.txt": "", "extra.txt": "v1"}.items():
        (tmp_path / "root" / name).write_text(text)
    assert layout.problems(tmp_path) == [] == DatasetLayout(files=FILES).problems(tmp_path)


@pytest.mark.parametrize(
    ("name", "write", "short", "gone"),
    [
        ("cub", cub, "../attributes.txt", "attributes/image_attribute_labels.txt"),
        ("nuswide", nuswide, "ConceptsList/Concepts81.txt", "Groundtruth/TrainTestLabels/Labels_airport_Train.txt"),
    ],
)
def test_a_quick_look_finds_what_is_missing(
    tmp_path: Path, name: str, write: Callable[[Path], Path], short: str, gone: str
) -> None:
    root, layout = write(tmp_path), describe_dataset(name)
    assert not layout.problems(tmp_path)
    (root / short).write_text("1 a\n")
    (root / gone).unlink()
    expected = [short, gone.replace("airport", "*")]
    assert all(map(str.startswith, layout.problems(tmp_path), expected)) and len(layout.problems(tmp_path)) == 2
