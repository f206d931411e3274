"""The table of classes, and what can be said where no accuracy is known, on runs written by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.reporting.conftest import RunMaker, codes_of_train, write_audit

from labelgap.data.dataset import Dataset, Split
from labelgap.data.images import ArrayImages
from labelgap.labels import ABSENT, PRESENT, UNKNOWN, LabelTable
from labelgap.metrics import average_precision
from labelgap.metrics.bootstrap import average_precision_intervals
from labelgap.reporting import class_table
from labelgap.reporting.sections.calibration import bin_probabilities, comparable_curves
from labelgap.reporting.sections.summary import expected_half_width, images_for_half_width, partial_evidence
from labelgap.training.evaluation import evaluate_scores
from labelgap.training.run_folder import read_predictions, write_predictions


def test_measures_are_those_of_the_best_split_and_counts_those_of_train(
    run_of: RunMaker, data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of()
    whole = class_table(run, data)
    monkeypatch.setattr("labelgap.reporting.sections.classes._AT_ONCE", 3 * len(data.split("test")))
    table = class_table(run, data)  # three classes at a time, then one
    assert repr(table.columns()) == repr(whole.columns())
    scores = read_predictions(run.path, "test", data.split("test").labels.images, data.classes)
    assert scores is not None and table.split == "test"
    codes = data.split("test").evaluation_labels.to_dense()
    assert table.average_precision == pytest.approx(average_precision(scores, codes, average=None))
    assert np.stack([table.low, table.high], axis=1) == pytest.approx(
        average_precision_intervals(scores, codes), nan_ok=True
    )
    observed, truth = data.train.labels.to_dense(), codes_of_train(data)
    assert table.train is not None and table.hidden_present is not None
    for counts, state in zip(table.train, (PRESENT, ABSENT, UNKNOWN), strict=True):
        assert counts.tolist() == (observed == state).sum(axis=0).tolist()
    assert table.hidden_present.tolist() == ((observed == UNKNOWN) & (truth == PRESENT)).sum(axis=0).tolist()
    assert table.calibration_images == len(data.split("test")) and table.scores is not None
    expected = sum(abs(p - y) for p, y in bins_by_hand(scores[:, 0], codes[:, 0])) / len(codes)
    assert table.scores.error[0] == pytest.approx(expected) and table.probabilities is None


def bins_by_hand(scores: NDArray[np.float32], codes: NDArray[np.int8]) -> list[tuple[float, float]]:
    """The sum of the scores and the number of presents in each of ten bins."""
    places = [min(int(score * 10), 9) for score in scores]
    return [
        (
            sum(float(s) for s, b in zip(scores, places, strict=True) if b == each),
            float(sum(int(y) for y, b in zip(codes, places, strict=True) if b == each)),
        )
        for each in range(10)
    ]


def with_test(data: Dataset, codes: NDArray[np.int8]) -> Dataset:
    """Return the data set with other labels of test."""
    names = [f"test-{row:03d}.jpg" for row in range(len(codes))]
    images = ArrayImages(np.zeros((len(codes), 2, 2, 3), dtype=np.uint8), names)
    return Dataset("pets", data.train, None, Split("test", images, LabelTable.from_dense(codes, data.classes, names)))


def test_ties_one_positive_and_none_by_hand(run_of: RunMaker, data: Dataset) -> None:
    codes = np.zeros((20, 4), dtype=np.int8)
    codes[:10, 0], codes[:6, 1], codes[0, 2] = 1, 1, 1
    on = with_test(data, codes)
    run = run_of(on, val=False)
    logits = np.zeros((20, 4), dtype=np.float32)  # every image of the first class is tied
    logits[:6, 1], logits[5, 1], logits[10, 1] = 3, -1, 3  # one absent among the first, one present below all
    logits[0, 2] = 1
    write_predictions(run.path, {"test": (on.split("test").labels.images, logits)}, on.classes)
    run.metrics["test"] = evaluate_scores(logits, on.split("test").labels, run.thresholds)
    table = class_table(run, on)
    assert table.average_precision[:3] == pytest.approx([0.5, (5 * 5 / 6 + 6 / 20) / 6, 1.0])
    assert math.isnan(table.average_precision[3])
    assert np.isnan(table.low).tolist() == [False, False, True, True], "one positive has no interval, none no number"
    # all tied: AP = P / (P + A) of the weights; its standard deviation over 20 images is sqrt(0.5 · 0.5 / 20)
    reach = 1.959964 * math.sqrt(0.25 / 20) / 0.25
    assert (table.low[0], table.high[0]) == pytest.approx((1 / (1 + math.exp(reach)), 1 / (1 + math.exp(-reach))))
    assert table.scores is not None and table.scores.error[0] == pytest.approx(0), "a score of one half, half present"


def test_positives_alone_have_no_average_precision_but_an_estimate(run_of: RunMaker, data: Dataset) -> None:
    codes = np.where(np.random.default_rng(0).random((300, 4)) < 0.2, PRESENT, UNKNOWN).astype(np.int8)
    codes[:, 3] = UNKNOWN
    codes[:3, 3] = PRESENT  # too few for an estimate
    on = with_test(data, codes)
    run = run_of(on, val=False)
    table = class_table(run, on)
    assert np.isnan(table.average_precision).all() and np.isnan(table.low).all() and table.calibration is None
    assert np.isnan(table.estimated_precision).tolist() == [False, False, False, True]
    assert table.estimated_precision[:3].mean() == pytest.approx(run.metrics["test"]["map_estimated"], abs=1e-6)
    assert table.prevalence[:3].mean() == pytest.approx(run.metrics["test"]["chance_estimated"], abs=1e-6)


def test_scores_and_probabilities_are_compared_on_the_classes_that_have_both() -> None:
    codes = np.array([[1, 0], [0, 1]], dtype=np.int8)
    scores = bin_probabilities(np.array([[0.9, 0.9], [0.1, 0.1]]), codes)
    probabilities = bin_probabilities(np.array([[0.8, np.nan], [0.2, np.nan]]), codes)
    compared, drawn = comparable_curves(scores, probabilities)
    assert drawn.tolist() == [True, False]
    errors = {name: curves.error[0] for name, curves in compared.items()}
    assert errors == pytest.approx({"score": 0.1, "probability": 0.2}), "0.5 and 0.2 with the other class"


def test_bins_leave_out_what_has_no_probability() -> None:
    curves = bin_probabilities(np.array([[0.95, np.nan], [1.0, 0.2]]), np.array([[1, 1], [0, 1]], dtype=np.int8))
    assert curves.count.sum(axis=1).tolist() == [2, 1] and curves.count[0, 9] == 2
    assert curves.error == pytest.approx([0.475, 0.8])
    assert curves.overall().error == pytest.approx([(0.95 + 0.8) / 3])


def test_a_review_narrows_the_interval_as_the_square_root_of_its_images() -> None:
    prevalence = np.array([0.5, 0.1])
    by_hand = 1.959964 / 2 * math.sqrt(1 / (4 * 100 * 0.5) + 1 / (4 * 100 * 0.1))
    assert expected_half_width(prevalence, 100) == pytest.approx(by_hand)
    assert expected_half_width(prevalence, 400) == pytest.approx(by_hand / 2)
    images = images_for_half_width(prevalence, 0.05)
    assert expected_half_width(prevalence, images) <= 0.05 < expected_half_width(prevalence, images // 2)


def test_where_no_accuracy_is_known_the_ranking_is_told(run_of: RunMaker, data: Dataset) -> None:
    assert data.val is not None
    shown = data.val.labels.observe(positives="all", negatives=0)
    on = Dataset("pets", data.train, Split("val", data.val.images, shown))
    run = run_of(on, test=False, select="observed", truth=False)
    run.metrics["score"] = run.history[2]["score"]
    write_audit(run, {"missing": 7, "range": [3, 14], "known": 24, "missing_per_class": {"dog": 7}})
    found = partial_evidence(run, on, class_table(run, on))
    ranking, present = found["ranking"], shown.counts().present
    assert (ranking["first"], ranking["kept"]) == (run.history[0]["score"], run.history[2]["score"])
    assert min(present / 24) <= ranking["random"] <= max(present / 24) + 0.2
    assert found["known"] == on.train.labels.counts().total
    assert (found["missing"], found["missing_range"]) == (7, [3, 14])
    assert (found["review_images"], found["available_images"]) == (24, 24)
    without = partial_evidence(run, None, class_table(run))
    assert without["known"] is None and without["ranking"]["random"] is None
