from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from labelgap.core.errors import InputError
from labelgap.inference.sources import find_images, is_dataset_argument


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("b.jpg", "a.png", "deep/er/c.JPG", ".hidden/d.jpg", "deep/.e.jpg"):
        path = Path("photos") / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(path, format="png")
    Path("photos/notes.md").write_text("no image")
    return tmp_path


FOUND = ("photos/a.png", "photos/b.jpg", "photos/deep/er/c.JPG")


@pytest.mark.parametrize(
    ("typed", "names"),
    [
        (["photos"], FOUND),
        (["photos/"], FOUND),
        (["photos/b.jpg"], ("photos/b.jpg",)),
        (["photos/*.jpg"], ("photos/b.jpg",)),
        (["photos/**"], FOUND),
        (["photos/**/*.JPG"], ("photos/deep/er/c.JPG",)),
        (["photos/*"], FOUND),
        (["photos/b.jpg", "photos", "photos/b.jpg"], ("photos/b.jpg", "photos/a.png", "photos/deep/er/c.JPG")),
    ],
)
def test_files_folders_and_patterns_are_found_once(photos: Path, typed: list[str], names: tuple[str, ...]) -> None:
    found = find_images(typed)
    assert found.names == names
    assert found[0].shape == (4, 4, 3)


def test_a_list_holds_a_path_per_line_relative_to_a_folder_as_text(photos: Path) -> None:
    Path("list.txt").write_text("\ufeffphotos/b.jpg\n\nphotos/missing.jpg\n", encoding="utf-8")
    assert find_images(["list.txt"]).names == ("photos/b.jpg", "photos/missing.jpg")
    Path("list.txt").write_text("b.jpg\n./a.png")
    found = find_images(["list.txt"], "photos")
    assert found.names == ("photos/b.jpg", "photos/a.png") and found[1].shape == (4, 4, 3)
    Path("list.txt").write_bytes(b"\xff\xfe\x00a")
    with pytest.raises(InputError, match="UTF-8"):
        find_images(["list.txt"])


def test_paths_outside_the_current_folder_and_absolute_ones(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(photos / "photos" / "deep")
    found = find_images(["../b.jpg", str(photos / "photos" / "a.png")])
    assert found.names == ("../b.jpg", str(photos / "photos" / "a.png"))
    assert found[0].shape == found[1].shape == (4, 4, 3)
    assert find_images([str(photos / "photos")]).names == tuple(str(photos / name) for name in FOUND)


def test_data_are_distinguished_from_images(photos: Path) -> None:
    Path("VOCdevkit/VOC2012/ImageSets/Main").mkdir(parents=True)
    data = ["VOCdevkit", "VOCdevkit/VOC2012", "tags.csv", "x.npz", "x.parquet", "digits", "folder=photos"]
    data += ["csv=strange.name"]
    images = ["photos", "photos/b.jpg", "photos/*.jpg", "list.txt", "nowhere.jpg"]
    assert [text for text in (*data, *images) if is_dataset_argument(text)] == data
