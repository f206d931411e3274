from __future__ import annotations

import itertools
import json
import tracemalloc
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.mutations import mutations

from labelgap.audit import candidates
from labelgap.audit import scorers as scorers_module
from labelgap.audit.calibration import count_unknown, sample_scores
from labelgap.audit.candidates import FILE, CandidateLimits, rank_candidates, read_candidates, read_metadata
from labelgap.audit.scorers import HeadScorer, StoredScorer
from labelgap.core.errors import RunError
from labelgap.labels import ABSENT, PRESENT, UNKNOWN, LabelTable

METADATA: dict[str, Any] = {
    **{"format": 1, "runs": ["a"], "data": {}, "splits": ["train"], "images": 40, "unknown_total": 90},
    **{"unknown_per_class": {"cat": 40, "dog": 50}, "method": "an", "backbone": "small-cnn", "estimate": None},
}


def write(
    path: Path, metadata: dict[str, Any] = METADATA, classes: tuple[str, str] = ("cat", "dog")
) -> candidates.Audit:
    table = LabelTable.from_dense(np.full((40, 2), -1), classes)
    rows, columns = np.divmod(np.arange(60), 2)
    scores = np.linspace(0.9, 0.1, 60, dtype=np.float32)
    missing = candidates.CandidateList.of_unknown(rows, columns, scores)
    return candidates.write_candidates(path, {"missing": missing}, {"train": table}, metadata)


def rewrite(path: Path, column: str, values: list[Any], kind: pa.DataType | None = None) -> None:
    table = pq.read_table(path)
    cells = [*values, *table[column].to_pylist()[len(values) :]]
    array = pa.array(cells, candidates.COLUMNS[column] if kind is None else kind)
    pq.write_table(table.set_column(table.column_names.index(column), column, array), path)


def test_a_notebook_shows_what_was_found_and_names_are_escaped(tmp_path: Path) -> None:
    evil = "<img src=x>&"
    estimate = {"missing": 34, "range": [17, 67], "known": 9, "missing_per_class": {evil: 30, "dog": 4}}
    found = write(tmp_path / FILE, {**METADATA, "method": evil, "estimate": estimate}, (evil, "dog"))
    page = ElementTree.fromstring(found._repr_html_())
    text = " ".join(page.itertext())
    assert page.find(".//img") is None and text.count(evil) == 1 + 1 + 3
    assert all(number in text for number in ("34 labels", "17 to 67", "90 unknown labels", "40 images"))
    assert str(found.path) in text


def test_a_damaged_file_is_a_run_error_or_reads_as_valid_candidates(tmp_path: Path) -> None:
    path = write(tmp_path / FILE).path
    refused = 0
    for content in mutations(path.read_bytes(), 400):
        path.write_bytes(content)
        try:
            read_metadata(path)
            table = read_candidates(path)
        except RunError as error:
            assert str(path) in str(error)
            refused += 1
        else:
            assert table.schema.types == list(candidates.COLUMNS.values())
    assert refused > 300


@pytest.mark.parametrize(
    ("column", "values", "kind"),
    [
        ("score", [2.0], None),
        ("score", [float("inf")], None),
        ("kind", ["mising"], None),
        ("observed", [3], None),
        ("rank", [0], None),
        ("class_rank", [-5], None),
        ("image", [None], None),
        ("rank", [2**40], pa.int64()),
        ("image", [b"\xff"], pa.binary()),
    ],
)
def test_other_values_are_refused(tmp_path: Path, column: str, values: list[Any], kind: pa.DataType | None) -> None:
    path = write(tmp_path / FILE).path
    if kind == pa.binary():
        table = pq.read_table(path)
        array = pa.array([b"\xff"] * len(table), kind)
        pq.write_table(table.set_column(0, column, array), path)
    else:
        rewrite(path, column, values, kind)
    with pytest.raises(RunError, match=column):
        read_candidates(path)


