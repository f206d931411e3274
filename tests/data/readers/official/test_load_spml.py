"""The single-positive papers' arrays: 0 in ``labels_obs`` is unknown, and their val is our test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tests.data.readers.refused import places, refused

from labelgap.data.registry import describe_dataset, load
from labelgap.labels import ABSENT, PRESENT, UNKNOWN, LabelTable, paper_split


def formatted(folder: Path, train: int = 20, test: int = 4, **changed: Any) -> Path:
    """Write the six arrays as ``numpy.save`` does, and their photos in ``photos``; ``changed`` ones instead."""
    random = np.random.default_rng(5)
    (folder / "photos" / "set").mkdir(parents=True, exist_ok=True)
    for split, count in (("train", train), ("val", test)):
        labels = (random.random((count, 5)) < 0.5).astype(float)
        labels[:, 2] = 1
        names = [f"set/{split}_{number:03d}.jpg" for number in reversed(range(count))]
        for name in names:
            Image.new("RGB", (8, 8), (len(name), count, 3)).save(folder / "photos" / name)
        observed = LabelTable.from_dense(labels).observe(positives=1, seed=1200).to_dense()
        arrays = {"images": np.array(names), "labels": labels, "labels_obs": (observed == PRESENT).astype(float)}
        for name, array in arrays.items():
            np.save(folder / f"formatted_{split}_{name}.npy", changed.get(f"{split}_{name}", array))
    return folder


def array(folder: Path, name: str) -> Any:
    return np.load(folder / f"formatted_{name}.npy")


def test_train_shows_one_positive_and_knows_the_truth_as_the_papers_draw_it(tmp_path: Path) -> None:
    folder = formatted(tmp_path)
    data = load(folder, images=folder / "photos")
    truth, observed, images = (array(folder, f"train_{name}") for name in ("labels", "labels_obs", "images"))
    train, val = paper_split(20)
    assert data.recipe["name"] == "spml" and data.val is not None and data.test is not None and data.val.truth is None
    assert data.train.labels.images == tuple(images[train]) and data.val.labels.images == tuple(images[val])
    assert data.train.labels.to_dense().tolist() == np.where(observed, PRESENT, UNKNOWN)[train].tolist()
    assert data.train.truth is not None and data.train.truth.to_dense().tolist() == truth[train].tolist()
    assert data.val.labels.to_dense().tolist() == truth[val].tolist()
    assert data.test.labels.complete and len(data.test) == 4
    assert data.train.images[0].shape == (8, 8, 3) and data.classes == ("0", "1", "2", "3", "4")
    assert data.observe(positives=1, seed=1200).train.labels == data.train.labels
    (folder / "formatted_val_labels_obs.npy").unlink()  # nothing needs it
    named = load("spml", folder / "formatted_val_images.npy", images=folder / "photos", classes=list("abcde"))
    assert named.classes == tuple("abcde") and not describe_dataset("spml").problems(folder)


def test_an_observed_absent_is_minus_one_and_names_may_be_bytes_without_a_suffix(tmp_path: Path) -> None:
    folder = formatted(tmp_path)
    observed = array(folder, "train_labels_obs").astype(int)
    row, column = np.argwhere(array(folder, "train_labels") == ABSENT)[0]
    observed[row, column] = -1
    images = np.array([name.removesuffix(".jpg").encode() for name in array(folder, "train_images")])
    formatted(tmp_path, train_labels_obs=observed, train_images=images)
    data = load("spml", folder, images=folder / "photos")
    assert data.train.labels.counts().total[:2] == (16, int(row in paper_split(20)[0]))
    assert data.train.images[0].shape == (8, 8, 3)


def test_all_problems_are_one_error_with_array_and_row(tmp_path: Path) -> None:
    folder = formatted(tmp_path)
    truth, observed, images = (array(folder, f"train_{name}") for name in ("labels", "labels_obs", "images"))
    truth[3, 1], images[7], images[8] = 2, images[6], "set/gone.jpg"
    observed[5] = 1 - truth[5]
    other = array(folder, "val_labels")
    formatted(tmp_path, val_labels=other[:, :0])
    assert places("spml", folder, images=folder / "photos") == ["formatted_val_labels.npy"]
    changed = {"train_labels": truth, "train_images": images, "train_labels_obs": observed, "val_labels": other[:, :4]}
    formatted(tmp_path, **changed)
    found = places("spml", folder, images=folder / "photos")
    whole = ["formatted_train_labels.npy", "formatted_val_labels_obs.npy"]
    expected = [*(f"formatted_train_images.npy, row {row}" for row in (7, 8)), f"{whole[0]}, row 3, column 1", *whole]
    assert {*expected} == {each for each in found if "_train_labels_obs" not in each}
    assert sum(each.startswith("formatted_train_labels_obs.npy, row 5, ") for each in found) > 1


def test_missing_truncated_and_pickled_arrays_are_named_together(tmp_path: Path) -> None:
    folder = formatted(tmp_path)
    names = [f"formatted_{name}.npy" for name in ("train_images", "train_labels", "train_labels_obs", "val_labels")]
    np.save(folder / names[0], array(folder, "train_images").astype(object), allow_pickle=True)
    (folder / names[1]).write_bytes((folder / names[1]).read_bytes()[:-9])
    np.save(folder / names[2], np.zeros((20, 5), dtype=object), allow_pickle=True)
    (folder / names[3]).unlink()
    found = refused("spml", folder)
    assert len(found) == 4 and all(map(str.startswith, found, names))
    assert f"f = '{names[2]}'; np.save(f, np.load(f, allow_pickle=True).astype(float))" in found[2]
    remedy = found[0].partition('python -c "')[2].rstrip('"')
    exec(remedy.replace(names[0], str(folder / names[0])))
    assert array(folder, "train_images").dtype.kind == "U"
    assert places("spml", folder / "photos")[0] == names[0]


def test_photos_elsewhere_are_asked_for(tmp_path: Path) -> None:
    folder, photos = formatted(tmp_path / "voc"), tmp_path / "photos"
    (folder / "photos").rename(photos)
    assert "--images DIR" in refused("spml", folder)[0]
    assert "2 classes" in refused("spml", folder, images=photos, classes=["a", "b"])[0]
