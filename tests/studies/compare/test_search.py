"""The settings that a comparison searches by itself, and the baseline that stands in it."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from tests.studies.compare.small_features import CLASSES, features

from labelgap.data.dataset import Dataset
from labelgap.labels import LabelTable
from labelgap.reporting import write_report
from labelgap.reporting.pages.comparison import comparison_notes, setting_columns
from labelgap.studies.compare import Comparison, compare
from labelgap.studies.compare import heads as compare_heads
from labelgap.studies.compare.heads import StoredHead
from labelgap.studies.compare.results import MethodResult
from labelgap.studies.compare.settings import SHORT, method_names
from labelgap.training.fit import fit
from labelgap.training.heads import HeadPlan


def run(data: Dataset, names: Any, out: Path, **settings: Any) -> Comparison:
    given = {"seeds": 2, "baseline": False, "device": "cpu", "quiet": True, **settings}
    return compare(data, names, out=out, **given)


def by_method(made: Comparison) -> dict[str, MethodResult]:
    return {row.method: row for row in made.methods}


def test_settings_are_searched_on_val_as_fit_searches_them(tmp_path: Path) -> None:
    data = features()
    rows = by_method(run(data, ["an", "role"], tmp_path / "c", seeds=1, epochs=3))
    for name, row in rows.items():
        single = fit(data, name, out=tmp_path / name, epochs=3, device="cpu", quiet=True, trace="off")
        chosen = single.config
        assert (row.weight_decay, row.lr, row.optimizer) == (chosen.weight_decay, chosen.lr, chosen.optimizer)
        assert row.standardize and row.settings_tried == len(single.metrics["search"]["compared"])
        assert row.seeds[0].epoch == single.metrics["best_epoch"]
        assert row.seeds[0].value == pytest.approx(single.metrics["test"]["map"], abs=1e-3)
    assert rows["an"].optimizer == "newton" and rows["role"].optimizer == "adam"


def test_what_is_given_is_not_searched(tmp_path: Path) -> None:
    given = {"learning_rates": [0.02], "weight_decays": [1e-3, 1e-2], "standardize": False, "batch_sizes": [32]}
    (row,) = run(features(), ["an"], tmp_path / "c", epochs=2, **given).methods
    assert (row.lr, row.batch_size, row.optimizer, row.standardize) == (0.02, 32, "adam", False)
    assert row.settings_tried == 2 and row.weight_decay in (1e-3, 1e-2)


@pytest.mark.parametrize("splits", [("val", "test"), ("test",)], ids=["val", "folds"])
def test_a_grid_is_extended_at_its_edge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, splits: tuple[str, ...]
) -> None:
    monkeypatch.setattr("labelgap.training.auto.STRENGTHS", (300.0, 3000.0))
    made = run(features(splits=splits), ["an"], tmp_path / "c", seeds=1)
    decays = {trial["weight_decay"] for trial in made.trials}
    assert {5.0, 50.0} < decays and (min(decays) < 2 or max(decays) > 150)


def test_a_choice_at_the_edge_is_told_everywhere(tmp_path: Path) -> None:
    lowest = {"weight_decays": [1e-5, 1.0], "learning_rates": [1e-4, 1e-2]}
    made = run(features(), ["role", "an"], tmp_path / "c", epochs=2, grid="small", **lowest)
    row = made.methods[0]
    assert row.at_edge["lr"] == "highest" and row.at_edge["weight_decay"] in ("lowest", "highest")
    assert Comparison.open(made.path).methods == made.methods
    with (made.path / "compare.csv").open(encoding="utf-8") as file:
        assert "lr=highest" in next(csv.DictReader(file))["at_edge"]
    assert any("*" in cell for cell in [cells[0] for cells in setting_columns(made).values()])
    notes = " ".join(comparison_notes(made))
    assert "* the lowest or highest value that was compared" in notes
    assert ("° the last epoch" in notes) == any("epoch" in each.at_edge for each in made.methods)
    page = write_report(made).read_text(encoding="utf-8")
    assert "1e-2*" in page and "the lowest or highest value that was compared" in page
    (one,) = run(features(), ["an"], tmp_path / "d", learning_rates=[1e-2], weight_decays=[0.0], epochs=2).methods
    assert not {"lr", "weight_decay"} & one.at_edge.keys(), "nothing was compared"


@pytest.mark.parametrize("splits", [("val", "test"), ("test",)], ids=["val", "folds"])
def test_the_baseline_is_that_of_scikit_learn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, splits: tuple[str, ...]
) -> None:
    heads: list[tuple[HeadPlan, StoredHead]] = []
    real = vars(compare_heads)["_write"]

    def written(path: Path, result: Any, seconds: float) -> Any:
        heads.append((result.plan, real(path, result, seconds)))
        return heads[-1][1]

    monkeypatch.setattr(compare_heads, "_write", written)
    data = features(splits=splits)
    made = run(data, ["em"], tmp_path / "c", baseline=True)
    row = by_method(made)["logistic regression"]
    assert row.baseline and row.gap is not None and row.settings_tried > 7 and row.standardize
    assert len(set(row.values)) == 1 and not by_method(made)["em"].baseline
    train, labels = data.train.images.vectors, data.train.labels.to_dense()  # type: ignore[attr-defined]
    scaled = StandardScaler().fit_transform(train.astype(np.float64))
    chosen = [head for plan, head in heads if (plan.method, plan.weight_decay) == ("an", row.weight_decay)]
    weight, bias = chosen[0].weights()
    scores = train @ weight.numpy().T + bias.numpy()
    for number in range(len(CLASSES)):
        peer = LogisticRegression(C=1 / (row.weight_decay * labels.size), tol=1e-8, max_iter=1000)
        peer.fit(scaled, labels[:, number] == 1)
        np.testing.assert_allclose(scores[:, number], peer.decision_function(scaled), atol=2e-3)
    heads.clear()
    again = run(data, ["em"], tmp_path / "c", baseline=True)
    assert not heads and [row.values for row in again.methods] == [row.values for row in made.methods]


def test_the_short_list_depends_on_what_is_known() -> None:
    presents, both = LabelTable.from_dense([[1, -1]]), LabelTable.from_dense([[1, -1], [-1, 0]])
    assert method_names("short", both) == list(SHORT)
    assert method_names("short", presents) == [name for name in SHORT if name != "iu"]
    assert "bce" in method_names("short", LabelTable.from_dense([[1, 0]]))
    assert set(method_names("short")) < set(method_names("all"))
