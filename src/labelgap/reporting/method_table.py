"""A table as a paper prints it: methods by data sets, mean ± standard deviation, the best bold, published beside."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final, Literal, NamedTuple

from markupsafe import Markup

from labelgap.core.files import make_folder, write_text
from labelgap.reporting.formatting import NO_VALUE, ResultRow, ResultTable, format_number, single_line
from labelgap.reporting.page import escape_markdown, render_template
from labelgap.studies.study import csv_cell, csv_text

FOLDER: Final = "tables"
SUFFIXES: Final = ("csv", "md", "tex")


class MethodCell(NamedTuple):
    """A number, what it varies by, and what a paper has there; None where there is none."""

    mean: float | None = None
    deviation: float | None = None  # over seeds; None with one
    published: float | None = None

    @property
    def ours(self) -> str:
        """Mean and deviation as text; "" where nobody has a number."""
        if self.mean is None and self.published is None:
            return ""
        return format_number(self.mean) + (f" ± {self.deviation:.2f}" if self.deviation is not None else "")

    @property
    def theirs(self) -> str:
        """The published number with the digits that it was printed with, at least one."""
        if self.published is None:
            return ""
        return f"{self.published:.1f}" if round(self.published, 1) == self.published else f"{self.published:g}"


@dataclass(frozen=True)
class MethodColumn:
    """A column: its header, and the header above it, which neighbors share."""

    name: str
    group: str = ""
    best: Literal["highest", "lowest", ""] = "highest"


@dataclass(frozen=True)
class MethodRow:
    """A method, with a cell for each column."""

    label: str
    cells: Sequence[MethodCell]
    apart: bool = False  # whether it saw more labels than the others: such rows come last, and are never the best


class _Leaf(NamedTuple):
    """A column as it is printed: of our numbers, or of the published ones."""

    place: int
    headers: tuple[str, str, str]  # group, name, and whose numbers they are, if a paper's stand beside
    published: bool

    @property
    def name(self) -> str:
        return " ".join(filter(None, self.headers))


@dataclass(frozen=True)
class MethodTable:
    """Methods by data sets."""

    name: str  # of its files
    title: str
    columns: Sequence[MethodColumn]
    rows: Sequence[MethodRow]
    notes: Sequence[str] = ()

    @property
    def leaves(self) -> list[_Leaf]:
        """The columns as they are printed."""
        found = list[_Leaf]()
        for place, column in enumerate(self.columns):
            both = any(row.cells[place].published is not None for row in self.rows)
            found.append(_Leaf(place, (column.group, column.name, "ours" if both else ""), published=False))
            found += [_Leaf(place, (column.group, column.name, "paper"), published=True)] if both else []
        return found

    @property
    def header_rows(self) -> list[list[tuple[str, int]]]:
        """The lines of the header: texts, and how many columns each is above."""
        headers, lines = [leaf.headers for leaf in self.leaves], []
        for level in range(3):
            if any(each[level] for each in headers):
                shared = [each[: level + 1] if level < 2 else (place,) for place, each in enumerate(headers)]
                same = [list(group) for _, group in groupby(range(len(headers)), shared.__getitem__)]
                lines.append([(headers[group[0]][level], len(group)) for group in same])
        return lines

    @property
    def body(self) -> list[tuple[MethodRow, list[tuple[str, bool]]]]:
        """Every row with the texts of its cells, and whether each is the best of its column."""
        best = [self._best(place) for place in range(len(self.columns))]
        return [(row, [self._cell(row, leaf, best[leaf.place]) for leaf in self.leaves]) for row in self.rows]

    def _best(self, place: int) -> str:
        """Return the best number of a column as it is printed; "" where nothing is compared."""
        means = [row.cells[place].mean for row in self.rows if not row.apart]
        known = [mean for mean in means if mean is not None]
        if len(known) < 2 or not self.columns[place].best:
            return ""
        return format_number(min(known) if self.columns[place].best == "lowest" else max(known))

    def _cell(self, row: MethodRow, leaf: _Leaf, best: str) -> tuple[str, bool]:
        cell = row.cells[leaf.place]
        text = cell.theirs if leaf.published else cell.ours
        return text, not leaf.published and not row.apart and cell.mean is not None and format_number(cell.mean) == best

    def for_terminal(self) -> ResultTable:
        """Return it for the terminal."""
        leaves, body = self.leaves, self.body
        return ResultTable(
            self.title,
            ["paper" if leaf.published else "\n".join(filter(None, leaf.headers[:2])) for leaf in leaves],
            [ResultRow(row.label, [text for text, _ in cells], apart=row.apart) for row, cells in body],
            self.notes,
            strong={(line, at) for line, (_, cells) in enumerate(body) for at, (_, best) in enumerate(cells) if best},
            joined={place for place, leaf in enumerate(leaves) if leaf.published},
        )

    def to_html(self) -> Markup:
        """Return it for a page, without title and notes."""
        return render_template("method_table.html", table=self, names=[leaf.name for leaf in self.leaves])

    def to_csv(self) -> str:
        """Return it with a column for the mean, for the deviation and for the published number of each."""
        header, rows = ["method"], [list[object]([row.label]) for row in self.rows]
        for leaf in self.leaves:
            name = " ".join(filter(None, leaf.headers[:2]))
            header += [f"{name} paper"] if leaf.published else [name, f"{name} std"]
            for cells, row in zip(rows, self.rows, strict=True):
                cell = row.cells[leaf.place]
                values = (cell.published,) if leaf.published else (cell.mean, cell.deviation)
                cells += map(csv_cell, values)
        return csv_text(header, rows)

    def to_markdown(self) -> str:
        """Return it as a table of GitHub's Markdown, with title and notes."""
        names = [escape_markdown(leaf.name) for leaf in self.leaves]
        lines = [f"**{escape_markdown(self.title)}**", "", f"| method | {' | '.join(names)} |"]
        lines.append(f"|---|{'---:|' * len(names)}")
        for row, cells in self.body:
            shown = (f"**{text}**" if best else text for text, best in cells)
            lines.append(f"| {escape_markdown(row.label)} | {' | '.join(shown)} |")
        return "\n".join([*lines, "", *(f"{escape_markdown(note)}  " for note in self.notes), ""])

    def to_latex(self) -> str:
        """Return it as a LaTeX document of one page, whose table is no wider than the page."""
        return "\n".join(
            [
                r"% The tabular needs \usepackage{booktabs}; \resizebox needs graphicx.",
                r"\documentclass[10pt]{article}",
                r"\usepackage[a4paper,landscape,margin=15mm]{geometry}",
                r"\usepackage{booktabs,graphicx}",
                r"\begin{document}",
                r"\pagestyle{empty}",
                r"\begin{table}",
                r"\centering",
                rf"\caption{{{escape_latex(self.title)}}}",
                r"\smallskip",
                r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
                *self._tabular(),
                "}",
                *(rf"\par\smallskip{{\footnotesize {escape_latex(note)}}}" for note in self.notes),
                r"\end{table}",
                r"\end{document}",
                "",
            ]
        )

    def _tabular(self) -> Iterator[str]:
        yield rf"\begin{{tabular}}{{l{'r' * len(self.leaves)}}}"
        yield r"\toprule"
        lines = self.header_rows
        for line in lines:
            wide, start, rules = [], 2, list[str]()
            for text, count in line:
                wide.append(rf"\multicolumn{{{count}}}{{{'r' if line is lines[-1] else 'c'}}}{{{escape_latex(text)}}}")
                rules += [rf"\cmidrule(lr){{{start}-{start + count - 1}}}"] if text and line is not lines[-1] else []
                start += count
            yield f" & {' & '.join(wide)} \\\\"
            if rules:
                yield " ".join(rules)
        yield r"\midrule"
        before = None
        for row, cells in self.body:
            if row.apart and before is not None and not before.apart:
                yield r"\midrule"
            before = row
            yield f"{escape_latex(row.label)} & {' & '.join(_latex_number(*cell) for cell in cells)} \\\\"
        yield r"\bottomrule"
        yield r"\end{tabular}"

    def write(self, folder: Path) -> None:
        """Write NAME.csv, NAME.md and NAME.tex into a folder, which is created."""
        make_folder(folder)
        for suffix, text in zip(SUFFIXES, (self.to_csv(), self.to_markdown(), self.to_latex()), strict=True):
            write_text(folder / f"{self.name}.{suffix}", text)

    @property
    def files(self) -> list[str]:
        """The files that a result's folder has of it."""
        return [f"{FOLDER}/{self.name}.{suffix}" for suffix in SUFFIXES]


