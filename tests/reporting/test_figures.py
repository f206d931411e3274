"""Figures hold the numbers they were given, and nothing else; their names, their SVG, and their files for a paper."""

from __future__ import annotations

import ast
import csv
import os
import re
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image
from tests.reporting.conftest import RunMaker

import labelgap.reporting
from labelgap.core.errors import InputError, LabelGapError, RunError
from labelgap.data.dataset import Dataset, Split
from labelgap.data.images import FileImages
from labelgap.reporting import EpochScores, LabelBudget, ParameterEffect, write_report
from labelgap.reporting.page import FigureData, Page, ResponsiveFigure, write_figures
from labelgap.reporting.pages.shares import label_budget_figure
from labelgap.reporting.pages.study import method_map_figure
from labelgap.reporting.report import check_figure_folder
from labelgap.reporting.sections.classes import MAX_BARS, average_precision_bars
from labelgap.reporting.sections.curves import epoch_scores_figure, learning_curves
from labelgap.reporting.sections.label_scores import LabelScores, probability_panels
from labelgap.reporting.sections.memorization import LabelLosses, Losses, memorization_panels
from labelgap.reporting.sections.modified_labels import ModifiedLabels, modified_label_panels
from labelgap.reporting.sections.parameter_effects import parameter_effect_figure
from labelgap.reporting.sections.separability import (
    BINS,
    UnknownPositives,
    unknown_positive_bars,
)
from labelgap.reporting.style import BLUE, NARROW, TEXT_COLOR, WIDE, inline_svg
from labelgap.studies import Study


def drawn(figure: Figure, axis: int, line: int = 0) -> list[float]:
    return [float(value) for value in np.asarray(figure.axes[axis].lines[line].get_ydata())]


def texts(figure: Figure, axis: int = 0) -> list[str]:
    return [text.get_text() for text in figure.axes[axis].texts]


def some_memorization(scale: float = 1.0) -> Losses:
    return {"TN": some_losses(scale, 0.6, 0.3, 0.1), "FN": some_losses(scale, 2.0, 1.5, 0.4)}


def some_losses(scale: float, *mean: float) -> LabelLosses:
    return LabelLosses(9, scale * np.array(mean), 0.5)


def some_modified(share: float = 0.1, precision: float = 0.8, recall: float = 0.3) -> ModifiedLabels:
    return ModifiedLabels(np.array([0, share]), np.array([np.nan, precision]), np.array([0, recall]), 0.25)


def some_scores(probability: float = 0.3) -> LabelScores:
    quartiles = np.array([[1.0, 2.0, 3.0], [2.0, 4.0, 5.0]])
    return LabelScores(9, np.array([2.0, 1.0]), quartiles, 2, np.eye(BINS)[6], probability)


