"""Which rule chooses the epoch, and what each rule looks at."""

from __future__ import annotations

import numpy as np
import pytest

from labelgap.core.errors import InputError, RunError
from labelgap.labels import LabelTable
from labelgap.metrics import average_precision
from labelgap.training.search import selection_score
from labelgap.training.selection import choose_selection

FULL = LabelTable.from_dense([[1, 0], [0, 1], [1, 1], [0, 0]])
HALF = LabelTable.from_dense([[1, -1], [0, 1], [0, -1], [0, -1], [0, -1], [0, -1], [-1, -1]])
POSITIVES = LabelTable.from_dense([[1, -1], [-1, 1], [1, -1], [-1, -1]])


def test_the_strongest_rule_that_the_labels_support_is_chosen() -> None:
    chosen = [choose_selection(table, None) for table in (FULL, HALF, POSITIVES, None)]
    assert [each.rule for each in chosen] == ["clean", "known", "observed", "last"]
    assert chosen[-1].score(None) is None
    with pytest.raises(InputError, match="observed"):
        choose_selection(FULL, None, "best")


def test_the_hidden_truth_of_val_is_used_only_when_clean_is_asked_for() -> None:
    assert choose_selection(POSITIVES, FULL).rule == "observed"
    assert choose_selection(POSITIVES, FULL, "clean").labels is FULL


@pytest.mark.parametrize(("table", "asked"), [(POSITIVES, "clean"), (POSITIVES, "known"), (None, "clean")])
def test_a_rule_that_the_labels_do_not_support_is_refused(table: LabelTable | None, asked: str) -> None:
    with pytest.raises(InputError, match=asked):
        choose_selection(table, None, asked)


@pytest.mark.parametrize("labels", [[[1, 1], [1, 1]], [[1, 0], [1, 0]], [[1, -1], [1, -1]], [[-1, -1], [-1, -1]]])
def test_a_val_in_which_no_class_can_be_ranked_chooses_nothing(labels: list[list[int]]) -> None:
    table = LabelTable.from_dense(labels)
    assert choose_selection(table, None).rule == "last"
    for asked in ("clean", "observed"):
        with pytest.raises(InputError, match=asked):
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


def test_scores_that_are_not_finite_say_that_training_has_diverged() -> None:
    scores = np.full((4, 2), np.nan, dtype=np.float32)
    with pytest.raises(RunError, match="diverged"):
        choose_selection(FULL, None).score(scores)


def test_a_search_weighs_a_class_by_its_known_presents() -> None:
    scores = np.random.default_rng(1).normal(size=(4, 2)).astype(np.float32)
    observed = POSITIVES.to_dense() == 1
    each = [average_precision(scores[:, [k]], observed[:, [k]]) for k in range(2)]
    found = selection_score(choose_selection(POSITIVES, None), scores)
    assert found == pytest.approx(np.average(each, weights=observed.sum(0)))
