"""What evaluate says: means, a row per class, intervals; and which rule chooses the epoch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.training.untrained_run import CLASSES, make_run

from labelgap.core.errors import InputError, RunError
from labelgap.data import ArrayImages, Dataset, Split
from labelgap.data.identity import DataIdentity
from labelgap.labels import LabelTable
from labelgap.labels.table import group_numbers
from labelgap.metrics import Thresholds, average_precision
from labelgap.metrics.validation import expected_random_precision
from labelgap.training import Run
from labelgap.training.evaluation import evaluate_in_full, evaluate_scores
from labelgap.training.run_folder import write_data_identity, write_predictions
from labelgap.training.search import selection_score
from labelgap.training.selection import choose_selection

CUTS = Thresholds(np.array([0.4, 0.5, 0.5]), ("measured", "estimated", "default"))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_run(tmp_path_factory.mktemp("runs") / "a")


def scored(count: int = 80) -> tuple[np.ndarray, np.ndarray]:
    """Logits that know something, and labels: cat in full, dog in half of the images, owl present only."""
    random = np.random.default_rng(0)
    truth = (random.random((count, 3)) < 0.4).astype(np.int8)
    logits = (random.normal(size=truth.shape) + truth).astype(np.float32)
    codes = truth.copy()
    codes[::2, 1] = -1
    codes[:, 2] = np.where(truth[:, 2] == 1, 1, -1)
    return logits, codes


def test_a_row_per_class_says_what_its_labels_support() -> None:
    logits, codes = scored()
    table = LabelTable.from_dense(codes, CLASSES)
    measured = evaluate_in_full(logits, table, CUTS)
    plain = evaluate_scores(logits, table, CUTS)
    assert {key: measured[key] for key in plain} == plain
    cat, dog, owl = measured["per_class"]
    taken = 1 / (1 + np.exp(-logits[:, 0])) >= 0.4
    hits = int((taken & (codes[:, 0] == 1)).sum())
    assert cat["precision"] == pytest.approx(hits / taken.sum())
    assert cat["recall"] == pytest.approx(hits / (codes[:, 0] == 1).sum())
    assert cat["f1"] == pytest.approx(2 * hits / (taken.sum() + (codes[:, 0] == 1).sum()))
    assert cat["average_precision"] == pytest.approx(average_precision(logits[:, :1], codes[:, :1]))
    assert cat["interval"][0] < cat["average_precision"] < cat["interval"][1]
    assert (dog["mark"], dog["threshold"], dog["unknown"]) == ("estimated", 0.5, 40)
    assert dog["present"] + dog["absent"] == 40 and dog["why"] is None
    assert owl["average_precision"] is owl["interval"] is owl["f1"] is owl["precision"] is owl["recall"] is None
    assert owl["why"] is not None and owl["present"] == (codes[:, 2] == 1).sum()
    ranges = measured["intervals"]
    assert ranges["map"][0] < measured["map"] < ranges["map"][1]
    assert ranges["f1_macro"][0] < measured["f1_macro"] < ranges["f1_macro"][1]
    assert ranges["resamples"] == 1000 and ranges["level"] == 0.95


def test_groups_are_means_over_their_classes_that_count() -> None:
    logits, codes = scored()
    measured = evaluate_scores(logits, LabelTable.from_dense(codes, CLASSES), CUTS, groups=[2, 1, 1])
    each = measured["average_precision"]
    first, second = measured["groups"]
    assert (first["map"], second["map"]) == (each["dog"], each["cat"]), "owl has no known absent"
    assert (first["classes"], first["classes_counted"], first["absent"]) == (2, 1, int((codes[:, 1] == 0).sum()))
    assert group_numbers(LabelTable.from_dense(codes, CLASSES)) is None, "too few classes"
    known = np.where(np.arange(25)[:, None] >= np.arange(25), 1, -1)
    assert group_numbers(LabelTable.from_dense(known)) == [5 - column // 5 for column in range(25)]


def test_labels_that_support_nothing_give_no_number() -> None:
    logits, codes = scored(10)
    blank = LabelTable.from_dense(np.where(codes == 0, -1, codes), CLASSES)
    measured = evaluate_in_full(logits, blank, CUTS)
    assert measured["map"] is measured["f1_micro"] is measured["intervals"]["map"] is None
    none = evaluate_in_full(logits[:0], blank.select([]), CUTS)
    assert none["map"] is None and none["intervals"] is None and len(none["per_class"]) == 3
    few = evaluate_in_full(logits, LabelTable.from_dense(codes, CLASSES), CUTS, resamples=0)
    assert few["intervals"] is None and few["map"] is not None


def data_of(classes: tuple[str, ...], count: int = 24) -> Dataset:
    random = np.random.default_rng(1)
    pixels = random.integers(0, 256, (count, 64, 64), dtype=np.uint8)
    codes = {name: (np.random.default_rng(sum(map(ord, name))).random(count) < 0.5) for name in classes}
    table = LabelTable.from_dense(np.stack([codes[name] for name in classes], axis=1), classes)
    train, test = (
        Split(name, ArrayImages(pixels[rows]), table.select(rows))
        for name, rows in (("train", np.arange(4)), ("test", np.arange(4, count)))
    )
    return Dataset("x", train, None, test)


def test_classes_are_matched_by_name_and_those_that_only_one_side_has_are_named(run: Run, tmp_path: Path) -> None:
    expected = run.evaluate(data_of(CLASSES), device="cpu")
    assert run.evaluate(data_of(("owl", "cat", "dog")), device="cpu") == expected
    assert expected["classes_missing"] == expected["classes_extra"] == []
    found = run.evaluate(data_of(("zebra", "owl", "cat")), device="cpu")
    assert found["classes_missing"] == ["dog"] and found["classes_extra"] == ["zebra"]
    assert found["classes_counted"] == 2
    assert found["per_class"][0] == expected["per_class"][0] and found["per_class"][2] == expected["per_class"][2]
    assert found["per_class"][1]["why"] is not None
    assert run.evaluate(data_of(CLASSES), "all", device="cpu")["images"] == 24
    unfinished = make_run(tmp_path / "run", finished=False)
    for used, classes, split, named in (
        (run, ("Cat", "zebra"), "test", "cat, dog, owl; .* Cat, zebra.*--rename"),
        (run, CLASSES, "val", "'val'"),
        (unfinished, CLASSES, "test", "--resume"),
    ):
        with pytest.raises((InputError, RunError), match=named):
            used.evaluate(data_of(classes), split, device="cpu")


@pytest.mark.parametrize(("present", "absent"), [(50, 1), (1, 1), (5, 5), (5, 15)])
def test_random_scores_are_no_estimate_and_no_accuracy_beyond_chance(present: int, absent: int) -> None:
    random = np.random.default_rng(0)
    codes = np.full((500, 3), -1, dtype=np.int8)
    codes[:present], codes[present : present + absent] = 1, 0
    table = LabelTable.from_dense(codes, CLASSES)
    measured = evaluate_scores(random.normal(size=codes.shape).astype(np.float32), table, CUTS)
    assert measured["map_estimated"] is None
    if expected_random_precision(np.array([present]), np.array([absent]))[0] > 0.5:
        assert measured["map"] is measured["f1_micro"] is None
        assert choose_selection(table, None).rule == "observed"
    else:
        assert measured["map"] == pytest.approx(measured["chance"], abs=0.26), "chance stands beside it"


def test_images_that_were_trained_on_are_measured_by_their_out_of_fold_scores(tmp_path: Path) -> None:
    run, data = make_run(tmp_path / "a"), data_of(CLASSES)
    write_data_identity(run.path, DataIdentity.of(data))
    seen = run.evaluate(data, "train", device="cpu", resamples=0)
    assert (seen["trained_images"], seen["out_of_fold_images"]) == (4, 0)
    truth = data.train.labels.to_dense()
    names = [*data.train.labels.images, "other"]
    logits = np.where(np.vstack([truth, truth[:1]]) == 1, 3, -40).astype(np.float32)
    write_predictions(run.path, {"train": (names[::-1], logits[::-1])}, CLASSES)
    found = run.evaluate(data, "all", device="cpu", resamples=0)
    assert (found["trained_images"], found["out_of_fold_images"]) == (0, 4)
    exact = run.evaluate(data, "train", device="cpu", resamples=0)
    assert 1.0 in (values := {row["average_precision"] for row in exact["per_class"]}) and values <= {None, 1.0}


FULL = LabelTable.from_dense([[1, 0], [0, 1], [1, 1], [0, 0]])
HALF = LabelTable.from_dense([[1, -1], [0, 1], [0, -1], [0, -1], [0, -1], [0, -1], [-1, -1]])
POSITIVES = LabelTable.from_dense([[1, -1], [-1, 1], [1, -1], [-1, -1]])
UNRANKED = [LabelTable.from_dense([row, row]) for row in ([1, 1], [1, 0], [1, -1], [-1, -1])]


def test_the_strongest_rule_that_the_labels_support_is_chosen_and_no_other_taken() -> None:
    chosen = [choose_selection(table, None) for table in (FULL, HALF, POSITIVES, *UNRANKED, None)]
    assert [each.rule for each in chosen] == ["clean", "known", "observed", *["last"] * 5]
    assert chosen[-1].score(None) is None
    assert choose_selection(POSITIVES, FULL).rule == "observed", "the hidden truth is used only on request"
    assert choose_selection(POSITIVES, FULL, "clean").labels is FULL
    wrong = [(FULL, "best"), (POSITIVES, "clean"), (POSITIVES, "known"), (None, "clean")]
    for table, asked in (*wrong, *((table, asked) for table in UNRANKED for asked in ("clean", "observed"))):
        with pytest.raises(InputError, match="observed" if asked == "best" else asked):
            choose_selection(table, None, asked)


def test_observed_counts_unknown_as_absent_and_known_leaves_it_out() -> None:
    scores = np.array([[3.0, 0.0], [2.0, 3.0], [1.0, 1.0], [0.0, 2.0]], dtype=np.float32)
    observed = choose_selection(POSITIVES, None).score(scores)
    known = choose_selection(HALF, None, "known").score(np.concatenate([scores, -np.ones((3, 2), np.float32)]))
    assert observed is not None and known is not None
    # class 0: presents at ranks 1 and 3 of 4; class 1: present at rank 1.
    assert observed.value == pytest.approx(((1 + 2 / 3) / 2 + 1) / 2)
    assert observed.counted == 2
    # class 0: present above its known absents; class 1 has no known absent.
    assert (known.value, known.counted) == (1.0, 1)


def test_a_search_weighs_a_class_by_its_known_presents() -> None:
    scores = np.random.default_rng(1).normal(size=(4, 2)).astype(np.float32)
    observed = POSITIVES.to_dense() == 1
    each = [average_precision(scores[:, [k]], observed[:, [k]]) for k in range(2)]
    found = selection_score(choose_selection(POSITIVES, None), scores)
    assert found == pytest.approx(np.average(each, weights=observed.sum(0)))


def test_scores_that_are_not_finite_say_that_training_has_diverged() -> None:
    with pytest.raises(RunError, match="diverged"):
        choose_selection(FULL, None).score(np.full((4, 2), np.nan, dtype=np.float32))
