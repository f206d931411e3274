"""Figures hold the numbers they were given, and nothing else."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

import labelgap.reporting
from labelgap.reporting.pages.study import StudyRow, method_map_figure
from labelgap.reporting.sections.classes import MAX_BARS, average_precision_bars
from labelgap.reporting.sections.curves import learning_curves, selection_score_name
from labelgap.reporting.sections.label_scores import (
    LabelScores,
    absolute_logit_panels,
    positive_loss_figure,
    probability_panels,
)
from labelgap.reporting.sections.memorization import LabelLosses, Losses, memorization_panels, single_label_panels
from labelgap.reporting.sections.modified_labels import ModifiedLabels, modified_label_panels
from labelgap.reporting.sections.separability import (
    BINS,
    UnknownPositives,
    class_separability,
    score_density_figure,
    unknown_positive_bars,
)
from labelgap.reporting.style import NARROW, inline_svg


def drawn(figure: Figure, axis: int, line: int = 0) -> list[float]:
    return [float(value) for value in np.asarray(figure.axes[axis].lines[line].get_ydata())]


def texts(figure: Figure, axis: int = 0) -> list[str]:
    return [text.get_text() for text in figure.axes[axis].texts]


def some_memorization(scale: float = 1.0) -> Losses:
    return {"TN": some_losses(scale, 0.6, 0.3, 0.1), "FN": some_losses(scale, 2.0, 1.5, 0.4)}


def some_losses(scale: float, *mean: float) -> LabelLosses:
    numbers, values = np.arange(2), scale * np.array(mean)
    return LabelLosses(9, values, 0.5, numbers, numbers, np.stack([values, 2 * values], 1).astype(np.float32))


def some_modified(share: float = 0.1, precision: float = 0.8, recall: float = 0.3) -> ModifiedLabels:
    return ModifiedLabels(np.array([0, share]), np.array([np.nan, precision]), np.array([0, recall]), 0.25)


def some_scores(probability: float = 0.3) -> LabelScores:
    quartiles = np.array([[1.0, 2.0, 3.0], [2.0, 4.0, 5.0]])
    return LabelScores(9, np.array([2.0, 1.0]), quartiles, 2, np.eye(BINS)[6], probability)


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
    figure = average_precision_bars({"cat": 0.2, "dog": float("nan"), "owl": 0.9}, 0.55)
    bars = [patch.get_width() for patch in figure.axes[0].patches]  # type: ignore[attr-defined]
    assert bars == pytest.approx([90, 20])
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["owl", "cat"]


def test_of_very_many_classes_the_best_and_the_worst_are_drawn_and_the_rest_is_counted() -> None:
    figure = average_precision_bars({f"class {number}": number / 1000 for number in range(1000)})
    widths = [patch.get_width() for patch in figure.axes[0].patches]  # type: ignore[attr-defined]
    assert len(widths) == MAX_BARS
    assert (max(widths), min(widths)) == pytest.approx((99.9, 0))
    assert "… 940 more classes between …" in texts(figure)


def study_row(label: str, value: float | None, extra_labels: bool = False) -> StudyRow:
    return StudyRow(label, "", extra_labels, False, True, value, 2, 2, "", ())


def test_methods_are_dots_and_a_ceiling_is_a_line_apart() -> None:
    figure = method_map_figure(
        [
            study_row("an", 0.6),
            study_row("unmeasured", None),
            study_row("ll-r", 0.7),
            study_row("all labels", 0.9, True),
        ]
    )
    dots, ceiling = figure.axes[0].lines
    assert list(np.asarray(dots.get_xdata())) == pytest.approx([60, 70])
    assert list(np.asarray(ceiling.get_xdata())) == pytest.approx([90, 90])
    assert texts(figure) == ["60.0", "70.0", "all labels 90.0"]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["an", "ll-r"]


def test_scores_of_labels_are_drawn_by_kind_and_without_truth_as_observed_and_unknown() -> None:
    known = {"observed": some_scores(0.6), "unknown_present": some_scores(), "unknown_absent": some_scores()}
    loss = positive_loss_figure({"an": known, "complete": {"observed": some_scores()}})  # type: ignore[dict-item]
    assert [drawn(loss, 0, line) for line in range(2)] == [[2, 1]] * 2
    for kinds in (known, {"observed": some_scores(0.6), "unknown": some_scores()}):
        logits = absolute_logit_panels({"an": kinds, "ll-r": kinds})  # type: ignore[dict-item]
        assert [drawn(logits, axis, line) for axis in range(2) for line in range(2)] == [[2, 4]] * 4
        probabilities = probability_panels({"an": kinds})  # type: ignore[dict-item]
        axis = probabilities.axes[0]
        assert [np.asarray(line.get_xdata()).tolist() for line in axis.lines] == [[0.6, 0.6], [0.3, 0.3]]
        assert axis.get_ylim()[1] == pytest.approx(106) and axis.get_xlabel() == "score"


def test_the_most_and_least_separable_classes_are_drawn_with_their_area_and_the_rest_is_counted() -> None:
    labels = np.repeat(np.array([[1], [0]] * 5), 30, axis=1)
    scores = np.full((10, 30), 0.5)
    scores[:, 0] = np.where(labels[:, 0] == 1, 0.9, 0.1)
    scores[:, 29] = 1 - scores[:, 0]
    figure = score_density_figure({"test": class_separability(scores, labels)})
    assert figure.axes[0].get_xlabel() == "score", "it is the sigmoid of a logit, which nothing calibrates"
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert len(names) == 12 and names[0] == "0" and names[-1] == "29"
    areas = [text for text in texts(figure) if text.startswith("AUC")]
    assert areas[0] == "AUC 1.00" and areas[-1] == "AUC 0.00" and areas[1:-1] == ["AUC 0.50"] * 10
    assert "… 18 more classes between …" in texts(figure)
    assert len(figure.axes[0].patches) == 24


def test_bars_of_unknown_positives_are_in_percent_and_sorted() -> None:
    figure = unknown_positive_bars(UnknownPositives(("a", "b", "c"), np.array([10, 10, 0]), np.array([1, 4, 0])))
    assert [patch.get_width() for patch in figure.axes[0].patches] == pytest.approx([40, 10])  # type: ignore[attr-defined]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["b", "a"]
    assert "dashed: all classes, 25.0" in figure.axes[0].get_xlabel()


def test_any_name_can_be_drawn() -> None:
    names = ("$\\frac{$", "<b>&", "a\nb\x00c", "日本 🦉", "x" * 300)
    for figure in (
        average_precision_bars(dict.fromkeys(names, 0.5)),
        method_map_figure([study_row(name, 0.5 + 0.1 * extra, extra) for name in names for extra in (False, True)]),
        memorization_panels({name: some_memorization() for name in names}),
        modified_label_panels(dict.fromkeys(names, some_modified())),
        probability_panels({name: {"observed": some_scores(), "unknown": some_scores()} for name in names}),
        unknown_positive_bars(UnknownPositives(names, np.full(5, 2), np.ones(5, dtype=np.int64))),
    ):
        text = inline_svg(figure, "f1", "any name")
        assert "日本 🦉" in text and "a b c" in text and "\\frac{" in text and "&lt;b&gt;&amp;" in text


def test_no_module_of_the_package_touches_the_global_state_of_pyplot() -> None:
    for path in Path(labelgap.reporting.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import | ast.ImportFrom):
                assert "pyplot" not in ast.unparse(node), path.name
