"""Figures hold the numbers they were given, and nothing else."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

import labelgap.reporting
from labelgap.reporting.figures.memorization import memorization_panels, single_label_panels
from labelgap.reporting.figures.modified_labels import modified_label_panels
from labelgap.reporting.figures.run import MAX_BARS, average_precision_bars, learning_curves, selection_score_name
from labelgap.reporting.figures.study import method_map_figure
from labelgap.reporting.memorization import LabelLosses, Memorization
from labelgap.reporting.modified_labels import ModifiedLabels
from labelgap.reporting.style import NARROW, inline_svg


def drawn(figure: Figure, axis: int, line: int = 0) -> list[float]:
    return [float(value) for value in np.asarray(figure.axes[axis].lines[line].get_ydata())]


def texts(figure: Figure, axis: int = 0) -> list[str]:
    return [text.get_text() for text in figure.axes[axis].texts]


def some_memorization(scale: float = 1.0) -> Memorization:
    return Memorization(None, some_losses(scale, 0.6, 0.3, 0.1), some_losses(scale, 2.0, 1.5, 0.4))


def some_losses(scale: float, *mean: float) -> LabelLosses:
    numbers, values = np.arange(2), scale * np.array(mean)
    return LabelLosses(9, values, 0.5, numbers, numbers, np.stack([values, 2 * values], 1).astype(np.float32))


def some_modified(share: float = 0.1, precision: float = 0.8, recall: float = 0.3) -> ModifiedLabels:
    return ModifiedLabels(np.array([0, share]), np.array([np.nan, precision]), np.array([0, recall]), 0.25)


def test_learning_curves_draw_loss_and_score_of_every_epoch_and_mark_the_chosen_one() -> None:
    figure = learning_curves([0.9, 0.5, 0.4], [0.2, 0.6, 0.5], rule="val mAP", chosen=2)
    assert drawn(figure, 0) == [0.9, 0.5, 0.4]
    assert drawn(figure, 1) == pytest.approx([20, 60, 50])
    marked = figure.axes[1].lines[2]
    assert np.asarray(marked.get_xdata()).tolist() == [2]
    assert np.asarray(marked.get_ydata()).tolist() == pytest.approx([60])
    assert texts(figure, 1) == ["epoch 2: 60.0"]
    assert figure.axes[1].get_title(loc="left") == "val mAP"


def test_learning_curves_start_at_epoch_0_where_the_linear_head_was_scored() -> None:
    figure = learning_curves([float("nan"), 0.5, 0.4], [0.7, 0.6, 0.5], chosen=0, first=0)
    assert [np.asarray(axis.lines[0].get_xdata()).tolist() for axis in figure.axes] == [[0, 1, 2]] * 2
    assert texts(figure, 1) == ["epoch 0: 70.0"] and figure.axes[0].get_xlim()[0] < 0


def test_learning_curves_without_a_score_have_one_panel() -> None:
    assert len(learning_curves([0.9, 0.5]).axes) == 1


def test_a_score_that_is_missing_in_some_epochs_leaves_a_gap() -> None:
    figure = learning_curves([0.9, 0.5], [float("nan"), 0.5], chosen=1)
    assert np.isnan(drawn(figure, 1)[0])


@pytest.mark.parametrize(
    ("rule", "name"),
    [("clean", "val mAP"), ("known", "val mAP, 3 of 4 classes"), ("observed", "observed ranking (not an accuracy)")],
)
def test_only_a_measured_score_is_called_an_accuracy(rule: str, name: str) -> None:
    assert selection_score_name(rule, 4 if rule == "clean" else 3, 4) == name


def test_memorisation_draws_false_and_true_negatives_of_each_method_on_shared_axes() -> None:
    figure = memorization_panels({"an": some_memorization(), "ll-r": some_memorization(2.0)})
    assert len(figure.axes) == 2
    for axis, scale in ((0, 1.0), (1, 2.0)):
        assert drawn(figure, axis, 0) == pytest.approx([scale * value for value in (2.0, 1.5, 0.4)])
        assert drawn(figure, axis, 1) == pytest.approx([scale * value for value in (0.6, 0.3, 0.1)])
        assert figure.axes[axis].get_ylim()[0] == 0 and figure.axes[axis].get_ylim()[1] > 4
    assert [axis.get_title(loc="left") for axis in figure.axes] == ["an", "ll-r"]


def test_panels_that_fill_no_row_leave_no_empty_axes_in_sight() -> None:
    figure = memorization_panels({str(number): some_memorization() for number in range(5)}, width=NARROW)
    assert sum(axis.get_visible() for axis in figure.axes) == 5


def test_single_labels_are_drawn_beside_the_mean_of_their_kind_on_a_shared_scale() -> None:
    figure = single_label_panels({"present": some_losses(1.0, 2.0, 1.0), "absent": some_losses(1.0, 0.5, 0.2)})
    assert [drawn(figure, 0, line) for line in range(3)] == [[2, 1], [4, 2], [2, 1]]
    assert drawn(figure, 1, 2) == [0.5, 0.2]
    assert [axis.get_ylim() for axis in figure.axes] == [pytest.approx((0, 4.24))] * 2


def test_modified_labels_are_drawn_in_percent_beside_what_chance_would_hit() -> None:
    figure = modified_label_panels({"ll-r": some_modified()})
    assert drawn(figure, 0) == [0, 10] and drawn(figure, 2) == [0, 30]
    assert np.isnan(drawn(figure, 1)[0])
    assert drawn(figure, 1)[1] == 80
    assert drawn(figure, 1, 1) == [25, 25]


def test_a_measure_of_modified_labels_that_nobody_knows_has_no_panel() -> None:
    figure = modified_label_panels({"ll-r": some_modified(precision=np.nan, recall=np.nan)}, width=NARROW)
    assert [axis.get_title(loc="left") for axis in figure.axes] == [
        "modified, % of unknown",
        "recall, % of truly present",
    ]


def test_bars_are_sorted_and_a_class_that_does_not_count_has_none() -> None:
    figure = average_precision_bars({"cat": 0.2, "dog": None, "owl": 0.9}, 0.55)
    bars = [patch.get_width() for patch in figure.axes[0].patches]  # type: ignore[attr-defined]
    assert bars == pytest.approx([90, 20])
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["owl", "cat"]


def test_of_very_many_classes_the_best_and_the_worst_are_drawn_and_the_rest_is_counted() -> None:
    figure = average_precision_bars({f"class {number}": number / 1000 for number in range(1000)})
    widths = [patch.get_width() for patch in figure.axes[0].patches]  # type: ignore[attr-defined]
    assert len(widths) == MAX_BARS
    assert (max(widths), min(widths)) == pytest.approx((99.9, 0))
    assert "… 940 more classes between …" in texts(figure)


def test_methods_are_dots_and_a_ceiling_is_a_line_apart() -> None:
    figure = method_map_figure({"an": 0.6, "unmeasured": None, "ll-r": 0.7}, {"all labels": 0.9})
    dots, ceiling = figure.axes[0].lines
    assert list(np.asarray(dots.get_xdata())) == pytest.approx([60, 70])
    assert list(np.asarray(ceiling.get_xdata())) == pytest.approx([90, 90])
    assert texts(figure) == ["60.0", "70.0", "all labels 90.0"]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["an", "ll-r"]


def test_any_name_can_be_drawn() -> None:
    names = ("$\\frac{$", "<b>&", "a\nb\x00c", "日本 🦉", "x" * 300)
    for figure in (
        average_precision_bars(dict.fromkeys(names, 0.5)),
        method_map_figure(dict.fromkeys(names, 0.5), dict.fromkeys(names, 0.6)),
        memorization_panels({name: some_memorization() for name in names}),
        modified_label_panels(dict.fromkeys(names, some_modified())),
    ):
        text = inline_svg(figure, "f1", "any name")
        assert "日本 🦉" in text and "a b c" in text and "\\frac{" in text and "&lt;b&gt;&amp;" in text


def test_no_module_of_the_package_touches_the_global_state_of_pyplot() -> None:
    for path in Path(labelgap.reporting.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import | ast.ImportFrom):
                assert "pyplot" not in ast.unparse(node), path.name
