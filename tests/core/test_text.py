from __future__ import annotations

import csv
import io

from hypothesis import given
from hypothesis import strategies as st

from labelgap.core.text import format_duration, quote_formula, quote_formulas, truncate_text, unquote_formula

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
NAMES = st.text(st.sampled_from("'=+-@\t\r\n＝＋－＠a1.e \",;é\0"))


@given(NAMES)
def test_a_quoted_name_is_read_back_exactly_and_begins_as_no_formula_unless_it_is_a_number(name: str) -> None:
    cell = quote_formula(name)
    assert unquote_formula(cell) == name
    if cell.startswith(FORMULA_STARTS):
        assert float(cell) is not None and cell == name


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers())
def test_numbers_stay_numbers(number: float) -> None:
    assert quote_formulas([number, str(number), f"{number:+}"]) == [number, str(number), f"{number:+}"]


def test_ordinary_names_stay_and_long_ones_are_cut_unread() -> None:
    for name in ("dog", "'tis", "''", "o'clock", "a=b", "é", "", "3-d", "1+1", "#1"):
        assert quote_formula(name) == name == unquote_formula(name)
    assert truncate_text("a" * 61) == "a" * 59 + "…" and truncate_text("a" * 60) == "a" * 60
    assert truncate_text("a b\n c\x1b") == "a b c\N{REPLACEMENT CHARACTER}"
    assert truncate_text("a" + " " * 10_000_000 + "b") == "a…"


def test_durations_are_rounded() -> None:
    durations = [format_duration(seconds) for seconds in (4, 12, 30, 1260, 8000, 400_000)]
    assert durations == ["5 s", "15 s", "30 s", "21 min", "2.2 h", "5 days"]


@given(st.lists(NAMES.filter(lambda text: "\0" not in text), min_size=2))
def test_a_row_goes_through_a_csv_file(names: list[str]) -> None:
    text = io.StringIO(newline="")
    csv.writer(text).writerow(quote_formulas(names))
    text.seek(0)
    assert [unquote_formula(cell) for cell in next(csv.reader(text, strict=True))] == names
