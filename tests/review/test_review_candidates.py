"""Candidates as the audit writes them: ids, order, what is merged, what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tests.review.samples import Row, write_rows

from labelgap.labels.codes import UNKNOWN
from labelgap.review.candidates import MISSING, RANDOM, Candidates, candidate_id

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
