"""Curves show the means and the spread that they were given."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from matplotlib.colors import to_rgba_array

from labelgap.reporting import EpochScores, LabelBudget, ParameterEffect
from labelgap.reporting.pages.shares import label_budget_figure
from labelgap.reporting.sections.curves import MAX_CURVES, epoch_scores_figure
from labelgap.reporting.sections.parameter_effects import parameter_effect_figure
from labelgap.reporting.style import NARROW, WIDE


def effect(values: tuple[object, ...], test: bool = True) -> ParameterEffect:
    count = len(values)
    val = np.stack([np.linspace(0.5, 0.6, count), np.linspace(0.6, 0.7, count)], 1)
    measured = val - 0.1 if test else np.full_like(val, np.nan)
    epochs = np.stack([np.arange(count) + 1.0, np.arange(count) + 3.0], 1)
    return ParameterEffect("ll-ct", "delta_rel", values, val, measured, epochs, np.ones(count, dtype=int), "val mAP")


def drawn(axis: object, line: int = 0) -> list[float]:
    return [float(value) for value in np.asarray(axis.lines[line].get_ydata())]  # type: ignore[attr-defined]


def test_the_effect_of_numbers_has_means_bars_and_a_tick_for_each_value() -> None:
    figure = parameter_effect_figure(effect((0.1, 0.2, 0.5)))
    scores, epochs = figure.axes
    assert drawn(scores, 0) == pytest.approx([55, 60, 65]) and drawn(scores, 1) == pytest.approx([45, 50, 55])
    low, high = np.asarray(scores.collections[0].get_segments())[0][:, 1]  # type: ignore[attr-defined]
    assert (low, high) == pytest.approx((55 - 10 / np.sqrt(2), 55 + 10 / np.sqrt(2)))
    assert drawn(epochs) == [2, 3, 4] and scores.get_xscale() == "linear"
    assert [text.get_text() for text in scores.get_xticklabels()] == ["0.1", "0.2", "0.5"]


def test_wide_ranges_are_logarithmic_names_are_places_and_an_unmeasured_test_has_no_line() -> None:
    wide = parameter_effect_figure(effect((1e-4, 1e-3, 1e-2), test=False), width=NARROW)
    assert wide.axes[0].get_xscale() == "log" and len(wide.axes[0].lines) == 1
    named = parameter_effect_figure(effect(("all", "unknown", True)))
    assert [text.get_text() for text in named.axes[0].get_xticklabels()] == ["all", "unknown", "True"]


@pytest.mark.parametrize("width", [NARROW, WIDE])
@pytest.mark.parametrize(
    "values",
    [
        (1e-4, 0.00012345678, 3e-4, 0.00034, 1e-3, 0.0012, 0.0013, 0.01),
        (1, 2, 4, 8, 16, 32, 64, 1024),
        tuple(f"a long name {number}" for number in range(8)),
    ],
)
def test_labels_of_many_values_do_not_overlap(width: float, values: tuple[object, ...]) -> None:
    figure = parameter_effect_figure(effect(values), width=width)
    figure.draw_without_rendering()
    for axis in figure.axes:
        texts = [text for text in axis.get_xticklabels() if text.get_text()]
        boxes = [text.get_window_extent() for text in texts]
        if texts[0].get_rotation():
            assert len(texts) == len(values)
            step = np.diff([box.x1 for box in boxes]).min()
            assert step * np.sin(np.radians(texts[0].get_rotation())) > texts[0].get_fontsize()
        else:
            assert len(texts) >= 4 and all(left.x1 < right.x0 for left, right in pairwise(boxes))


def test_of_very_many_curves_the_highest_are_drawn_each_with_its_color_and_dash() -> None:
    curves = {
        f"method {number}": EpochScores(np.array([[0.1, number / 50]]), np.array([2]), np.array([np.nan]), "val mAP")
        for number in range(20)
    }
    (axis,) = epoch_scores_figure(curves).axes
    lines = [line for line in axis.lines if len(np.asarray(line.get_xdata())) == 2]
    assert len(lines) == MAX_CURVES and sorted(drawn(axis, 2 * number)[-1] for number in range(12)) == pytest.approx(
        [2.0 * number for number in range(8, 20)]
    )
    styles = {(*to_rgba_array(line.get_color())[0], str(line.get_linestyle())) for line in lines}
    assert len(styles) == MAX_CURVES


def test_the_axis_holds_the_band_of_seeds_that_differ_more_than_the_curves() -> None:
    scores = np.array([[0.22, 0.23, 0.22], [0.31, 0.31, 0.30]])
    curves = {
        name: EpochScores(scores + step, np.array([1, 1]), np.full(2, np.nan), "val mAP")
        for name, step in (("an", 0.0), ("role", 0.001))
    }
    (axis,) = epoch_scores_figure(curves).axes
    bottom, top = axis.get_ylim()
    assert bottom < 22.0 and top > 31.1


def test_labels_are_on_a_logarithmic_axis_and_more_labels_are_dashed() -> None:
    value = np.array([[0.5, 0.6], [0.7, 0.8]])
    few = LabelBudget(np.array([0.1, 1]), np.array([9, 90]), np.array([9.0, 90.0]), value, value, False)
    full = LabelBudget(few.share, few.images, 20 * few.known_labels, value, value, True)
    (axis,) = label_budget_figure({"an": few, "bce": full}).axes
    assert axis.get_xscale() == "log" and drawn(axis, 0) == pytest.approx([55, 75])
    assert np.asarray(axis.lines[1].get_xdata()).tolist() == [180, 1800]
    assert axis.lines[0].get_linestyle() == "-" and axis.lines[1].get_linestyle() == "--"
