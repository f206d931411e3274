"""The figures of a page: each has a name of its own and the numbers behind it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from labelgap.reporting.page import FigureData, FigureRenderer, stack_columns, table_columns
from labelgap.reporting.sections.curves import learning_curves


def draw(renderer: FigureRenderer, name: str, data: dict[str, Any]) -> None:
    renderer.render(lambda width: learning_curves([2.0, 1.0], width=width), "loss", name=name, data=data)


def test_a_renderer_keeps_its_figures_with_their_numbers_and_refuses_a_name_twice() -> None:
    renderer = FigureRenderer()
    draw(renderer, "loss", {"epoch": [1, 2], "loss": [2.0, 1.0]})
    draw(renderer, "loss-2", {"epoch": [1]})
    assert [figure.name for figure in renderer.figures] == ["loss", "loss-2"]
    assert 'id="f1w-' in renderer.figures[0].wide and 'id="f2n-' in renderer.figures[1].narrow
    assert renderer.figures[0].draw(3.0).get_size_inches()[0] == 3.0
    with pytest.raises(ValueError, match="already has a figure 'loss'"):
        draw(renderer, "loss", {"epoch": [1]})


@pytest.mark.parametrize(
    ("name", "data"),
    [("../a", {"a": [1]}), ("A b", {"a": [1]}), ("a", {"x": [1], "y": []})],
)
def test_a_figure_without_a_file_name_or_with_uneven_columns_is_refused(name: str, data: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        draw(FigureRenderer(), name, data)


def test_numbers_are_short_unknown_ones_empty_and_names_harmless() -> None:
    columns: dict[str, Any] = {
        "class": ["=1+1", "a\nb", None],
        "value": np.array([0.1, np.nan, -2.0], dtype=np.float32),
        "mixed": [True, np.int64(3), np.float64("inf")],
    }
    assert FigureData(columns).csv == "class,value,mixed\n'=1+1,0.1,1\na b,,3\n,-2.0,\n"


def test_series_are_stacked_with_their_names() -> None:
    stacked = stack_columns("run", {"a": {"x": np.array([1, 2]), "y": [None, 5]}, "b": {"x": [3], "y": [4]}})
    assert stacked == {"run": ["a", "a", "b"], "x": [1, 2, 3], "y": [None, 5, 4]}


def test_a_table_becomes_columns_with_a_row_for_every_cell() -> None:
    columns = table_columns(seed=np.arange(2)[:, None], epoch=[1, 2, 3], score=np.arange(6).reshape(2, 3), extra=None)
    assert FigureData(columns).rows == [
        [0, 1, 0, ""],
        [0, 2, 1, ""],
        [0, 3, 2, ""],
        [1, 1, 3, ""],
        [1, 2, 4, ""],
        [1, 3, 5, ""],
    ]
