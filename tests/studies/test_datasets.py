"""Methods on several data sets: ranks and tests against their formulas, and the command."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chi2
from tests.cli.conftest import call
from tests.studies.compare.small_features import arrays, write

from labelgap.core.errors import InputError, RunError
from labelgap.reporting import critical_difference_figure, dataset_method_table, write_report
from labelgap.reporting.pages.datasets import ranking_findings
from labelgap.studies.datasets import DatasetComparison, compare_datasets, rank_methods
from labelgap.verification import accept_changes, verify_run

AUC: dict[
    str, tuple[float, ...]
] = {  # of C4.5 with two parameters tuned or not (Demšar 2006, table 6, which ranks 0.9751, printed as 0.975, higher)
    "C4.5": (0.763, 0.599, 0.954, 0.628, 0.882, 0.936, 0.661, 0.583, 0.775, 1.0, 0.940, 0.619, 0.972, 0.957),
    "m": (0.768, 0.591, 0.971, 0.661, 0.888, 0.931, 0.668, 0.583, 0.838, 1.0, 0.962, 0.666, 0.981, 0.978),
    "cf": (0.771, 0.590, 0.968, 0.654, 0.886, 0.916, 0.609, 0.563, 0.866, 1.0, 0.965, 0.614, 0.9751, 0.946),
    "m+cf": (0.798, 0.569, 0.967, 0.657, 0.898, 0.931, 0.685, 0.625, 0.875, 1.0, 0.962, 0.669, 0.975, 0.970),
}


def reference(values: dict[str, tuple[float, ...]]) -> tuple[NDArray[np.float64], float]:
    """Average ranks, and the p-value of Friedman's statistic with its correction for ties, from the formulas."""
    table = -np.array(list(values.values())).T
    ranks = (table[:, :, None] > table[:, None, :]).sum(axis=2) + (
        (table[:, :, None] == table[:, None, :]).sum(axis=2) + 1
    ) / 2
    datasets, methods = ranks.shape
    statistic = (
        12 * datasets / (methods * (methods + 1)) * ((ranks.mean(axis=0) ** 2).sum() - methods * (methods + 1) ** 2 / 4)
    )
    ties = sum((count**3 - count) for row in table for count in np.unique(row, return_counts=True)[1])
    statistic /= 1 - ties / (datasets * (methods**3 - methods))
    return ranks.mean(axis=0), float(chi2.sf(statistic, methods - 1))


def test_ranks_and_tests_are_those_of_the_formulas() -> None:
    ranking, (average, p_value) = rank_methods(AUC), reference(AUC)
    assert dict(zip(ranking.methods, ranking.average, strict=True)) == pytest.approx(
        dict(zip(AUC, average, strict=True))
    )
    assert ranking.average == pytest.approx([1.964, 2.0, 2.893, 3.143], abs=5e-4), "those of the paper"
    assert ranking.p_value == pytest.approx(p_value) and ranking.differ
    assert ranking.critical_difference == pytest.approx(2.569 * math.sqrt(4 * 5 / (6 * 14)), abs=1e-3), "the paper's q"
    assert ranking.groups == [(0, 3)], "3.143 - 1.964 is below 1.25"
    assert "none is behind `m+cf`" in ranking_findings(ranking)[0]


@pytest.mark.parametrize(("methods", "quantile"), [(2, 1.960), (3, 2.343), (5, 2.728), (10, 3.164)])
def test_the_critical_difference_has_the_tabled_quantiles(methods: int, quantile: float) -> None:
    ranking = rank_methods({f"{number}": [number, number + 1.0] for number in range(methods)})
    assert ranking.critical_difference == pytest.approx(quantile * math.sqrt(methods * (methods + 1) / 12), rel=1e-3)


def test_methods_far_apart_are_in_different_groups_and_too_few_are_not_tested() -> None:
    ranking = rank_methods({name: [place + 0.01 * number for number in range(12)] for place, name in enumerate("abcd")})
    assert ranking.methods == ("d", "c", "b", "a") and ranking.groups == [(0, 1), (1, 2), (2, 3)]
    assert "`d` is better than `b`, `a`" in ranking_findings(ranking)[0]
    assert len(critical_difference_figure(ranking).axes[0].lines) == 1 + 4 + 1 + 3 + 4
    assert rank_methods({"a": [1.0, 2.0], "b": [2.0, 1.0]}).p_value is None
    same = rank_methods({name: [1.0, 2.0] for name in "abc"})
    assert same.p_value == 1.0 and same.average.tolist() == [2.0, 2.0, 2.0] and not same.differ


def test_the_command_compares_on_every_data_set_into_one_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LABELGAP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("one", "two"):
        Path(name).mkdir()
        write(Path(name) / "vectors.npz")
    stored = arrays(seed=3)
    np.savez("other_3.npz", **stored, train_observed=stored["train_truth"])  # type: ignore[arg-type]
    data = ("one/vectors.npz", "other_3.npz", "two/vectors.npz")
    asked = ("--methods", "an,em,bce", "--epochs", "1", "--seeds", "2", "--lr", "1e-2", "--device", "cpu")
    assert call("compare", *data, *asked) == 0
    said = capsys.readouterr().out
    assert all(len(line) <= 80 for line in said.partition("3 data sets")[2].splitlines()) and "Friedman's test" in said
    found = DatasetComparison.open("runs/compare")
    assert [member.label for member in found.members] == ["vectors", "other_3", "vectors-3"]
    means = {name: [row.mean for row in each.methods] for name, each in found.comparisons.items()}
    assert means["vectors"] == means["vectors-3"] != means["other_3"]
    assert {*found.ranking.methods} == {"an", "em", "logistic regression"} and found.ranking.datasets == 3
    table = dataset_method_table(found)
    assert [row.label for row in table.rows if row.apart] == ["bce"], "it saw hidden labels of two of the three"
    an = next(row for row in table.rows if row.label == "an")
    rows = {row.name: row for row in found.comparisons["other_3"].methods}
    assert an.cells[1].mean == 100 * (rows["an"].mean or 0) and an.cells[-1].mean is not None
    assert {path.name for path in Path("runs/compare/tables").iterdir()} == {"methods.csv", "methods.md", "methods.tex"}
    assert verify_run("runs/compare").intact and verify_run("runs/compare").finished
    Path("runs/compare/tables/methods.md").write_text("other", encoding="utf-8")
    assert [file.name for file in verify_run("runs/compare").problems] == ["tables/methods.md"]
    accept_changes("runs/compare")
    assert verify_run("runs/compare").intact and write_report("runs/compare").exists()
    assert call("compare", *data, "--train-share", "0.5") == 2
    shutil.rmtree("runs/compare/other_3")
    with pytest.raises(RunError):
        _ = DatasetComparison.open("runs/compare").ranking


def test_one_data_set_and_two_of_one_name_in_a_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="two or more"):
        compare_datasets([], out=tmp_path / "x")
    members = 2 * [{"label": "a", "folder": "a", "extra_labels": False}]
    (tmp_path / "datasets.json").write_text(json.dumps({"format": 1, "members": members}), encoding="utf-8")
    with pytest.raises(RunError):
        DatasetComparison.open(tmp_path)