def test_a_figure_of_a_page_draws_the_numbers_beside_it(
    run_of: RunMaker, study: Study, data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every point of a curve and every bar, in percent or not."""
    found: list[ResponsiveFigure] = []
    monkeypatch.setattr("labelgap.reporting.report.write_figures", lambda figures, _: found.extend(figures))
    blind = run_of(folder="blind", truth=False, val=False, select="last")
    for what in (run_of(), blind, study):
        write_report(what, data=data, figures=tmp_path / "figures")
    drawn = Counter[str]()
    for figure, width in product(found, (WIDE, NARROW)):
        numbers = np.array([value for row in figure.data.rows for value in row if isinstance(value, int | float)])
        known = np.concatenate([numbers, 100 * numbers])
        for axis in figure.draw(width=width).axes:
            curves = [np.asarray(line.get_xydata()) for line in axis.lines]
            points = [value for curve in curves if len(curve) > 2 for value in curve.flat]
            bars = figure.name in ("average-precision", "unknown-positives")
            points += [patch.get_width() for patch in axis.patches if bars and isinstance(patch, Rectangle)]
            own = [value for value in points if np.isfinite(value) and not np.isclose(known, value, rtol=1e-4).any()]
            assert not own, figure.name
            drawn[figure.name] += len(points)
    assert {name for name, count in drawn.items() if count} == {
        *("average-precision", "calibration", "learning-curves", "memorization", "epoch-scores"),
        *("modified-labels-present", "observed-positive-loss", "absolute-logits", "unknown-positives", "gradients"),
    }


def test_learning_curves_start_at_epoch_0_where_the_linear_head_was_scored() -> None:
    figure = learning_curves([float("nan"), 0.5, 0.4], [0.7, 0.6, 0.5], chosen=0, first=0)
    assert [np.asarray(axis.lines[0].get_xdata()).tolist() for axis in figure.axes] == [[0, 1, 2]] * 2
    assert texts(figure, 1) == ["epoch 0: 70.0"] and figure.axes[0].get_xlim()[0] < 0
    assert len(learning_curves([0.9, 0.5]).axes) == 1
    assert np.isnan(drawn(learning_curves([0.9, 0.5], [float("nan"), 0.5], chosen=1), 1)[0])


def test_bars_are_sorted_and_a_class_that_does_not_count_has_none() -> None:
    figure = average_precision_bars({"cat": 0.2, "dog": float("nan"), "owl": 0.9}, 0.55)
    bars = [patch.get_width() for patch in figure.axes[0].patches]  # type: ignore[attr-defined]
    assert bars == pytest.approx([90, 20])
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["owl", "cat"]
    many = average_precision_bars({f"class {number}": number / 1000 for number in range(1000)})
    widths = [patch.get_width() for patch in many.axes[0].patches]  # type: ignore[attr-defined]
    assert len(widths) == MAX_BARS and (max(widths), min(widths)) == pytest.approx((99.9, 0))
    assert "… 940 more classes between …" in texts(many)


def effect(values: tuple[object, ...], test: bool = True) -> ParameterEffect:
    count = len(values)
    val = np.stack([np.linspace(0.5, 0.6, count), np.linspace(0.6, 0.7, count)], 1)
    measured = val - 0.1 if test else np.full_like(val, np.nan)
    epochs = np.stack([np.arange(count) + 1.0, np.arange(count) + 3.0], 1)
    return ParameterEffect("ll-ct", "delta_rel", values, val, measured, epochs, np.ones(count, dtype=int), "val mAP")


def test_the_effect_of_numbers_has_means_bars_and_a_tick_for_each_value() -> None:
    figure = parameter_effect_figure(effect((0.1, 0.2, 0.5)))
    scores = figure.axes[0]
    assert drawn(figure, 0) == pytest.approx([55, 60, 65]) and drawn(figure, 0, 1) == pytest.approx([45, 50, 55])
    low, high = np.asarray(scores.collections[0].get_segments())[0][:, 1]  # type: ignore[attr-defined]
    assert (low, high) == pytest.approx((55 - 10 / np.sqrt(2), 55 + 10 / np.sqrt(2)))
    assert drawn(figure, 1) == [2, 3, 4] and scores.get_xscale() == "linear"
    assert [text.get_text() for text in scores.get_xticklabels()] == ["0.1", "0.2", "0.5"]


def test_wide_ranges_are_logarithmic_names_are_places_and_an_unmeasured_test_has_no_line() -> None:
    wide = parameter_effect_figure(effect((1e-4, 1e-3, 1e-2), test=False), width=NARROW)
    assert wide.axes[0].get_xscale() == "log" and len(wide.axes[0].lines) == 1
    named = parameter_effect_figure(effect(("all", "unknown", True)))
    assert [text.get_text() for text in named.axes[0].get_xticklabels()] == ["all", "unknown", "True"]


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
    figure = label_budget_figure({"an": few, "bce": full})
    (axis,) = figure.axes
    assert axis.get_xscale() == "log" and drawn(figure, 0) == pytest.approx([55, 75])
    assert np.asarray(axis.lines[1].get_xdata()).tolist() == [180, 1800]
    assert axis.lines[0].get_linestyle() == "-" and axis.lines[1].get_linestyle() == "--"


def test_any_name_can_be_drawn() -> None:
    names = ("$\\frac{$", "<b>&", "a\nb\x00c", "日本 🦉", "x" * 300)
    for figure in (
        average_precision_bars(dict.fromkeys(names, 0.5)),
        method_map_figure(dict.fromkeys(names, 0.5), dict.fromkeys(names, 0.6)),
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


def test_a_page_keeps_its_figures_with_their_numbers_and_refuses_a_name_twice(drawn: None) -> None:
    page = Page()
    for name in ("loss", "loss-2"):
        page.figure(name, "loss", {"epoch": [1, 2], "loss": [2.0, 1.0]}, learning_curves, [2.0, 1.0])
    assert [figure.name for figure in page.figures] == ["loss", "loss-2"]
    assert 'id="f1w-' in page.figures[0].wide and 'id="f2n-' in page.figures[1].narrow
    assert page.figures[0].draw(width=3.0).get_size_inches()[0] == 3.0
    for name in ("loss", "../a", "A b"):
        with pytest.raises(ValueError, match=re.escape(repr(name))):
            page.figure(name, "loss", {"epoch": [1]}, learning_curves, [2.0, 1.0])


def test_numbers_are_short_unknown_ones_empty_and_names_harmless() -> None:
    columns: dict[str, Any] = {
        "class": ["=1+1", "a\nb", None],
        "value": np.array([0.1, np.nan, -2.0], dtype=np.float32),
        "mixed": [True, np.int64(3), np.float64("inf")],
    }
    assert FigureData(columns).csv == "class,value,mixed\n'=1+1,0.1,1\na b,,3\n,-2.0,\n"


def test_an_inline_figure_has_the_colors_of_the_page_no_address_no_font_and_ids_of_its_own() -> None:
    text = inline_svg(learning_curves([3.0, 2.0], [0.1, 0.2], chosen=1), "f7", "loss")
    for word in ("http", "xmlns", "DejaVu", "font-family", "<metadata", "<style", "<?xml", TEXT_COLOR, BLUE):
        assert word not in text
    assert "currentColor" in text and "var(--blue)" in text
    ids, used = re.findall(r'id="([^"]+)"', text), re.findall(r'(?:href="#|url\(#)([^")]+)', text)
    assert used and set(used) <= set(ids)
    assert all(name.startswith("f7-") for name in ids) and len(ids) == len(set(ids))
    assert text == inline_svg(learning_curves([3.0, 2.0], [0.1, 0.2], chosen=1), "f7", "loss")


def test_every_figure_of_a_page_is_written_for_a_paper_with_its_numbers(
    run_of: RunMaker, data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Figure, "savefig", lambda *path, **how: None)  # the next test looks into the files
    run, folder = run_of(select="last", method="an"), tmp_path / "new" / "figures"
    page = write_report(run, data=data, figures=folder).read_text(encoding="utf-8")
    names = re.findall(r'download="([\w-]+)\.csv"', page)
    assert {"learning-curves", "average-precision", "memorization"} <= set(names)
    ends = ("csv", "pdf", "png", "svg")
    assert {path.name for path in folder.iterdir()} == {f"{name}.{end}" for name in names for end in ends}
    with (folder / "learning-curves.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["epoch"]) for row in rows] == [record["epoch"] for record in run.history]
    assert [float(row["loss"]) for row in rows] == pytest.approx([record["loss"] for record in run.history])


def test_files_are_on_white_with_fonts_and_the_same_every_time(tmp_path: Path) -> None:
    page = Page()
    page.figure("loss", "loss", {"epoch": [1, 2], "loss": [2.0, 1.0]}, learning_curves, [2.0, 1.0])
    paths = write_figures(page.figures, tmp_path)
    before = [path.read_bytes() for path in paths]
    assert [path.read_bytes() for path in write_figures(page.figures, tmp_path)] == before
    svg = (tmp_path / "loss.svg").read_text(encoding="utf-8")
    assert "var(" not in svg and "<text" not in svg and "currentColor" not in svg
    with Image.open(tmp_path / "loss.png") as image:
        assert image.width == 3000 and image.info["dpi"] == pytest.approx((300, 300), abs=0.1)
        assert image.convert("RGBA").getpixel((0, 0)) == (255, 255, 255, 255)
    pdf = (tmp_path / "loss.pdf").read_bytes()
    assert b"/CIDFontType2" in pdf and b"/FontFile2" in pdf and b"/Type3" not in pdf, "TrueType fonts are embedded"


def test_figures_are_refused_where_they_would_harm(run_of: RunMaker, data: Dataset, tmp_path: Path) -> None:
    run, page = run_of(), tmp_path / "first" / "report.html"
    (tmp_path / "file").write_text("mine")
    (tmp_path / "photos").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (run.path / "figures").symlink_to(tmp_path / "elsewhere")
    for folder in (tmp_path / "file", run.path, run.path / "figures", tmp_path / "file" / "below"):
        with pytest.raises(LabelGapError, match=re.escape(str(folder))):
            write_report(run, data=data, figures=folder)
    assert not page.exists() and (tmp_path / "file").read_text() == "mine"
    images = FileImages(tmp_path / "photos", data.train.labels.images)
    photos = Dataset("pets", Split("train", images, data.train.labels), None, None)
    with pytest.raises(InputError, match="photos"):
        check_figure_folder(tmp_path / "photos" / "new", run.path, photos)
    (tmp_path / "elsewhere" / "learning-curves.png").symlink_to(tmp_path / "file")
    with pytest.raises(RunError, match=r"learning-curves\.png"):
        write_report(run, data=data, figures=tmp_path / "elsewhere")
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_to_is_named(run_of: RunMaker, tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(LabelGapError, match="locked"):
        write_report(run_of(), figures=tmp_path / "locked")
