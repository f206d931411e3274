"""Names from files reach a spreadsheet as text, and come back as they were; long ones are cut."""

from __future__ import annotations

import csv
import io

from hypothesis import given
from hypothesis import strategies as st

from labelgap.core.text import quote_formula, quote_formulas, truncate_text, unquote_formula

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
NAMES = st.text(st.sampled_from("'=+-@\t\r\n＝a1.e \"")) | st.text()


@given(NAMES)
def test_a_quoted_name_is_read_back_exactly(name: str) -> None:
    assert unquote_formula(quote_formula(name)) == name


@given(NAMES)
def test_no_quoted_cell_begins_as_a_formula_unless_it_is_a_number(name: str) -> None:
    cell = quote_formula(name)
    if cell.startswith(FORMULA_STARTS):
        assert float(cell) is not None and cell == name


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers())
def test_numbers_stay_numbers(number: float) -> None:
    assert quote_formulas([number, str(number), f"{number:+}"]) == [number, str(number), f"{number:+}"]


def test_ordinary_names_stay_as_they_are() -> None:
    for name in ("dog", "'tis", "''", "o'clock", "a=b", "é", "", "3-d", "1+1", "#1"):
        assert quote_formula(name) == name == unquote_formula(name)


@given(st.lists(NAMES.filter(lambda text: "\0" not in text), min_size=2))
def test_a_row_goes_through_a_csv_file(names: list[str]) -> None:
    text = io.StringIO(newline="")
    csv.writer(text).writerow(quote_formulas(names))
    text.seek(0)
    assert [unquote_formula(cell) for cell in next(csv.reader(text, strict=True))] == names


def test_a_long_name_is_cut_without_being_read_to_its_end() -> None:
    assert truncate_text("a" * 61) == "a" * 59 + "…" and truncate_text("a" * 60) == "a" * 60
    assert truncate_text("a b\n c\x1b") == "a b c\N{REPLACEMENT CHARACTER}"
    assert truncate_text("a" + " " * 10_000_000 + "b") == "a…"
