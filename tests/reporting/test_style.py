"""A figure in a page: no namespaces, no fonts, no fixed text colour, and ids that cannot collide."""

from __future__ import annotations

import re

from labelgap.reporting.formatting import single_line, truncate_label
from labelgap.reporting.sections.classes import average_precision_bars
from labelgap.reporting.sections.curves import learning_curves
from labelgap.reporting.style import BLUE, TEXT_COLOR, inline_svg


def test_an_inline_figure_names_no_address_and_no_font() -> None:
    text = inline_svg(learning_curves([3.0, 2.0]), "f1", "loss")
    for word in ("http", "xmlns", "DejaVu", "font-family", "<metadata", "<style", "<?xml"):
        assert word not in text


def test_colours_are_those_of_the_page() -> None:
    text = inline_svg(learning_curves([3.0, 2.0], chosen=1), "f1", "loss")
    assert "currentColor" in text and "var(--blue)" in text
    assert TEXT_COLOR not in text and BLUE not in text


def test_every_reference_finds_an_id_with_the_prefix_of_its_figure() -> None:
    text = inline_svg(learning_curves([3.0, 2.0], [0.1, 0.2], chosen=1), "f7", "loss")
    ids = re.findall(r'id="([^"]+)"', text)
    used = re.findall(r'(?:href="#|url\(#)([^")]+)', text)
    assert used and set(used) <= set(ids)
    assert all(name.startswith("f7-") for name in ids) and len(ids) == len(set(ids))


def test_names_and_descriptions_are_escaped() -> None:
    text = inline_svg(average_precision_bars({"<script>alert(1)</script>": 0.5}), "f1", '"><script>')
    assert "<script>" not in text and "&lt;script&gt;" in text


def test_the_same_figure_gives_the_same_text() -> None:
    assert inline_svg(learning_curves([1.0]), "f1", "a") == inline_svg(learning_curves([1.0]), "f1", "a")


def test_a_name_is_put_on_one_line_and_cut_to_fit() -> None:
    assert single_line(" a\n\tb\x00 c\u2028d ") == "a b c d"
    assert truncate_label("abcdefgh", 5) == "abcd…"
