"""No image on two sides: groups and copies stay together, and a file's own split is looked at."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.data.sentences import sentences

from labelgap.core.errors import ProblemsError
from labelgap.data.dataset import Dataset
from labelgap.data.readers.table import load_csv
from labelgap.data.split import hold_out_val


def image(seed: int, size: tuple[int, int] = (160, 120)) -> Image.Image:
    """An image with shapes of its own, eight coloured rectangles, at any size."""
    random = np.random.default_rng(seed)
    pixels = np.full((120, 160, 3), random.integers(0, 256, 3), dtype=np.uint8)
    for _ in range(8):
        left, right = sorted(random.integers(0, 160, 2))
        top, bottom = sorted(random.integers(0, 120, 2))
        pixels[top:bottom, left:right] = random.integers(0, 256, 3)
    return Image.fromarray(pixels).resize(size, Image.Resampling.LANCZOS)


def album(folder: Path, rows: list[str], header: str = "image,split,cat") -> Path:
    """Write a table; images that are not there yet are drawn, each its own."""
    for number, row in enumerate(rows):
        if not (folder / row.split(",")[0]).exists():
            image(number).save(folder / row.split(",")[0])
    (folder / "tags.csv").write_text("\n".join([header, *rows]) + "\n")
    return folder / "tags.csv"


def split_of(data: Dataset) -> dict[str, str]:
    return {name: split.name for split in data.splits for name in split.labels.images}


def group_of(data: Dataset) -> dict[str, int]:
    assert data.train.groups is not None
    return dict(zip(data.train.labels.images, data.train.groups.tolist(), strict=True))


def test_the_images_of_a_group_are_kept_together_and_blanks_are_no_group(tmp_path: Path) -> None:
    rows = [f"{number:02d}.png,{'' if number < 20 else number // 5},{number % 2}" for number in range(60)]
    data = load_csv(album(tmp_path, rows, "image,group,cat"))
    for placed in (group_of(data), split_of(hold_out_val(data))):
        for group in range(4, 12):
            assert len({placed[f"{number:02d}.png"] for number in range(group * 5, group * 5 + 5)}) == 1
        assert len({placed[f"{number:02d}.png"] for number in range(20)}) > 1
    assert sentences(data)[-1] == "the images of each of 8 groups are kept in one fold"


def test_copies_are_kept_together(tmp_path: Path) -> None:
    rows = [f"{number:02d}.png,{number % 2}" for number in range(40)]
    album(tmp_path, rows, "image,cat")
    for number in range(8):
        (tmp_path / f"copy{number}.png").write_bytes((tmp_path / f"{number:02d}.png").read_bytes())
        image(number, (240, 180)).save(tmp_path / f"large{number}.jpg", quality=92)
    extra = [f"{name},1" for number in range(8) for name in (f"copy{number}.png", f"large{number}.jpg")]
    data = load_csv(album(tmp_path, rows + extra, "image,cat"))
    placed = group_of(data)
    for number in range(8):
        assert len({placed[name] for name in (f"{number:02d}.png", f"copy{number}.png", f"large{number}.jpg")}) == 1
    assert len(set(placed.values())) == 40
    assert sentences(data)[-1] == "8 exact and 8 near duplicates: kept in one fold"
    exact_only = load_csv(tmp_path / "tags.csv", duplicates="exact")
    assert sentences(exact_only)[-1] == "8 exact duplicates: kept in one fold"
    assert "duplicate" not in sentences(load_csv(tmp_path / "tags.csv", duplicates="off"))[-1]


def test_a_split_of_the_file_that_leaks_is_a_problem_unless_allowed(tmp_path: Path) -> None:
    image(1).save(tmp_path / "a.png")
    image(1).save(tmp_path / "b.png")
    image(1, (240, 180)).save(tmp_path / "c.jpg", quality=92)
    rows = ["x.png,train,1", "b.png,test,1", "a.png,train,1", "y.png,val,0", "c.jpg,val,1"]
    table = album(tmp_path, rows)
    with pytest.raises(ProblemsError) as caught:
        load_csv(table)
    assert [(each.line, each.message) for each in caught.value.problems] == [
        (3, "b.png (test) is the same file as a.png (train, line 4)"),
        (6, "c.jpg (val) looks like a.png (train, line 4)"),
    ]
    assert "--allow-leaks" in str(caught.value)
    data = load_csv(table, allow_leaks=True)
    assert [len(split) for split in data.splits] == [2, 2, 1]
    assert any(rule.endswith("images of one split are in another as well, as allowed") for rule in sentences(data))
    with pytest.raises(ProblemsError, match="1 problem,"):
        load_csv(table, duplicates="exact")
    assert len(load_csv(table, duplicates="off").splits) == 3


def test_val_is_held_out_of_train_without_dividing_copies(tmp_path: Path) -> None:
    album(tmp_path, [f"{number}.png,train,{number % 2}" for number in range(20)])
    for number in range(20):
        (tmp_path / f"copy{number}.png").write_bytes((tmp_path / f"{number}.png").read_bytes())
    rows = [f"{name},train,{number % 2}" for number in range(20) for name in (f"{number}.png", f"copy{number}.png")]
    data = hold_out_val(load_csv(album(tmp_path, rows)))
    placed = split_of(data)
    assert all(placed[f"{number}.png"] == placed[f"copy{number}.png"] for number in range(20))
    assert data.val is not None and len(data.val) == 2
