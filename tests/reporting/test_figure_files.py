"""``--figures``: files for a paper, the numbers behind them, and folders that they may not be written to."""

from __future__ import annotations

import csv
import os
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from markupsafe import Markup
from PIL import Image

from labelgap.core.errors import InputError, LabelGapError, RunError
from labelgap.data.dataset import Dataset, Split
from labelgap.data.images import FileImages
from labelgap.reporting import write_report
from labelgap.reporting.page import FigureRenderer, write_figures
from labelgap.reporting.report import check_figure_folder
from labelgap.reporting.sections.curves import learning_curves
from labelgap.training import Run


@pytest.fixture(autouse=True)
def without_drawing_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labelgap.reporting.page.both_screens", lambda *arguments: (Markup(""), Markup("")))


def test_every_figure_of_a_page_is_written_for_a_paper_with_its_numbers(
    run_of: Callable[..., Run], data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    renderer = FigureRenderer()
    losses: dict[str, Any] = {"epoch": [1, 2], "loss": [2.0, 1.0]}
    renderer.render(lambda width: learning_curves(losses["loss"], width=width), "loss", name="loss", data=losses)
    paths = write_figures(renderer.figures, tmp_path)
    before = [path.read_bytes() for path in paths]
    assert [path.read_bytes() for path in write_figures(renderer.figures, tmp_path)] == before
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


def test_figures_are_refused_where_they_would_harm_before_anything_is_written(
    run_of: Callable[..., Run], data: Dataset, tmp_path: Path
) -> None:
    run, page = run_of(), tmp_path / "first" / "report.html"
    (tmp_path / "file").write_text("mine")
    (tmp_path / "photos").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (run.path / "figures").symlink_to(tmp_path / "elsewhere")
    refused: list[tuple[Path, type[LabelGapError], str]] = [
        (tmp_path / "file", InputError, "is a file: figures need a folder"),
        (run.path, InputError, "the folder of a result"),
        (run.path / "figures", RunError, "a link out of"),
        (tmp_path / "file" / "below", LabelGapError, "file"),
    ]
    for folder, kind, text in refused:
        with pytest.raises(kind, match=text):
            write_report(run, data=data, figures=folder)
    assert not page.exists() and (tmp_path / "file").read_text() == "mine"
    images = FileImages(tmp_path / "photos", data.train.labels.images)
    photos = Dataset("pets", Split("train", images, data.train.labels), None, None)
    with pytest.raises(InputError, match="inside the images of the data"):
        check_figure_folder(tmp_path / "photos" / "new", run.path, photos)
    (tmp_path / "elsewhere" / "learning-curves.png").symlink_to(tmp_path / "file")
    with pytest.raises(RunError, match="is a link, which is not followed"):
        write_report(run, data=data, figures=tmp_path / "elsewhere")
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_to_is_named(run_of: Callable[..., Run], tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(LabelGapError, match=r"locked.*Choose a folder that can be written to"):
        write_report(run_of(), figures=tmp_path / "locked")
