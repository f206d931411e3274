"""What the trace of a run is summed up to, and how separable scores are, against loops and counts by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import logit
from tests.reporting.conftest import RunMaker

from labelgap.core.errors import InputError
from labelgap.data.dataset import Dataset
from labelgap.labels import ABSENT, PRESENT, UNKNOWN, LabelTable, Revision, Revisions
from labelgap.metrics import revision_quality
from labelgap.reporting.page import Page
from labelgap.reporting.sections import separability
from labelgap.reporting.sections.label_scores import label_scores
from labelgap.reporting.sections.memorization import label_losses
from labelgap.reporting.sections.modified_labels import (
    modified_labels_from_run,
    modified_labels_from_trace,
    pseudo_labels_from_revisions,
)
from labelgap.reporting.sections.separability import (
    BINS,
    class_separability,
    count_unknown_positives,
    density_pair_section,
    probability_shares,
    separability_from_trace,
    separability_of_run,
    separability_on_unseen,
    unknown_positives_from_run,
)
from labelgap.training.run_folder import read_predictions

Trace = dict[str, NDArray[Any]]
KINDS = {"TP": (PRESENT, PRESENT), "TN": (UNKNOWN, ABSENT), "FN": (UNKNOWN, PRESENT)}


@pytest.fixture
def trace() -> Trace:
    random = np.random.default_rng(4)
    entries, epochs = 200, 5
    loss = random.random((epochs, entries)).astype(np.float32)
    loss[random.random(loss.shape) < 0.1] = np.nan
    loss[:, :10] = np.nan  # never visited
    modified = random.random(loss.shape) < 0.2
    modified[0] = False
    rows, columns = np.divmod(np.arange(entries), 7)
    observed, truth = random.choice([PRESENT, ABSENT, UNKNOWN], (2, entries)).astype(np.int8)
    known = {"row": rows, "column": columns, "observed": observed, "truth": truth}
    return {**known, "loss": loss, "modified": modified}


def members(trace: Trace, kind: tuple[int, int]) -> list[int]:
    pairs = zip(trace["observed"].tolist(), trace["truth"].tolist(), strict=True)
    return [number for number, pair in enumerate(pairs) if pair == kind]


@pytest.mark.parametrize("kind", KINDS)
def test_mean_and_share_are_over_the_labels_that_were_seen(trace: Trace, kind: str) -> None:
    found, losses = label_losses(trace)[kind], trace["loss"].tolist()
    assert found.count == len(members(trace, KINDS[kind]))
    for epoch in range(5):
        seen = [losses[epoch][n] for n in members(trace, KINDS[kind]) if not math.isnan(losses[epoch][n])]
        assert found.mean[epoch] == pytest.approx(sum(seen) / len(seen))
    highest_first = visited = 0
    for n in members(trace, KINDS[kind]):
        values = [(losses[epoch][n], -epoch) for epoch in range(5) if not math.isnan(losses[epoch][n])]
        visited += bool(values)
        highest_first += bool(values) and max(values)[1] == 0
    assert found.first_epoch == pytest.approx(highest_first / visited)


def test_without_truth_the_kinds_are_those_observed_and_nothing_is_called_memorized(trace: Trace) -> None:
    found = label_losses(trace | {"truth": np.full(200, UNKNOWN, dtype=np.int8)})
    expected = {
        name: int((trace["observed"] == state).sum())
        for name, state in zip(("present", "absent", "unknown"), (PRESENT, ABSENT, UNKNOWN), strict=True)
    }
    assert {name: losses.count for name, losses in found.items()} == expected
    assert label_losses({}) == {}


def test_the_measures_of_a_whole_trace_are_plain_counts(trace: Trace) -> None:
    present, absent = members(trace, (UNKNOWN, PRESENT)), members(trace, (UNKNOWN, ABSENT))
    found = modified_labels_from_trace(trace, (len(absent), len(present)))
    assert found is not None and not found.accumulated
    assert found.share[0] == 0 and np.isnan(found.precision[0]) and found.recall[0] == 0
    for epoch in range(1, 5):
        right = sum(bool(trace["modified"][epoch, n]) for n in present)
        wrong = sum(bool(trace["modified"][epoch, n]) for n in absent)
        assert found.share[epoch] == pytest.approx((right + wrong) / (len(present) + len(absent)))
        assert found.precision[epoch] == pytest.approx(right / (right + wrong))
        assert found.recall[epoch] == pytest.approx(right / len(present))
    assert found.base_rate == pytest.approx(len(present) / (len(present) + len(absent)))


def test_a_sample_is_weighed_by_how_many_labels_of_each_kind_there_are() -> None:
    sample: Trace = {
        "observed": np.full(4, UNKNOWN, dtype=np.int8),
        "truth": np.array([PRESENT, PRESENT, ABSENT, ABSENT], dtype=np.int8),
        "modified": np.array([[True, True, True, False]]),
    }
    found, alone = modified_labels_from_trace(sample, (1000, 10)), modified_labels_from_trace(sample)
    assert found is not None and alone is not None
    assert (found.precision[0], found.share[0]) == pytest.approx((10 / (10 + 500), 510 / 1010))
    assert found.recall[0] == alone.recall[0] == 1
    assert np.isnan(alone.precision[0]) and np.isnan(alone.share[0]), "what the sample alone does not say"


def test_without_truth_only_the_share_of_what_was_modified_is_said(trace: Trace) -> None:
    found = modified_labels_from_trace(trace | {"truth": np.full(200, UNKNOWN, dtype=np.int8)}, (0, 0))
    assert found is not None
    unknown = trace["observed"] == UNKNOWN
    np.testing.assert_allclose(found.share, [row[unknown].sum() / unknown.sum() for row in trace["modified"]])
    assert np.isnan(found.precision).all() and np.isnan(found.recall).all()
    assert modified_labels_from_trace(trace | {"modified": np.zeros((5, 200), dtype=bool)}, (1, 1)) is None
    assert modified_labels_from_trace({}) is None


def test_pseudo_labels_by_hand() -> None:
    truth = LabelTable.from_dense([[1, 1, 0], [1, 0, 0], [0, 1, 1]], images=["a", "b", "c"])
    observed = LabelTable.from_dense([[1, -1, -1], [-1, 0, -1], [-1, -1, -1]], images=["a", "b", "c"])
    made = [
        Revision("a", "1", PRESENT, "m", epoch=2),  # right
        Revision("b", "2", ABSENT, "m", target=0.1, epoch=2),  # right
        Revision("c", "0", PRESENT, "m", epoch=3),  # wrong
        Revision("c", "1", ABSENT, "m", target=0.2, epoch=3),  # wrong
    ]
    found = pseudo_labels_from_revisions(Revisions(made), observed, truth, 4)
    present, absent = found[PRESENT], found[ABSENT]
    assert present.accumulated and absent.accumulated
    np.testing.assert_allclose(present.share, np.array([0, 1, 2, 2]) / 7)
    np.testing.assert_allclose(present.precision, [np.nan, 1, 0.5, 0.5])
    np.testing.assert_allclose(present.recall, np.array([0, 1, 1, 1]) / 4)  # a1, b0, c1, c2 were hidden
    np.testing.assert_allclose(absent.precision, [np.nan, 1, 0.5, 0.5])
    np.testing.assert_allclose(absent.recall, np.array([0, 1, 1, 1]) / 3)  # a2, b2, c0
    assert (present.base_rate, absent.base_rate) == pytest.approx((4 / 7, 3 / 7))
    blind = pseudo_labels_from_revisions(Revisions(made), observed, None, 4)
    np.testing.assert_allclose(blind[PRESENT].share, present.share)
    assert np.isnan(blind[PRESENT].precision).all() and np.isnan(blind[PRESENT].base_rate)
    assert pseudo_labels_from_revisions(Revisions(), observed, truth, 4) == {}


def test_a_run_is_read_by_what_its_method_does(run_of: RunMaker, data: Dataset) -> None:
    truth = data.train.truth
    assert truth is not None
    sampled = run_of(trace=50)
    alone, beside = modified_labels_from_run(sampled)[PRESENT], modified_labels_from_run(sampled, data)[PRESENT]
    assert np.isnan(alone.share).all() and np.isfinite(beside.share).all() and not beside.accumulated
    assert modified_labels_from_run(run_of(method="ll-cp"), data)[PRESENT].accumulated
    assert modified_labels_from_run(run_of(method="an"), data) == {}
    run = run_of(method="em-apl")
    rows, columns = np.nonzero(data.train.labels.to_dense() == UNKNOWN)
    made = Revisions.from_arrays(truth, rows, columns, values=ABSENT, source="em-apl", epoch=2)
    made.to_parquet(run.path / "revisions.parquet")
    found = modified_labels_from_run(run, data)
    assert found.keys() == {ABSENT} and found[ABSENT].recall[-1] == 1
    assert found[ABSENT].precision[-1] == revision_quality(data.train.labels, truth, made).precision
    assert modified_labels_from_run(run) == {}, "images are named in the data set"
    other = Dataset("pets", replace(data.split("test"), name="train"))
    assert modified_labels_from_run(run, other) == {}, "it has none of the images that were revised"


@pytest.fixture
def scored() -> Trace:
    """Two observed positives, three unknown positives, two unknown negatives, and an observed absent label."""
    return {
        "observed": np.array([PRESENT] * 2 + [UNKNOWN] * 5 + [ABSENT], dtype=np.int8),
        "truth": np.array([PRESENT] * 5 + [ABSENT] * 3, dtype=np.int8),
        "loss": np.array([[1.0, 3.0, 0, 0, 0, 0, 0, 9], [0.5, np.nan, 0, 0, 0, 0, 0, 9]], dtype=np.float32),
        "logit": np.array(
            [[2, -2, -1, 2, -3, -4, 6, 9], [0, np.nan, -1, np.nan, 3, np.nan, np.nan, 9]], dtype=np.float32
        ),
    }


def test_each_kind_has_its_loss_and_the_quartiles_of_its_absolute_logit_per_epoch(scored: Trace) -> None:
    found = label_scores(scored)
    assert list(found) == ["observed", "unknown_present", "unknown_absent"]
    assert [scores.count for scores in found.values()] == [2, 3, 2]
    assert found["observed"].loss.tolist() == [2.0, 0.5]  # the label that epoch 2 did not see is left out of its mean
    assert found["unknown_present"].magnitude.tolist() == [[1.5, 2.0, 2.5], [1.5, 2.0, 2.5]]
    assert found["unknown_absent"].magnitude[0].tolist() == [4.5, 5.0, 5.5]
    assert np.isnan(found["unknown_absent"].magnitude[1]).all() and np.isnan(found["unknown_absent"].loss[1])


@pytest.mark.parametrize(("epoch", "shown"), [(None, 2), (1, 1), (0, 1), (7, 2)])
def test_probabilities_are_of_one_epoch_that_was_recorded(scored: Trace, epoch: int | None, shown: int) -> None:
    found = label_scores(scored, epoch)["observed"]
    assert found.epoch == shown and found.mean_probability == pytest.approx(0.5)
    expected = {2: {10: 1.0}, 1: {2: 0.5, 17: 0.5}}[shown]  # σ(0) = 0.5; σ(−2) = 0.119, σ(2) = 0.881
    assert {place: share for place, share in enumerate(found.shares.tolist()) if share} == expected


def test_without_truth_all_unknown_labels_are_one_kind(scored: Trace) -> None:
    found = label_scores(scored | {"truth": np.full(8, UNKNOWN, dtype=np.int8)})
    assert {kind: scores.count for kind, scores in found.items()} == {"observed": 2, "unknown": 5}
    assert found["unknown"].magnitude[0, 1] == 3
    complete = label_scores(scored | {"observed": scored["truth"]})
    assert list(complete) == ["observed"]
    assert label_scores({}) == {}


def test_probabilities_of_the_ends_of_an_interval_belong_to_the_upper_one_and_1_to_the_last() -> None:
    shares = probability_shares(np.array([0.0, 0.049, 0.25, 1.0]))
    assert {place: share for place, share in enumerate(shares.tolist()) if share} == {0: 0.5, 5: 0.25, BINS - 1: 0.25}
    assert np.isnan(probability_shares(np.empty(0))).all()


def test_the_measures_are_those_of_loops_over_all_pairs_and_unknown_labels_are_left_out() -> None:
    random = np.random.default_rng(5)
    scores = random.integers(0, 20, (60, 7)) / 20 + 0.025
    labels = random.choice([PRESENT, ABSENT, UNKNOWN], (60, 7))
    labels[:, 5], labels[:, 6] = PRESENT, UNKNOWN
    found = class_separability(scores, labels, list("abcdefg"))
    for place in range(5):
        present, absent = (scores[labels[:, place] == state, place].tolist() for state in (PRESENT, ABSENT))
        wins = sum((p > a) + 0.5 * (p == a) for p in present for a in absent)
        assert found.auc[place] == pytest.approx(wins / len(present) / len(absent))
        shared = sum(min(present.count(v) / len(present), absent.count(v) / len(absent)) for v in {*present, *absent})
        assert found.overlap[place] == pytest.approx(shared)
    assert np.isnan(found.auc[5:]).all() and np.isnan(found.overlap[5:]).all()
    assert found.counted.tolist() == sorted(range(5), key=lambda place: found.auc[place])
    assert found.mean()[0] == pytest.approx(found.auc[:5].mean())


@pytest.mark.parametrize(("scores", "labels"), [([[0.5]], [[1, 0]]), ([[3.0]], [[1]]), ([[np.nan]], [[1]])])
def test_scores_that_are_no_probabilities_of_the_labels_are_refused(scores: Any, labels: Any) -> None:
    with pytest.raises(InputError):
        class_separability(scores, labels)


def test_the_unknown_labels_of_a_trace_are_measured_as_a_matrix_of_the_same_scores_is() -> None:
    random = np.random.default_rng(1)
    scores = random.random((40, 3))
    observed, truth = random.choice([PRESENT, ABSENT, UNKNOWN], (2, 40, 3)).astype(np.int8)
    rows, columns = np.divmod(np.arange(120), 3)
    trace = {"row": rows, "column": columns, "observed": observed.ravel(), "truth": truth.ravel()}
    trace["logit"] = np.stack([np.full(120, np.nan), logit(scores).ravel()])
    found = separability_from_trace(trace, ("a", "b", "c"))
    expected = class_separability(scores, np.where(observed == UNKNOWN, truth, UNKNOWN))
    assert found is not None and found.present.tolist() == expected.present.tolist()
    np.testing.assert_allclose(found.auc, expected.auc)
    np.testing.assert_allclose(found.overlap, expected.overlap)
    assert separability_from_trace(trace, ("a", "b", "c"), epoch=1) is None  # an epoch that saw nothing
    assert separability_from_trace(trace | {"truth": np.full(120, UNKNOWN)}, ("a", "b", "c")) is None
    assert separability_from_trace({}, ("a",)) is None


def test_unseen_images_are_measured_by_their_predictions(
    run_of: RunMaker, data: Dataset, positives_only: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, test = run_of(), data.split("test")
    found = separability_on_unseen(run, data)["test"]
    scores = read_predictions(run.path, "test", test.labels.images, data.classes)
    assert scores is not None and found.classes == data.classes
    np.testing.assert_array_equal(found.auc, class_separability(scores, test.evaluation_labels.to_dense()).auc)
    monkeypatch.setattr(separability, "MAX_SCORES", 4 * 10)
    some = separability_on_unseen(run, data)["test"]
    assert some.images == 10 and (some.present + some.absent).tolist() == [10] * 4
    assert separability_on_unseen(run, None) == {}
    monkeypatch.undo()
    mixed = replace(data, test=positives_only.test)
    assert separability_on_unseen(run, mixed).keys() == {"val"}, "where test has no absent label"
    assert separability_on_unseen(run_of(positives_only, val=False, truth=False), positives_only) == {}


def test_unknown_positives_are_counted_per_class_in_blocks(
    run_of: RunMaker, data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    observed = LabelTable.from_dense([[1, -1, 0], [-1, -1, 1], [-1, -1, 1]])
    truth = LabelTable.from_dense([[1, 1, 0], [1, 1, 1], [0, -1, 1]])
    monkeypatch.setattr(separability, "_BLOCK", 3)
    found = count_unknown_positives(observed, truth)
    assert found.unknown.tolist() == [2, 2, 0] and found.present.tolist() == [1, 2, 0]
    assert found.share[:2].tolist() == [0.5, 1.0] and np.isnan(found.share[2])
    with_data, from_trace = unknown_positives_from_run(run_of(), data), unknown_positives_from_run(run_of())
    assert with_data is not None and from_trace is not None
    assert with_data.present.tolist() == from_trace.present.tolist() and with_data.present.sum() > 0
    assert with_data.unknown.tolist() == from_trace.unknown.tolist()
    assert unknown_positives_from_run(run_of(truth=False)) is None


def test_a_pair_of_runs_is_drawn_with_what_every_class_gains(run_of: RunMaker, data: Dataset) -> None:
    made = {"an": ("an", 1.0), "em": ("em", 3.0), "other": ("ll-r", 2.0)}
    runs = {label: run_of(folder=label, method=method, skill=skill) for label, (method, skill) in made.items()}
    measured, page = {label: separability_of_run(run, data) for label, run in runs.items()}, Page(data)
    assert density_pair_section(runs, measured, page)
    (figure,) = page.figures
    names = figure.data.names
    found = {(row[0], row[1]): row[names.index("gain")] for row in figure.data.rows}
    before, after = (runs[label].metrics["test"]["average_precision"] for label in ("an", "em"))
    assert {label for label, _ in found} == {
        "an: test",
        "em: test",
        "an: " + separability.TRAIN,
        "em: " + separability.TRAIN,
    }
    for (_, name), gain in found.items():
        assert gain == pytest.approx(100 * (after[name] - before[name]), abs=1e-5)
    drawn = [label.get_text() for label in figure.draw(width=7.0).axes[0].get_yticklabels()]
    assert drawn == sorted(data.classes, key=lambda name: before[name] - after[name]), "the largest gain on top"
    alone = {label: runs[label] for label in ("em", "other")}
    assert not density_pair_section(alone, measured, Page(data)), "there is nothing to compare with"