@pytest.mark.parametrize(
    "changed",
    [
        {"format": 2},
        {"format": None},
        {"unknown_total": -1},
        {"unknown_total": 10**30},
        {"unknown_per_class": {"cat": "many"}},
        {"unknown_per_class": []},
        {"estimate": {"missing": 5}},
        {"runs": "a"},
        {"method": None},
        {"code": "os.system"},
        {"unknown_total": float("nan")},
    ],
)
def test_metadata_of_other_types_or_keys_are_refused(tmp_path: Path, changed: dict[str, Any]) -> None:
    path = write(tmp_path / FILE).path
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({b"labelgap": json.dumps({**METADATA, **changed})}), path)
    with pytest.raises(RunError, match=FILE):
        read_metadata(path)


def test_a_long_name_repeated_by_a_dictionary_does_not_fill_the_memory(tmp_path: Path) -> None:
    path, rows = tmp_path / FILE, 20_000
    table = pa.table({name: pa.nulls(rows, kind) for name, kind in candidates.COLUMNS.items()})
    name = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array(["x" * 1_000_000]))
    pq.write_table(table.set_column(0, "image", name), path, compression="zstd")
    assert path.stat().st_size < 10_000
    with pytest.raises(RunError, match="too long"):
        read_candidates(path)


def case(rows: int = 120, classes: int = 5, seed: int = 0) -> tuple[LabelTable, NDArray[np.float32]]:
    random = np.random.default_rng(seed)
    logits = random.normal(-1, 2, size=(rows, classes)).astype(np.float32)
    truth = random.random(logits.shape) < 1 / (1 + np.exp(-logits))
    codes = np.where(random.random(logits.shape) < 0.3, truth.astype(np.int8), UNKNOWN)
    return LabelTable.from_dense(codes), logits


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scorers_module, "BLOCK_SIZE", 37)


def test_the_ranking_does_not_depend_on_the_size_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    table, logits = case(300)
    given = {"train": table}, [StoredScorer({"train": logits})], CandidateLimits(20, 60, 0.3)
    at_once = rank_candidates(*given)
    monkeypatch.setattr(scorers_module, "BLOCK_SIZE", 41)
    in_blocks = rank_candidates(*given)
    for kind, column in itertools.product(("missing", "wrong", "random"), ("rows", "columns", "scores")):
        assert np.array_equal(*(getattr(getattr(ranking, kind), column) for ranking in (at_once, in_blocks)))


def test_what_is_ranked_is_unknown_and_in_the_order_of_the_calibrated_scores() -> None:
    table, logits = case(300)
    stored = StoredScorer({"train": logits})
    ranking = rank_candidates({"train": table}, [stored], CandidateLimits(10_000, 100_000, 0.1))
    codes, scores = table.to_dense(), ranking.calibration.scores(logits[None])
    missing = ranking.missing
    assert (codes[missing.rows, missing.columns] == UNKNOWN).all()
    assert len(missing.rows) == int((codes == UNKNOWN).sum())
    assert np.array_equal(missing.scores, scores[missing.rows, missing.columns])
    assert (np.diff(missing.scores) <= 0).all()
    assert np.array_equal(ranking.random.scores, scores[ranking.random.rows, ranking.random.columns])
    assert len(ranking.random.rows) == round(0.1 * len(missing.rows))
    sums = np.bincount(missing.columns, weights=missing.scores, minlength=5)
    assert ranking.estimate is not None and ranking.estimate.by_class == pytest.approx(sums, rel=1e-5)
    assert ranking.estimate.missing == pytest.approx(float(missing.scores.sum(dtype=np.float64)), rel=1e-5)


