"""The single-positive papers' arrays: 0 in ``labels_obs`` is unknown, and their val is our test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.cli.conftest import call
from tests.data.sentences import sentences

from labelgap.core.errors import InputError, ProblemsError
from labelgap.data.opening import load
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


def test_train_shows_one_positive_and_knows_the_truth_as_the_papers_draw_it(tmp_path: Path) -> None:
    folder = formatted(tmp_path)
    data = load(folder, images=folder / "photos")
    truth, observed, images = (
        np.load(folder / f"formatted_train_{name}.npy") for name in ("labels", "labels_obs", "images")
    )
    train, val = paper_split(20)
    assert data.train.labels.images == tuple(images[train]) and data.splits[1].labels.images == tuple(images[val])
    assert data.train.labels.to_dense().tolist() == np.where(observed, PRESENT, UNKNOWN)[train].tolist()
    assert data.train.truth is not None and data.train.truth.to_dense().tolist() == truth[train].tolist()
    assert (
        data.val is not None and data.val.labels.to_dense().tolist() == truth[val].tolist() and data.val.truth is None
    )
    assert data.test is not None and data.test.labels.complete and len(data.test) == 4
    assert data.train.images[0].shape == (8, 8, 3) and data.classes == ("0", "1", "2", "3", "4")
    assert data.observe(positives=1, seed=1200).train.labels == data.train.labels
    assert sentences(data)[0] == "recognized as spml: a folder with formatted_train_images.npy"
    assert any("0 = unknown (1 present and 0 absent an image)" in each for each in sentences(data))
    named = load("spml", folder / "formatted_val_images.npy", images=folder / "photos", classes=list("abcde"))
    assert named.classes == tuple("abcde") and named.train.truth is not None


def test_an_observed_absent_is_minus_one_and_names_may_be_bytes_without_a_suffix(tmp_path: Path) -> None:
    folder = formatted(tmp_path)
    observed = np.load(folder / "formatted_train_labels_obs.npy").astype(int)
    row, column = np.argwhere(np.load(folder / "formatted_train_labels.npy") == ABSENT)[0]
    observed[row, column] = -1
    images = np.array([name.removesuffix(".jpg").encode() for name in np.load(folder / "formatted_train_images.npy")])
    formatted(tmp_path, train_labels_obs=observed, train_images=images)
    data = load("spml", folder, images=folder / "photos")
    assert data.train.labels.counts().total[:2] == (16, int(row in paper_split(20)[0]))
    assert "20 image names were completed" in " ".join(sentences(data))


def test_all_problems_are_one_error_with_array_and_row(tmp_path: Path) -> None:
    folder = formatted(tmp_path)
    truth, observed, images = (
        np.load(folder / f"formatted_train_{name}.npy") for name in ("labels", "labels_obs", "images")
    )
    truth[3, 1], images[7], images[8] = 2, images[6], "set/gone.jpg"
    observed[5] = 1 - truth[5]
    other = np.load(folder / "formatted_val_labels.npy")[:, :0]
    formatted(tmp_path, val_labels=other)
    with pytest.raises(ProblemsError, match=r"formatted_val_labels.npy has the shape \(4, 0\)"):
        load("spml", folder, images=folder / "photos")
    other = np.load(folder / "formatted_val_labels_obs.npy")[:, :4]
    formatted(tmp_path, train_labels=truth, train_images=images, train_labels_obs=observed, val_labels=other)
    with pytest.raises(ProblemsError) as error:
        load("spml", folder, images=folder / "photos")
    said = str(error.value)
    assert f"formatted_train_images.npy, row 7: {images[6]} is listed again (first in row 6)" in said
    assert "formatted_train_images.npy, row 8" in said and "gone.jpg does not exist" in said
    assert "formatted_train_labels.npy, row 3, column 1: 2.0: a label is 1 or 0" in said
    assert "formatted_train_labels_obs.npy, row 5" in said and "the full labels say something else" in said
    assert "has 5 columns, and formatted_val_labels.npy 4" in said
    assert "formatted_val_labels_obs.npy has the shape (4, 5)" in said


def test_missing_truncated_and_pickled_arrays_are_named_together(tmp_path: Path) -> None:
    folder = formatted(tmp_path)
    objects = np.array([f"set/train_{number:03d}.jpg" for number in range(20)], dtype=object)
    np.save(folder / "formatted_train_images.npy", objects, allow_pickle=True)
    np.save(folder / "formatted_train_labels_obs.npy", np.zeros((20, 5), dtype=object), allow_pickle=True)
    whole = (folder / "formatted_train_labels.npy").read_bytes()
    (folder / "formatted_train_labels.npy").write_bytes(whole[:-9])
    (folder / "formatted_val_labels.npy").unlink()
    with pytest.raises(ProblemsError) as error:
        load("spml", folder)
    said = str(error.value)
    assert "f = 'formatted_train_labels_obs.npy'; np.save(f, np.load(f, allow_pickle=True).astype(float))" in said
    assert "4 problems" in said and "formatted_val_labels.npy does not exist" in said
    assert "formatted_train_images.npy is damaged (it holds objects, not numbers)" in said
    assert "f = 'formatted_train_images.npy'; np.save(f, np.load(f, allow_pickle=True).astype(str))" in said
    assert "formatted_train_labels.npy is damaged (it is truncated).\n" in said
    exec(
        "import numpy as np; f = 'FILE'; np.save(f, np.load(f, allow_pickle=True).astype(str))".replace(
            "FILE", str(folder / "formatted_train_images.npy")
        )
    )  # the remedy works
    assert np.load(folder / "formatted_train_images.npy").dtype.kind == "U"
    with pytest.raises(InputError, match=r"formatted_train_images\.npy is missing"):
        load("spml", folder / "photos")


def test_photos_elsewhere_are_asked_for_and_the_commands_read_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, photos = formatted(tmp_path / "voc"), str(tmp_path / "photos")
    (folder / "photos").rename(photos)
    (folder / "formatted_val_labels_obs.npy").unlink()  # nothing needs it
    assert call("inspect", str(folder)) == 2
    assert f"none of its 24 images is in {folder}" in (said := capsys.readouterr().err) and "(--images DIR)" in said
    assert call("datasets", "spml", str(folder)) == 0
    assert call("inspect", str(folder), "--images", photos, "--classes", "a,b,c,d,e", "--json") == 0
    assert "train is the papers' formatted_train" in capsys.readouterr().out
    assert call("inspect", str(folder), "--images", photos, "--classes", "a,b") == 2
    assert "2 classes were named, and the labels have 5 columns" in capsys.readouterr().err
