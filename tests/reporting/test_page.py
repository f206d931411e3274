"""The figures of a page: their names and numbers, their SVG, and their files for a paper."""

from __future__ import annotations

import csv
import os
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.reporting.conftest import RunMaker

from labelgap.core.errors import InputError, LabelGapError, RunError
from labelgap.data.dataset import Dataset, Split
from labelgap.data.images import FileImages
from labelgap.reporting import write_report
from labelgap.reporting.page import FigureData, Page, stack_columns, write_figures
from labelgap.reporting.report import check_figure_folder
from labelgap.reporting.sections.curves import learning_curves
from labelgap.reporting.style import BLUE, TEXT_COLOR, inline_svg


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


def test_columns_broadcast_and_series_are_stacked_with_their_names() -> None:
    table = {"seed": np.arange(2)[:, None], "epoch": [1, 2, 3], "score": np.arange(6).reshape(2, 3), "extra": None}
    assert FigureData(table).rows == [[seed, epoch, 3 * seed + epoch - 1, ""] for seed in (0, 1) for epoch in (1, 2, 3)]
    stacked = stack_columns("run", {"a": {"x": np.array([1, 2]), "y": [None, 5]}, "b": {"x": [3], "y": 4}})
    assert FigureData(stacked).rows == [["a", 1, ""], ["a", 2, 5], ["b", 3, 4]]


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
    formats = {name: lambda figure, path: None for name in ("svg", "png", "pdf")}
    monkeypatch.setattr("labelgap.reporting.page._SAVE", formats)  # the next test looks into the files
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


def test_files_are_seven_inches_wide_on_white_with_fonts_and_the_same_every_time(tmp_path: Path) -> None:
    page = Page()
    page.figure("loss", "loss", {"epoch": [1, 2], "loss": [2.0, 1.0]}, learning_curves, [2.0, 1.0])
    paths = write_figures(page.figures, tmp_path)
    before = [path.read_bytes() for path in paths]
    assert [path.read_bytes() for path in write_figures(page.figures, tmp_path)] == before
    svg = (tmp_path / "loss.svg").read_text(encoding="utf-8")
    assert 'width="7in"' in svg and "var(" not in svg and "<text" not in svg and "currentColor" not in svg
    with Image.open(tmp_path / "loss.png") as image:
        assert image.width == 2100 and image.info["dpi"] == pytest.approx((300, 300), abs=0.1)
        assert image.convert("RGBA").getpixel((0, 0)) == (255, 255, 255, 255)
    pdf = (tmp_path / "loss.pdf").read_bytes()
    assert b"/CIDFontType2" in pdf and b"/FontFile2" in pdf and b"/Type3" not in pdf, "TrueType fonts are embedded"
    assert re.search(rb"/MediaBox \[ 0 0 504 ", pdf), "7 inches of 72 points"
    content = re.search(rb"stream\r?\n(.*?)\r?\nendstream", pdf, re.DOTALL)
    assert content is not None
    operators = zlib.decompress(content[1])
    assert b"0.7 0 0 0.7 0 0 cm" in operators
    assert max(float(x) for x in re.findall(rb"([\d.]+) [\d.]+ l\b", operators)) > 690, (
        "no line is cut at the old width"
    )


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
