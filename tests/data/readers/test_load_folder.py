"""Photos sorted into folders."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from PIL import Image
from tests.data.readers.refused import refused
from tests.data.sentences import sentences

from labelgap.core.errors import InputError, ProblemsError
from labelgap.data.dataset import Dataset
from labelgap.data.registry import load
from labelgap.labels import LabelTable
from labelgap.labels.io.table_file import SimilarClasses

_drawn = iter(range(10_000_000))


def draw(path: Path) -> Path:
    """Save a plain sheet of a colour that no other has."""
    number = next(_drawn)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (5, 4), (number % 256, number // 256 % 256, 77)).save(path)
    return path


def whole(data: Dataset) -> dict[str, list[int]]:
    table = LabelTable.concatenate([split.labels for split in data.splits])
    return dict(zip(table.images, table.to_dense().tolist(), strict=True))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Cats, dogs, and one photo of both."""
    for number in range(5):
        draw(tmp_path / "cat" / f"cat{number}.png")
        draw(tmp_path / "dog" / "old" / f"dog{number}.JPG")
    shutil.copy(tmp_path / "cat" / "cat0.png", tmp_path / "dog" / "cat0.png")
    return tmp_path


def test_an_image_has_the_tag_of_each_folder_it_is_in_and_the_rest_is_unknown(photos: Path) -> None:
    draw(photos / "dog" / "cat1.png")  # other bytes: another image
    draw(photos / "loose.png")
    for name in ("cat/notes.txt", "cat/.DS_Store", "dog/Thumbs.db"):
        (photos / name).write_text("meow")
    data = load(photos)
    assert data.classes == ("cat", "dog") and data.recipe["name"] == "folder"
    tags = whole(data)
    assert len(tags) == 12 and tags["cat/cat0.png"] == [1, 1] and tags["dog/old/dog1.JPG"] == [-1, 1]
    assert tags["cat/cat1.png"] == [1, -1] and tags["dog/cat1.png"] == [-1, 1] and tags["loose.png"] == [-1, -1]
    assert any(each.endswith(": 1 .txt") for each in sentences(data)), "left out"
    assert all(data.train.images[row].shape == (4, 5, 3) for row in range(12))
    assert whole(load("folder", photos, unlisted="absent"))["cat/cat1.png"] == [1, 0]
    with pytest.raises(InputError, match="unlisted='no'"):
        load("folder", photos, unlisted="no")
    shutil.copy(photos / "cat" / "cat2.png", photos / "dog" / "copy.png")
    train = load("folder", photos).train
    assert train.groups is not None, "two names of one file are kept together"
    placed = dict(zip(train.labels.images, train.groups.tolist(), strict=True))
    assert placed["cat/cat2.png"] == placed["dog/copy.png"] != placed["cat/cat3.png"]


def test_folders_of_splits_are_splits_and_a_photo_in_two_is_a_leak(tmp_path: Path) -> None:
    for split, count in (("train", 4), ("Validation", 2), ("test", 3)):
        for tag in ("cat", "Cats"):
            for number in range(count):
                draw(tmp_path / split / tag / f"{split}{tag}{number}.png")
    shutil.copy(tmp_path / "train" / "cat" / "traincat0.png", tmp_path / "train" / "Cats")
    data = load(tmp_path)
    assert [len(split) for split in data.splits] == [8, 4, 6]
    assert whole(data)["train/Cats/traincat0.png"] == [1, 1]
    assert any(isinstance(each, SimilarClasses) for each in data.findings)
    shutil.copy(tmp_path / "train" / "cat" / "traincat1.png", tmp_path / "test" / "cat")
    (message,) = refused("folder", tmp_path)
    assert "test/cat/traincat1.png (test)" in message and "train/cat/traincat1.png (train)" in message
    assert len(load("folder", tmp_path, allow_leaks=True).splits) == 3


def test_bad_images_are_told_without_lines_or_left_out(photos: Path) -> None:
    (photos / "cat" / "bad.png").write_text("no image")
    (photos / "cat" / "lost.png").symlink_to(photos / "nowhere.png")
    with pytest.raises(ProblemsError, match="2 images") as caught:
        load("folder", photos)
    assert "line" not in str(caught.value)
    assert len(whole(load("folder", photos, on_bad_image="skip"))) == 10


def test_what_is_no_folder_of_tags_is_not_taken_for_one(tmp_path: Path) -> None:
    draw(tmp_path / "photos" / "a.png")
    (tmp_path / "empty").mkdir()
    for path in (tmp_path, tmp_path / "photos"):
        with pytest.raises(InputError):
            load(path)
    for path in (tmp_path / "empty", tmp_path / "photos" / "a.png"):
        with pytest.raises(InputError, match=path.name):
            load("folder", path)
