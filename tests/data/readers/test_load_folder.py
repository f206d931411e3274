"""Photos sorted into folders."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from PIL import Image
from tests.data.sentences import sentences

from labelgap.core.errors import InputError, ProblemsError
from labelgap.data.dataset import Dataset
from labelgap.data.opening import load
from labelgap.labels import LabelTable

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
    data = load(photos)
    assert data.classes == ("cat", "dog") and len(whole(data)) == 10
    assert whole(data)["cat/cat0.png"] == [1, 1]
    assert whole(data)["cat/cat1.png"] == [1, -1]
    assert whole(data)["dog/old/dog1.JPG"] == [-1, 1]
    assert sentences(data)[:3] == (
        "recognized as folder: a folder with a folder of photos per tag",
        "a folder per tag; a tag in whose folder a photo is not is unknown",
        "1 photos lie in several folders under one name, the same file: they have several tags",
    )
    for split in data.splits:
        assert all(split.images[row].shape == (4, 5, 3) for row in range(len(split)))


def test_tags_of_other_folders_are_absent_when_told_so(photos: Path) -> None:
    assert whole(load("folder", photos, unlisted="absent"))["cat/cat1.png"] == [1, 0]
    with pytest.raises(InputError, match="unlisted='no'"):
        load("folder", photos, unlisted="no")


def test_one_name_with_other_bytes_is_another_image(photos: Path) -> None:
    draw(photos / "dog" / "cat1.png")
    tags = whole(load("folder", photos))
    assert tags["cat/cat1.png"] == [1, -1] and tags["dog/cat1.png"] == [-1, 1]


def test_one_file_under_two_names_is_two_images_kept_together(photos: Path) -> None:
    shutil.copy(photos / "cat" / "cat1.png", photos / "dog" / "copy.png")
    data = load("folder", photos)
    assert data.train.groups is not None
    placed = dict(zip(data.train.labels.images, data.train.groups.tolist(), strict=True))
    assert placed["cat/cat1.png"] == placed["dog/copy.png"]
    assert sentences(data)[-1] == "1 exact duplicate: kept in one fold"


def test_other_files_and_untagged_photos_are_counted(photos: Path) -> None:
    (photos / "cat" / "notes.txt").write_text("meow")
    (photos / "cat" / ".DS_Store").write_text("")
    (photos / "dog" / "Thumbs.db").write_text("")
    draw(photos / "loose.png")
    data = load("folder", photos)
    assert whole(data)["loose.png"] == [-1, -1]
    assert "1 photos lie in no tag's folder: nothing is known of them" in sentences(data)
    assert "files that are not images are left out: 1 .txt" in sentences(data)


def test_folders_of_splits_are_splits(tmp_path: Path) -> None:
    for split, count in (("train", 4), ("Validation", 2), ("test", 3)):
        for tag in ("cat", "dog"):
            for number in range(count):
                draw(tmp_path / split / tag / f"{split}{tag}{number}.png")
    shutil.copy(tmp_path / "train" / "cat" / "traincat0.png", tmp_path / "train" / "dog")
    data = load(tmp_path)
    assert [len(split) for split in data.splits] == [8, 4, 6]
    assert whole(data)["train/cat/traincat0.png"] == [1, 1]
    assert "split as the file says: 8 train, 4 val, 6 test" in sentences(data)


def test_a_photo_in_two_splits_is_a_leak(tmp_path: Path) -> None:
    for split in ("train", "test"):
        for tag in ("cat", "dog"):
            draw(tmp_path / split / tag / f"{split}{tag}.png")
    shutil.copy(tmp_path / "train" / "cat" / "traincat.png", tmp_path / "test" / "dog")
    with pytest.raises(ProblemsError) as caught:
        load("folder", tmp_path)
    expected = "test/dog/traincat.png (test) is the same file as train/cat/traincat.png (train)"
    assert str(caught.value).splitlines()[1] == f"  {expected}"
    assert len(load("folder", tmp_path, allow_leaks=True).splits) == 2


def test_tags_that_look_like_one_are_mentioned(tmp_path: Path) -> None:
    for tag in ("dog", "Dogs", "cat"):
        draw(tmp_path / tag / f"{tag}.png")
    assert any("look like one tag" in rule for rule in sentences(load("folder", tmp_path)))


def test_bad_images_are_told_without_lines_or_left_out(photos: Path) -> None:
    (photos / "cat" / "bad.png").write_text("no image")
    (photos / "cat" / "lost.png").symlink_to(photos / "nowhere.png")
    with pytest.raises(ProblemsError, match="2 images cannot be read") as caught:
        load("folder", photos)
    assert "line" not in str(caught.value)
    assert len(whole(load("folder", photos, on_bad_image="skip"))) == 10


def test_what_is_no_folder_of_tags_is_not_taken_for_one(tmp_path: Path) -> None:
    draw(tmp_path / "photos" / "a.png")
    with pytest.raises(InputError, match="does not recognize"):
        load(tmp_path)
    with pytest.raises(InputError, match="does not recognize"):
        load(tmp_path / "photos")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no folder in it holds images"):
        load("folder", tmp_path / "empty")
    with pytest.raises(InputError, match="is not a folder"):
        load("folder", tmp_path / "photos" / "a.png")