def album(seed: int, share: float, *, presents_only: bool) -> tuple[LabelTable, NDArray[np.float32], NDArray[np.bool_]]:
    """An album of which half of the labels, or of the presents, are known, a share of these wrong; logits; what is."""
    random = np.random.default_rng(seed)
    truth = random.random((800, 8)) < random.uniform(0.05, 0.3, 8)
    logits = (np.where(truth, 2.0, -2.0) + random.normal(0, 1.2, truth.shape)).astype(np.float32)
    codes = np.where(random.random(truth.shape) < 0.5, truth, UNKNOWN).astype(np.int8)
    if presents_only:
        codes[codes == ABSENT] = UNKNOWN
    known = np.argwhere(codes != UNKNOWN)
    for row, column in known[random.permutation(len(known))[: round(share * len(known))]]:
        if presents_only:
            absent = np.argwhere(~truth & (codes == UNKNOWN))
            codes[row, column], (row, column) = UNKNOWN, absent[random.integers(len(absent))]
            codes[row, column] = PRESENT
        else:
            codes[row, column] = 1 - codes[row, column]
    return LabelTable.from_dense(codes), logits, (codes != UNKNOWN) & ((codes == PRESENT) != truth)


@pytest.mark.parametrize("presents_only", [True, False])
def test_without_an_error_hardly_a_label_looks_wrong(presents_only: bool) -> None:
    counts = []
    for seed in range(5):
        table, logits, wrong = album(seed, 0, presents_only=presents_only)
        ranking = rank_candidates({"train": table}, [StoredScorer({"train": logits})])
        assert not wrong.any() and ranking.expected_wrong <= len(ranking.wrong)
        counts.append(len(ranking.wrong) / sum(table.counts().total[:2]))
    assert max(counts) < 0.01 and np.median(counts) == 0


@pytest.mark.parametrize("presents_only", [True, False])
def test_labels_that_are_clearly_wrong_look_wrong_and_about_as_many_as_expected_are(presents_only: bool) -> None:
    clear = found = shown = right = 0
    expected = 0.0
    for seed in range(3):
        table, logits, wrong = album(seed, 0.04, presents_only=presents_only)
        ranking = rank_candidates({"train": table}, [StoredScorer({"train": logits})])
        codes, suspects = table.to_dense(), ranking.wrong
        is_clear = wrong & (np.where(codes == PRESENT, -logits, logits) > 1.5)
        listed = np.zeros(wrong.shape, dtype=bool)
        listed[suspects.rows, suspects.columns] = True
        clear, found = clear + is_clear.sum(), found + (is_clear & listed).sum()
        shown, right = shown + len(suspects), right + (wrong & listed).sum()
        expected += ranking.expected_wrong
        assert np.array_equal(suspects.observed, codes[suspects.rows, suspects.columns])
        doubt = np.where(suspects.observed == PRESENT, 1 - suspects.scores, suspects.scores)
        assert (np.diff(doubt) <= 1e-6).all() and (doubt > 0.5).all()
        assert ranking.expected_wrong == pytest.approx(float(doubt.sum()), rel=1e-5)
    assert found > 0.8 * clear and right > 0.8 * shown
    assert expected == pytest.approx(right, rel=0.15)


def test_counts_in_bins_are_exact(small_blocks: None) -> None:
    table, logits = case()
    low = np.random.default_rng(3).normal(-1, 1, 5) - [0, 0, 0, 0, 300]
    cuts = np.linspace(low, low + np.array([2.7, 1e-3, 0.3, 9.0, 1e-3]), 20, axis=1)
    cuts[:, 0] = -np.inf
    logits[:19] = cuts[:, 1:].T  # scores that lie on a cut
    counted = count_unknown({"train": table}, [StoredScorer({"train": logits})], lambda each: each[0].copy(), cuts)
    codes = table.to_dense()
    for column in range(5):
        unknown = logits[codes[:, column] == UNKNOWN, column]
        above = [int((unknown.astype(np.float64) >= cut).sum()) for cut in cuts[column]]
        assert counted[column].tolist() == (-np.diff(above, append=0)).tolist()


def test_a_sample_of_images_represents_all(small_blocks: None) -> None:
    table, logits = case(200)
    sample = sample_scores({"train": table}, [StoredScorer({"train": logits})], 0, 250)
    assert sample.unknown.shape == (1, 50, 5) and sample.scale == 4
    present = table.to_dense() == PRESENT
    assert np.array_equal(np.sort(sample.known[0, sample.is_present]), np.sort(logits[present]))
    kept = sample.unknown[0][~np.isnan(sample.unknown[0])]
    assert np.isin(kept, logits).all()