def _latex_number(text: str, best: bool) -> str:
    mean, plus, deviation = text.partition(" ± ")
    mean = mean.replace(NO_VALUE, "--")
    return (rf"\textbf{{{mean}}}" if best else mean) + (rf"\,{{\scriptsize$\pm$\,{deviation}}}" if plus else "")


_LATEX: Final = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "[": "{[}", "*": "{*}"},  # after \\ an argument
    **{"–": "--", "±": r"$\pm$", "×": r"$\times$", "’": "'", "·": r"$\cdot$"},
    **{"α": r"$\alpha$", "β": r"$\beta$", "γ": r"$\gamma$", "δ": r"$\delta$", "θ": r"$\theta$", "λ": r"$\lambda$"},
}


def escape_latex(text: str) -> str:
    r"""Return text on one line that pdflatex prints as it is; a letter that its fonts lack becomes its base, or "?".

    Example:
        >>> escape_latex("50 % of tags_v2, café, 猫")
        '50 \\% of tags\\_v2, café, ?'
    """
    return "".join(map(_latex_letter, single_line(text)))


def _latex_letter(sign: str) -> str:
    if sign in _LATEX or sign.isascii():
        return _LATEX.get(sign, sign)
    parts = unicodedata.normalize("NFKD", sign)
    if sign <= "ÿ" and re.fullmatch(r"[A-Za-z]\W", parts):
        return sign
    return parts.encode("ascii", "ignore").decode() or "?"
