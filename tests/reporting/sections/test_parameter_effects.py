"""Curves and the effect of a hyperparameter: val, test and best epoch, from rows, trials and runs made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.reporting.conftest import EPOCHS, Recipe, make_run, make_study
from tests.reporting.pages.test_comparison_page import BEST, comparison

from labelgap.data.dataset import Dataset
from labelgap.reporting import epoch_scores, parameter_effects, write_report
from labelgap.reporting.sections.curves import scores_of_seeds
from labelgap.reporting.sections.parameter_effects import _study_effects
from labelgap.studies.compare.results import Comparison, GapToBest, MethodResult, SeedResult
from labelgap.studies.sweep.results import Sweep, SweepTrial
from labelgap.studies.sweep.search_space import Parameter


def row(variant: dict[str, Any], val: list[float], test: list[float], epochs: list[int]) -> MethodResult:
    seeds = tuple(
        SeedResult(seed, None, value, epoch, score, {"map": value}, None, 1.0, (0.1, score))
        for seed, (score, value, epoch) in enumerate(zip(val, test, epochs, strict=True))
    )
    gap = GapToBest(0.1, 0.2)
    return MethodResult("ll-ct", variant, 1e-3, 16, "1 present", False, 2, 3.0, seeds, gap, variant=variant)


def varied(path: Path) -> Comparison:
    """Two values of δ and of another option: 0.2 is best with base=all, 0.5 with base=unknown."""
    return comparison(
        path,
        BEST,
        row({"delta_rel": 0.5, "base": "all"}, [0.5, 0.52], [0.40, 0.42], [9, 9]),
        row({"delta_rel": 0.5, "base": "unknown"}, [0.6, 0.62], [0.30, 0.34], [2, 4]),
        row({"delta_rel": 0.2, "base": "all"}, [0.8, 0.82], [0.70, 0.72], [5, 6]),
        row({"delta_rel": 0.2, "base": "unknown"}, [0.7, 0.72], [0.90, 0.92], [7, 7]),
    )


def test_a_value_is_shown_with_its_best_setting_on_val_whatever_test_says(tmp_path: Path) -> None:
    delta, base = parameter_effects(varied(tmp_path))
    assert (delta.method, delta.name, delta.values, delta.val_name) == ("ll-ct", "delta_rel", (0.2, 0.5), "val mAP")
    assert delta.val.tolist() == [[0.8, 0.82], [0.6, 0.62]] and delta.epoch.tolist() == [[5, 6], [2, 4]]
    assert delta.test.tolist() == [[0.70, 0.72], [0.30, 0.34]], "not 0.90, the best on test"
    assert delta.tried.tolist() == [2, 2] and delta.numeric
    assert base.values == ("all", "unknown") and not base.numeric
    assert parameter_effects(comparison(tmp_path, BEST)) == [], "nothing varies"
    varied(tmp_path).write()
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert all(number in page for number in ("81.00 ± 1.41", "71.00 ± 1.41", "5.5 ± 0.7"))
    assert "epoch-scores.csv" in page


def test_the_trials_of_a_sweep_have_no_test_and_pruned_ones_do_not_count(tmp_path: Path) -> None:
    space = (Parameter("lr", (1e-3, 1e-2)), Parameter("delta_rel", (), 0.1, 0.5))
    found = [(1e-3, 0.1, 0.6, "complete"), (1e-3, 0.3, 0.8, "complete"), (1e-2, 0.3, 0.7, "complete")]
    found.append((1e-2, 0.2, 0.99, "pruned"))
    trials = tuple(
        SweepTrial(number, {"lr": lr, "delta_rel": delta}, state, score, number + 1, 5)  # type: ignore[arg-type]
        for number, (lr, delta, score, state) in enumerate(found)
    )
    about: Any = ("tags", {"train": 9}, "linear", "features", 5, "observed", space, 4, "sqlite:///x", "x", {}, trials)
    rate, delta = parameter_effects(Sweep(tmp_path, "ll-ct", *about))
    assert rate.values == (1e-3, 1e-2) and rate.val.tolist() == [[0.8], [0.7]] and rate.tried.tolist() == [2, 1]
    assert delta.values == (0.1, 0.3) and delta.val.tolist() == [[0.6], [0.8]] and delta.epoch.tolist() == [[1], [2]]
    assert np.isnan(delta.test).all() and delta.val_name == "observed ranking of val"


def test_runs_that_differ_in_one_option_and_in_seeds_show_its_effect(tmp_path: Path, data: Dataset) -> None:
    recipes = {
        f"d{delta}-{seed}": Recipe(options={"delta_rel": delta}, skill=skill, seed=seed)
        for delta, skill in ((0.2, 3.0), (0.1, 1.0))
        for seed in (0, 1)
    }
    study = make_study(tmp_path / "deltas", data, an=Recipe(method="an"), **recipes)
    (effect,) = parameter_effects(study)
    assert (effect.method, effect.name, effect.values) == ("ll-r", "delta_rel", (0.1, 0.2))
    measured = {member.label: run.metrics["test"]["map"] for member, run in study.runs}
    expected = [[measured[f"d{delta}-{seed}"] for seed in (0, 1)] for delta in (0.1, 0.2)]
    assert effect.test.tolist() == expected and effect.epoch.tolist() == [[3, 3]] * 2
    for name in ("study.json", "manifest.json"):  # any folder of runs is a study, too
        (study.path / name).unlink()
    page = write_report(study.path).read_text(encoding="utf-8")
    assert "ll-r: delta_rel" in page and "Epoch by epoch" in page and "The runs of deltas" in page


def test_runs_that_differ_in_two_settings_show_no_effect(tmp_path: Path, data: Dataset) -> None:
    other = Recipe(options={"delta_rel": 0.3}, select="observed")
    study = make_study(tmp_path / "s", data, a=Recipe(), b=other)
    assert parameter_effects(study) == []
    runs = [run for _, run in study.runs]
    for number, run in enumerate(runs):  # the same settings on other data
        run.config = runs[0].config.model_copy(update={"data": {"name": "csv", "path": f"{number}.csv"}})
    assert _study_effects(runs) == []


def test_runs_have_the_scores_of_their_history_and_test_once(tmp_path: Path, data: Dataset) -> None:
    study = make_study(tmp_path / "s", data, an=Recipe(method="an"), last=Recipe(select="last"))
    found = epoch_scores(study)
    assert list(found) == ["an"], "under `last` val is not scored"
    expected = [[0.5 + 0.05 * epoch - 0.008 * epoch**2 for epoch in range(1, EPOCHS + 1)]]
    assert found["an"].scores.tolist() == expected and found["an"].epochs.tolist() == [1, 2, 3, 4, 5, 6]
    assert found["an"].best.tolist() == [3] and found["an"].name == "val mAP"
    run = study.run(study.members[0])
    assert found["an"].test.tolist() == [run.metrics["test"]["map"]]
    assert not epoch_scores({"a": make_run(tmp_path / "open", data, Recipe(finished=False))})


def test_seeds_that_stopped_early_count_as_far_as_they_went() -> None:
    found = scores_of_seeds([[0.2, 0.4, 0.3], [0.6]], [2, 1], [0.5, None], "val mAP")
    assert found is not None and found.mean.tolist() == pytest.approx([0.4, 0.4, 0.3])
    assert np.isnan(found.scores[1, 1:]).all() and np.isnan(found.test[1])
    assert scores_of_seeds([[0.2], []], [1, 1], [None, None], "val mAP") is None
    assert scores_of_seeds([], [], [], "val mAP") is None