def test_each_image_is_scored_by_the_head_of_its_fold_and_val_by_their_mean() -> None:
    random = np.random.default_rng(0)
    features = {name: random.normal(size=(size, 3)).astype(np.float16) for name, size in (("train", 20), ("val", 6))}
    weight, bias = random.normal(size=(4, 2, 3)).astype(np.float32), random.normal(size=(4, 2)).astype(np.float32)
    fold = random.integers(4, size=20)
    scorer = HeadScorer(features, fold, weight, bias, torch.device("cpu"))
    got = scorer.logits("train", slice(5, 17))
    for place, row in enumerate(range(5, 17)):
        head = fold[row]
        expected = [
            sum(float(features["train"][row, d]) * float(weight[head, k, d]) for d in range(3)) + float(bias[head, k])
            for k in range(2)
        ]
        assert got[place].tolist() == pytest.approx(expected, rel=1e-4, abs=1e-5)
    every = np.stack([features["val"].astype(np.float64) @ weight[f].T + bias[f] for f in range(4)]).mean(axis=0)
    assert np.allclose(scorer.logits("val", slice(0, 6)), every, atol=1e-4)


@dataclass
class Stream:
    """Logits of very many images that are made when they are asked for."""

    rows: NDArray[np.float32]
    columns: NDArray[np.float32]
    width: int = 1
    asked: int = field(default=0)

    def logits(self, split: str, rows: slice) -> NDArray[np.float32]:
        self.asked += rows.stop - rows.start
        return self.rows[rows] @ self.columns - 4


def test_memory_does_not_grow_with_images_times_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    images, classes = 20_000, 500
    monkeypatch.setattr(scorers_module, "BLOCK_SIZE", 1 << 18)
    random = np.random.default_rng(0)
    by_image, by_class = random.normal(size=(images, 6)), random.normal(size=(6, classes))
    stream = Stream(by_image.astype(np.float32), by_class.astype(np.float32))
    known = random.integers(classes, size=images)
    names = [str(number) for number in range(classes)]
    table = LabelTable.from_entries(np.arange(images), known, np.ones(images), names, images)
    tracemalloc.start()
    try:
        limits = CandidateLimits(per_class=200, limit=10_000)
        ranking = rank_candidates({"train": table}, [stream], limits, max_sampled=200_000)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert stream.asked == 3 * images  # to calibrate, to count, to rank
    assert len(ranking.missing) == 10_000 and len(ranking.random) == 1_000
    assert np.bincount(ranking.missing.columns, minlength=classes).min() >= 10
    assert peak < 30e6, f"{peak / 1e6:.0f} MB, where all scores would take {4 * images * classes / 1e6:.0f} MB"


def test_a_review_of_the_most_probable_labels_does_not_hide_the_others() -> None:
    random = np.random.default_rng(4)
    logits = random.normal(-3, 2, size=(600, 5)).astype(np.float32)
    truth = random.random(logits.shape) < 1 / (1 + np.exp(-logits))
    tagged = truth & (random.random(logits.shape) < 0.6)
    codes = np.where(tagged, PRESENT, UNKNOWN).astype(np.int8)
    unknown = np.flatnonzero(codes == UNKNOWN)
    reviewed = np.sort(unknown[np.argsort(-logits.reshape(-1)[unknown])[:150]])
    codes.reshape(-1)[reviewed] = truth.reshape(-1)[reviewed]
    left = int((truth & (codes == UNKNOWN)).sum())
    tables, scorers = {"train": LabelTable.from_dense(codes)}, [StoredScorer({"train": logits})]
    blind = rank_candidates(tables, scorers).estimate
    told = rank_candidates(tables, scorers, reviewed=reviewed).estimate
    assert blind is not None and told is not None
    assert blind.missing < left / 2 < told.missing < 2 * left


