from __future__ import annotations

import numpy as np
import pytest
from benchmarks import simulated_review
from benchmarks.simulated_review import linear_config, simulate_decisions, simulate_review, train_and_measure
from tests.audit.small_runs import write

import labelgap as lg
from labelgap.audit.candidates import CandidateLimits

CONFIGS = [linear_config("em", {}, rate, epochs=4, batch_size=16) for rate in (0.02, 0.005)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> lg.Dataset:
    return lg.load("features", write(tmp_path_factory.mktemp("loop")))


def test_orders_decide_the_same_labels_and_the_one_that_learns_finds_most(data: lg.Dataset) -> None:
    truth, observed = data.train.truth, data.train.labels
    assert truth is not None
    unknown = observed.counts().total[2]
    audit = simulated_review.audit_once(data, CONFIGS[0], CandidateLimits(10**6, 10**6, 1.0), folds=2)
    orders: tuple[simulated_review.DecisionOrder, ...] = ("fixed", "live", "classifier", "random")
    decided = {order: simulate_decisions(data, audit, unknown, order, every=40) for order in orders}
    for part in decided.values():
        assert np.array_equal(part.values, truth.codes_at(part.rows, part.columns))
        assert part.labels(observed, unknown) == truth and len(part.found) == unknown
    assert np.array_equal(decided["fixed"].rows, audit.missing.rows)
    assert np.array_equal(decided["random"].rows, audit.random.rows)
    area = {order: int(part.found.sum()) for order, part in decided.items()}
    assert area["live"] > area["fixed"] > area["classifier"] and area["fixed"] > area["random"]
    informed = simulated_review.informed_order(
        data, audit, linear_config("bce", {}, 0.02, epochs=4, batch_size=16), folds=2
    )
    best = simulate_decisions(data, informed, unknown, "fixed")
    assert best.labels(observed, unknown) == truth and int(best.found.sum()) > area["fixed"]
    again = simulate_decisions(data, audit, 100, "live", every=40)
    assert np.array_equal(again.rows, decided["live"].rows[:100])
    assert decided["live"].labels(observed, 7).counts().total[2] == unknown - 7
    tables = [observed, truth]
    whole = train_and_measure(data, CONFIGS[:1], truth)
    assert simulated_review.measure_labels(data, tables, CONFIGS[0])[1] == pytest.approx(whole.test, abs=1e-6)


def test_an_audit_finds_more_than_random_order_and_a_full_review_equals_full_labels(data: lg.Dataset) -> None:
    assert data.train.truth is not None
    (present, _, unknown), truth = data.train.labels.counts().total, data.train.truth
    audited = simulate_review(data, CONFIGS, (60, 150, unknown), folds=3)
    random = simulate_review(data, CONFIGS, (60, 150), "random")
    assert [point.reviewed for point in audited] == [0, 60, 150, unknown]
    assert audited[0] == random[0] and audited[3].found == truth.counts().total[0] - present
    assert audited[1].found > 1.5 * random[1].found and audited[2].found > 1.3 * random[2].found
    assert audited[3].test == pytest.approx(train_and_measure(data, CONFIGS, truth).test, abs=1e-6)
