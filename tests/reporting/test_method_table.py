"""A table as papers print it: the same numbers in the terminal, HTML, CSV, Markdown and LaTeX."""

from __future__ import annotations

import csv
import io
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from rich.console import Console

from labelgap.reporting.formatting import ResultRow, ResultTable
from labelgap.reporting.method_table import MethodCell, MethodColumn, MethodRow, MethodTable, escape_latex

HOSTILE = r"[*] a_b & 50 % $x$ #1 {~^\} <|> “猫” café δ"
TABLE = MethodTable(
    "mine",
    "Losses & labels",
    [MethodColumn("voc_2012", "linear"), MethodColumn("nuswide", "linear"), MethodColumn("rank", "", "lowest")],
    [
        MethodRow("an", [MethodCell(84.314, 0.126, 84.2), MethodCell(46.2), MethodCell(1.5)]),
        MethodRow("role", [MethodCell(86.5, 0.3, 86.55), MethodCell(None), MethodCell(1.25)]),
        MethodRow(HOSTILE, [MethodCell(None, None, 80.0), MethodCell(46.2), MethodCell()]),
        MethodRow("bce", [MethodCell(90.0, 0.1), MethodCell(50.7, 1.0), MethodCell()], apart=True),
    ],
    ["a note of 100 %"],
)


def printed(table: ResultTable, width: int) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=width, color_system=None).print(table)
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_the_best_is_bold_among_those_that_saw_the_same_labels_and_equal_ones_share_it() -> None:
    bold = {(row.label, text) for row, cells in TABLE.body for text, best in cells if best}
    assert bold == {("role", "86.50 ± 0.30"), ("an", "46.20"), (HOSTILE, "46.20"), ("role", "1.25")}
    one = MethodTable("one", "", TABLE.columns, TABLE.rows[:1])
    assert not any(best for _, cells in one.body for _, best in cells), "one row is compared with nothing"


def test_published_numbers_stand_beside_ours_where_there_are_any() -> None:
    assert [leaf.name for leaf in TABLE.leaves] == [
        "linear voc_2012 ours",
        "linear voc_2012 paper",
        "linear nuswide",
        "rank",
    ]
    assert TABLE.header_rows[0] == [("linear", 3), ("", 1)]
    assert TABLE.header_rows[1] == [("voc_2012", 2), ("nuswide", 1), ("rank", 1)]
    assert [text for text, _ in TABLE.body[1][1]] == ["86.50 ± 0.30", "86.55", "", "1.25"]
    assert [text for text, _ in TABLE.body[2][1]][:2] == ["–", "80.0"]
    rows = list(csv.DictReader(TABLE.to_csv().splitlines()))
    assert rows[0] == {
        **{
            "method": "an",
            "linear voc_2012": "84.314",
            "linear voc_2012 std": "0.126",
            "linear voc_2012 paper": "84.2",
        },
        **{"linear nuswide": "46.2", "linear nuswide std": "", "rank": "1.5", "rank std": ""},
    }


def test_markdown_and_html_have_a_cell_for_every_column() -> None:
    lines = [line for line in TABLE.to_markdown().splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {6} and len(lines) == 6
    assert "**86.50 ± 0.30**" in lines[3]
    html = TABLE.to_html()
    assert html.count("<td") == 16 and html.count("<b>") == 4 and "&lt;|&gt;" in html and "<|>" not in html


def test_latex_escapes_names_and_every_line_has_all_columns() -> None:
    text = TABLE.to_latex()
    tabular = text[text.index(r"\toprule") : text.index(r"\bottomrule")]
    columns = re.search(r"\\begin\{tabular\}\{(l(r+))\}", text)
    assert columns is not None and len(columns[1]) == 5
    for line in (line for line in tabular.splitlines() if line.endswith(r"\\")):
        spans = [int(count) for count in re.findall(r"\\multicolumn\{(\d+)\}", line)]
        cells = len(re.findall(r"(?<!\\)&", line)) + 1
        assert cells - len(spans) + sum(spans) == 5, line
    assert r"\textbf{86.50}\,{\scriptsize$\pm$\,0.30} & 86.5" in text and r"voc\_2012" in text
    assert escape_latex("50 % of [a]*\n") == r"50 \% of {[}a]{*}"


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="there is no pdflatex on this machine")
def test_the_latex_file_compiles_to_one_page(tmp_path: Path) -> None:
    TABLE.write(tmp_path)
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "mine.tex"]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert said.returncode == 0 and "(1 page" in said.stdout and "Overfull" not in said.stdout, said.stdout[-2000:]


@pytest.mark.parametrize("width", [80, 50, 200])
def test_no_row_wraps_however_narrow_the_terminal(width: int) -> None:
    wide = MethodTable("wide", "t", [*TABLE.columns[:2]] * 5, [*map(_repeat, TABLE.rows[:2])])
    lines = printed(wide.for_terminal(), width)
    assert all(len(line) <= width for line in lines)
    shown = [line for line in lines if re.match(r"(an|role) ", line)]
    assert len(shown) % 2 == 0 and (len(shown) == 2) == (width == 200)
    assert sum(line.count("84.31 ± 0.13   84.2") for line in shown) == 5, "the paper's number stays beside ours"
    names = ResultTable("t", ["a"], [ResultRow("a name of forty letters, which is longer", ["1.23 ± 0.45"])])
    assert "1.23 ± 0.45" in printed(names, 30)[2], "the label gives way"


def _repeat(row: MethodRow) -> MethodRow:
    return MethodRow(row.label, [*row.cells[:2]] * 5)
