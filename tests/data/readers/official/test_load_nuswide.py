"""NUS-WIDE in its published layout: both folders of labels, both ways to store images, both splits in use."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.data.readers.official.published_files import NUS_CONCEPTS, NUS_LABELS, NUS_TEST, NUS_TRAIN, nuswide
from tests.data.readers.refused import places, refused
from tests.data.sentences import sentences

from labelgap.data.dataset import Dataset
from labelgap.data.findings import ImagesSkipped
from labelgap.data.opening import load
from labelgap.labels import PRESENT, paper_split
from labelgap.studies.reproduce.tables import find_table, open_sources

FLAT = "images/{1}"


def check_rows(data: Dataset) -> None:
    """Every row has the labels and the pixels of its image."""
    numbers = {name.replace("\\", "/"): number for number, name in enumerate([*NUS_TRAIN, *NUS_TEST])}
    labels = {name.replace("\\", "/"): each for name, each in NUS_LABELS.items()}
    for split in data.splits:
        assert split.labels.complete
        for row, name in enumerate(split.labels.images):
            assert {*np.flatnonzero(split.labels.to_dense()[row] == PRESENT).tolist()} == labels[name]
            assert abs(int(split.images[row][0, 0, 0]) - 10 * numbers[name]) < 8


@pytest.mark.parametrize("images", ["Flickr/{0}/{1}", FLAT])
def test_labels_and_images_belong_to_the_lists_and_val_is_the_papers_cut(tmp_path: Path, images: str) -> None:
    root = nuswide(tmp_path, images)
    data = load(tmp_path)
    assert data.recipe["name"] == "nuswide" and data.classes == NUS_CONCEPTS
    check_rows(data)
    train, val = paper_split(len(NUS_TRAIN))
    names = [name.replace("\\", "/") for name in NUS_TRAIN]
    assert data.val is not None and data.test is not None
    assert data.train.labels.images == tuple(names[row] for row in train)
    assert data.val.labels.images == tuple(names[row] for row in val)
    assert data.test.labels.images == tuple(name.replace("\\", "/") for name in NUS_TEST)
    assert all(part in " ".join(sentences(data)) for part in ("12 / 3", "161,789 / 107,859", "--unlabeled drop"))
    dropped = load("nuswide", root, unlabeled="drop")
    check_rows(dropped)
    assert [len(split) for split in dropped.splits] == [9, 2, 2]
    assert dropped.train.origin is not None and dropped.train.origin.tolist() == paper_split(11)[0].tolist()


def test_images_that_flickr_lost_are_all_named_or_left_out(tmp_path: Path) -> None:
    root = nuswide(tmp_path)
    lost = "x" * 300  # a folder that no disk takes
    file = root / "ImageList" / "TrainImagelist.txt"
    file.write_text(file.read_text().replace(NUS_TRAIN[2], f"{lost}\\2.jpg"))
    photos = (root / "Flickr").rename(tmp_path / "photos")
    assert "--images FOLDER" in " ".join(refused("nuswide", root))
    for name in (NUS_TRAIN[7], NUS_TEST[0]):
        (photos / name.replace("\\", "/")).unlink()
    assert len(refused("nuswide", root, images=photos)) == 3
    data = load("nuswide", root, images=photos, on_bad_image="skip")
    check_rows(data)
    assert [len(split) for split in data.splits] == [8, 2, 2]
    assert [len(each.names) for each in data.findings if isinstance(each, ImagesSkipped)] == [3]
    for name in ("zoo", "actor"):
        shutil.rmtree(photos / name)
    assert len(refused("nuswide", root, images=photos, on_bad_image="skip")) == 15


def test_a_flat_folder_with_one_file_for_two_images_is_refused(tmp_path: Path) -> None:
    root = nuswide(tmp_path, FLAT)
    names = [*NUS_TEST[:2], NUS_TRAIN[0].replace("zoo", "cat")]
    (root / "ImageList" / "TestImagelist.txt").write_text("\n".join(names))
    assert places("nuswide", root) == ["images/0000_9000.jpg"]


def test_everything_that_is_wrong_is_told_at_once_with_file_and_line(tmp_path: Path) -> None:
    root = nuswide(tmp_path)
    labels, lists = root / "Groundtruth" / "TrainTestLabels", root / "ImageList"
    blanks = (labels / "Labels_airport_Test.txt").read_bytes().replace(b"\n", b"\v\n")
    (labels / "Labels_airport_Test.txt").write_bytes(blanks)
    check_rows(load("nuswide", root))  # not one present label becomes absent
    (labels / "Labels_airport_Train.txt").unlink()
    (labels / "Labels_animal_Train.txt").write_text("0\n1\n1\n0\n")
    text = (labels / "Labels_beach_Test.txt").read_text().splitlines()
    (labels / "Labels_beach_Test.txt").write_text("\n".join([text[0], "x", text[2]]))
    (labels / "Labels_zebras_Train.txt").write_text("0\n" * 12)
    (root / "ConceptsList" / "Concepts81.txt").write_text("\n".join([*NUS_CONCEPTS, "beach"]))
    with (lists / "TestImagelist.txt").open("a") as file:
        file.write(f"{NUS_TEST[0]}\n{NUS_TRAIN[0]}\n..\\..\\secret.jpg\n")
    for name in set(NUS_CONCEPTS) - {"beach"}:
        (labels / f"Labels_{name}_Test.txt").write_text("0\n" * 6)
    where = "Groundtruth/TrainTestLabels/Labels_"
    expected = ["ConceptsList/Concepts81.txt, line 82"]
    expected += [f"ImageList/TestImagelist.txt, line {line}" for line in (4, 6, 5)]
    expected += [f"{where}zebras_Train.txt", f"{where}airport_Train.txt", f"{where}animal_Train.txt"]
    expected += [f"{where}beach_Test.txt, line 2", f"{where}beach_Test.txt"]
    assert places("nuswide", root) == expected
    (root / "Flickr" / "zoo" / "0001_8999.jpg").unlink()
    assert places("nuswide", root) == [*expected, "Flickr/zoo/0001_8999.jpg"]
    assert places("nuswide", root, on_bad_image="skip") == expected
    (root / "ConceptsList" / "Concepts81.txt").write_text("\n".join(NUS_CONCEPTS[:21]))
    assert "ConceptsList/Concepts81.txt" in places("nuswide", root), "another version"
    assert "ImageList/TrainImagelist.txt" in places("nuswide", labels)


def test_a_table_of_a_paper_reads_its_version_and_a_csv_still_will_do(tmp_path: Path) -> None:
    root = nuswide(tmp_path)
    for path, paper, sizes in ((tmp_path, "two-way-nus", [9, 2, 2]), (root, "cole-table1", [10, 2, 3])):
        (source,) = open_sources([f"nuswide={path}"], find_table(paper)).values()
        assert [len(split) for split in source["images"][0].splits] == sizes
    rows = ["image,split,a,b", "Flickr/zoo/0000_9000.jpg,train,1,0", "Flickr/zoo/0001_8999.jpg,test,0,1"]
    (root / "tags.csv").write_text("\n".join(rows))
    (source,) = open_sources([f"nuswide={root / 'tags.csv'}"], find_table("cole-table1")).values()
    assert source["images"][0].classes == ("a", "b")
    for part, names in (("train", NUS_TRAIN), ("val", NUS_TEST)):
        labels, paths = np.eye(len(names), 3), np.array([name.replace("\\", "/") for name in names])
        for kind, values in (("images", paths), ("labels", labels), ("labels_obs", labels)):
            np.save(root / "Flickr" / f"formatted_{part}_{kind}.npy", values)
    (source,) = open_sources([f"nuswide={root / 'Flickr'}"], find_table("cole-table1")).values()
    assert source["images"][0].recipe["name"] == "spml"