def table(seed: int, rows: int, classes: int) -> LabelTable:
    return LabelTable.from_dense(np.random.default_rng(seed).integers(-1, 2, size=(rows, classes)))


@settings(max_examples=20)
@given(st.integers(0, 999), st.integers(1, 12), st.integers(1, 7))
def test_the_jth_unknown_label_of_a_row_is_found(seed: int, rows: int, classes: int) -> None:
    made = table(seed, rows, classes)
    row, column = np.nonzero(made.to_dense() == UNKNOWN)
    place = np.array([int((row[:at] == row[at]).sum()) for at in range(len(row))], dtype=np.int64)
    assert candidates.nth_unknown(made, row, place).tolist() == column.tolist()


@settings(max_examples=20)
@given(st.integers(0, 999), st.integers(0, 60))
def test_what_is_drawn_is_unknown_and_nothing_is_drawn_twice(seed: int, count: int) -> None:
    tables = [table(seed, 7, 5), table(seed + 1, 3, 5)]
    dense = np.concatenate([each.to_dense() for each in tables])
    rows, columns = candidates.draw_unknown(tables, count, seed)
    assert (dense[rows, columns] == UNKNOWN).all()
    assert len(rows) == len(set(zip(rows.tolist(), columns.tolist(), strict=True)))
    assert len(rows) == min(count, int((dense == UNKNOWN).sum()))


def test_every_unknown_label_is_as_likely_as_any_other() -> None:
    made = table(3, 30, 6)
    places = np.flatnonzero(made.to_dense() == UNKNOWN)
    count = np.zeros(180)
    for seed in range(3000):
        rows, columns = candidates.draw_unknown([made], 8, seed)
        count[rows * 6 + columns] += 1
    expected = 3000 * 8 / len(places)
    chi = ((count[places] - expected) ** 2 / expected).sum() / (len(places) - 1)
    assert 0.6 < chi < 1.4 and count.sum() == 24_000


def test_few_of_very_many_are_drawn_without_laying_them_out() -> None:
    large = LabelTable.from_entries([0, 5], [1, 2], [1, 1], [str(k) for k in range(5000)], 100_000)
    rows, columns = candidates.draw_unknown([large], 1000, seed=1)
    assert len(set((rows * 5000 + columns).tolist())) == 1000
    assert rows.max() > 90_000 and columns.max() > 4900


def reference(keys: NDArray[np.float32], per_class: int, limit: int) -> list[tuple[int, int]]:
    """A full sort in Python: the guaranteed share of each class, then the best of the others."""
    guaranteed = min(limit // (2 * keys.shape[1]), per_class)
    first, others = [], []
    for column in range(keys.shape[1]):
        entries = [(-float(keys[row, column]), row, column) for row in range(len(keys)) if keys[row, column] > -np.inf]
        entries.sort()
        first += entries[:guaranteed]
        others += entries[guaranteed:per_class]
    kept = sorted([*first, *sorted(others)[: limit - len(first)]])
    return [(row, column) for _, row, column in kept]


@settings(max_examples=30)
@given(
    st.integers(0, 10_000),
    st.integers(1, 60),
    st.integers(1, 5),
    st.integers(1, 12),
    st.integers(1, 40),
    st.integers(1, 9),
)
def test_blocks_equal_a_full_sort(seed: int, rows: int, classes: int, per_class: int, limit: int, step: int) -> None:
    random = np.random.default_rng(seed)
    keys = random.integers(0, 9, size=(rows, classes)).astype(np.float32)  # many ties
    keys[random.random(keys.shape) < 0.2] = -np.inf
    top = candidates.TopCandidates(classes, per_class, limit)
    for start in range(0, rows, step):
        top.update(keys[start : start + step], start)
    ranked = top.ranked()
    assert list(zip(ranked.rows.tolist(), ranked.columns.tolist(), strict=True)) == reference(keys, per_class, limit)
    assert np.array_equal(ranked.scores, keys[ranked.rows, ranked.columns])
