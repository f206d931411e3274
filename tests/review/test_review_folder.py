"""What a review is made of: candidates as the audit writes them, or all labels of random images."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from tests.review.samples import Row, make_photos, write_rows

import labelgap as lg
from labelgap.audit.candidates import FILE, FORMAT, CandidateList, describe_review, write_candidates, write_review_file
from labelgap.core.errors import InputError, RunError
from labelgap.data.dataset import Dataset
from labelgap.data.split import hold_out_val
from labelgap.labels.codes import ABSENT, UNKNOWN
from labelgap.review import Review, create_random_review, open_review_folder
from labelgap.review.apply import decided_images
from labelgap.review.candidates import MISSING, RANDOM, Candidates, candidate_id


@pytest.fixture
def data() -> Dataset:
    return lg.load("digits", train=60, val=20, test=20).observe(positives=1, negatives=0, splits=["val"])


def test_a_model_is_measured_on_images_and_classes_that_are_decided_in_full(data: Dataset, tmp_path: Path) -> None:
    folder = create_random_review(data, "val", 8, 0, tmp_path / "a")
    with pytest.raises(InputError, match="8"):
        decided_images(folder)
    with closing(Review(folder)) as review:
        columns = review.candidates.columns
        for number in np.flatnonzero((columns.image < 3) & (columns.class_number != 4)).tolist():
            review.store.append(
                [review.decision(number, ABSENT, f"first-{number}", 0)], reviewer="anna", client="window"
            )
        complete = {columns.images[image][1] for image in range(3)}
        with_four = {columns.images[columns.image[number]][1] for number in np.flatnonzero(columns.class_number == 4)}
        measured = decided_images(folder).train
        assert {*measured.labels.images} == complete - with_four and measured.labels.complete and measured.name == "val"
        for number in np.flatnonzero(columns.class_number == 4).tolist():
            review.store.append(
                [review.decision(number, ABSENT, f"then-{number}", 0)], reviewer="anna", client="window"
            )
    measured = decided_images(folder).train
    known = dict(zip(measured.labels.images, measured.labels.to_dense(), strict=True))
    assert len(known) == 8 and all((codes != UNKNOWN).all() for name, codes in known.items() if name in complete)
    others = np.stack([codes for name, codes in known.items() if name not in complete])
    assert (others[:, 4] != UNKNOWN).all() and (np.delete(others, 4, axis=1) == UNKNOWN).all()


def test_what_cannot_be_drawn_is_said(data: Dataset, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="test"):
        create_random_review(data, "test", 5, 0, tmp_path / "a")
    with pytest.raises(InputError, match="no split 'dev'"):
        create_random_review(data, "dev", 5, 0, tmp_path / "a")
    with pytest.raises(InputError):
        create_random_review(data, "val", 0, 0, tmp_path / "a")
    by_hand = Dataset("mine", data.train, data.val)
    with pytest.raises(InputError, match="mine"):
        create_random_review(by_hand, "val", 5, 0, tmp_path / "a")
    assert not (tmp_path / "a").exists()
    create_random_review(data, "val", 8, 0, tmp_path / "a")
    create_random_review(data, "val", 8, 0, tmp_path / "a")  # the same call goes on
    with pytest.raises(RunError, match="8"):
        create_random_review(data, "val", 9, 0, tmp_path / "a")
    with pytest.raises(RunError):
        open_review_folder(tmp_path)


def test_a_damaged_folder_or_changed_data_is_said(tmp_path: Path) -> None:
    folder = create_random_review(make_photos(tmp_path), "train", 5, 0, tmp_path / "a")
    table = (tmp_path / "tags.csv").read_text().replace("owl", "bat")
    (tmp_path / "tags.csv").write_text(table)
    with pytest.raises(RunError):
        _ = open_review_folder(folder.path).data
    (folder.path / "review.json").write_text("{")
    with pytest.raises(RunError, match=r"review\.json"):
        open_review_folder(folder.path)


def test_an_audit_of_networks_has_the_val_that_they_held_out(tmp_path: Path) -> None:
    make_photos(tmp_path)
    rows = "".join(f"{number}.jpg,{1 if number % 2 else ''},{'' if number % 2 else 1}\n" for number in range(8))
    (tmp_path / "tags.csv").write_text("image,cat,dog\n" + rows)
    data = hold_out_val(lg.load("csv", tmp_path / "tags.csv", images=tmp_path / "photos", duplicates="off"))
    assert data.val is not None
    unknown = dict(zip(data.classes, data.val.labels.counts().unknown.tolist(), strict=True))
    about = {"format": FORMAT, "runs": [], "data": dict(data.recipe), "splits": ["val"], "method": "an"}
    about |= {"unknown_total": sum(unknown.values()), "unknown_per_class": unknown}
    places, columns = np.nonzero(data.val.labels.to_dense() == UNKNOWN)
    found = CandidateList.of_unknown(places, columns, np.full(len(columns), 0.5, dtype=np.float32))
    write_candidates(tmp_path / "both" / FILE, {"missing": found}, {"val": data.val.labels}, about)
    write_review_file(tmp_path / "both", describe_review(tmp_path / "both", data.recipe, data.classes))
    with closing(Review(open_review_folder(tmp_path / "both"))) as review:
        assert all(review.locate(image) for image in range(len(review.candidates.columns.images)))


ABOUT = {"format": 1, "runs": ["a"], "data": {}, "unknown_total": 10, "unknown_per_class": {}, "method": "an"}


def write(path: Path, rows: list[Row]) -> Path:
    return write_rows(path, rows, ABOUT)


def ranked(count: int, kind: str = "missing", name: str = "dog", start: int = 0) -> list[Row]:
    return [
        (f"{kind}-{row + start}.jpg", "train", name, 0.9 - row / 10_000, kind, UNKNOWN, row + 1, row + 1)
        for row in range(count)
    ]


def test_an_id_means_the_same_label_whatever_else_is_in_the_file(tmp_path: Path) -> None:
    first = Candidates(write(tmp_path / "a.parquet", ranked(3)), ["cat", "dog"])
    other = Candidates(write(tmp_path / "b.parquet", ranked(1, "wrong") + ranked(3)), ["dog", "owl", "cat"])
    for number in range(3):
        identity = f"{int(first.columns.ids[number]):016x}"
        found = other.index(identity)
        assert found is not None
        assert other.key(found) == first.key(number) and candidate_id(first.key(number)) == identity


def test_one_in_ten_of_what_is_shown_is_random_and_ranks_are_kept(tmp_path: Path) -> None:
    rows = ranked(90) + ranked(12, "random")
    candidates = Candidates(write(tmp_path / "a.parquet", rows), ["dog"])
    shown = candidates.listed(0)
    kinds = candidates.columns.kind[shown]
    assert len(shown) == 102
    for start in range(0, 100, 10):
        assert (kinds[start : start + 10] == RANDOM).sum() == 1
    for kind in (MISSING, RANDOM):
        assert np.all(np.diff(candidates.columns.class_rank[shown][kinds == kind]) == 1)
    places = np.flatnonzero(kinds == RANDOM)[:10] % 10
    assert len(set(places.tolist())) > 2, "the random ones stand where they can be foretold"


def test_a_label_that_is_ranked_and_random_is_shown_once_at_the_earlier_place(tmp_path: Path) -> None:
    late: Row = ("missing-59.jpg", "train", "dog", 0.1, "random", UNKNOWN, 1, 1)
    early: Row = ("missing-0.jpg", "train", "dog", 0.9, "random", UNKNOWN, 2, 2)
    candidates = Candidates(write(tmp_path / "a.parquet", [*ranked(60), late, early]), ["dog"])
    columns = candidates.columns
    assert len(candidates) == 60 and (columns.kind == MISSING).all()
    assert {columns.random_rank[59], columns.random_rank[0]} == {1, 2}
    shown = candidates.listed(0).tolist()
    assert shown.index(59) < 10 and shown.index(0) <= 1


def test_an_image_comes_with_all_its_candidates_and_the_best_image_first(tmp_path: Path) -> None:
    rows: list[Row] = [
        ("a.jpg", "train", "dog", 0.5, "missing", UNKNOWN, 3, 2),
        ("b.jpg", "train", "dog", 0.9, "missing", UNKNOWN, 1, 1),
        ("a.jpg", "train", "cat", 0.8, "missing", UNKNOWN, 2, 1),
        ("c.jpg", "train", "cat", 0.0, "random", UNKNOWN, 1, 1),
    ]
    candidates = Candidates(write(tmp_path / "a.parquet", rows), ["cat", "dog"])
    names = [candidates.columns.images[image][1] for image in candidates.image_order]
    assert names == ["b.jpg", "a.jpg", "c.jpg"]
    image = candidates.columns.images.index(("train", "a.jpg"))
    assert [candidates.key(number).class_name for number in candidates.of_image(image)] == ["cat", "dog"]


def test_a_split_can_be_asked_for_alone(tmp_path: Path) -> None:
    rows = [*ranked(3), ("v.jpg", "val", "dog", 0.3, "missing", UNKNOWN, 4, 4)]
    assert len(Candidates(write(tmp_path / "a.parquet", rows), ["dog"], "val")) == 1
    assert not len(Candidates(tmp_path / "a.parquet", ["dog"], "test"))
