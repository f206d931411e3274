"""Figures of where networks look: the hit rate of the pointing game per class, and maps over images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from labelgap.inference.localization import PointingGame
from labelgap.reporting.analysis.activation_maps import ActivationExample
from labelgap.reporting.colors import BACKGROUND_COLOR, COLOR_CYCLE, GRID_COLOR, MUTED_COLOR, TEXT_COLOR, VERMILLION
from labelgap.reporting.example_images import thumbnail_image
from labelgap.reporting.formatting import truncate_label
from labelgap.reporting.style import NARROW, WIDE, add_legend, make_figure, set_rows

MAX_CLASSES: Final = 24
_HEAT: Final = LinearSegmentedColormap.from_list("heat", [(0.835, 0.369, 0, 0), (0.835, 0.369, 0, 0.67)])
_BOX_COLOR: Final = "#56b4e9"


def pointing_figure(games: Mapping[str, PointingGame], *, width: float = WIDE) -> Figure:
    """Draw the hit rate of every class, and the mean over the classes as a dashed line.

    Args:
        games: by label of the run; up to six differ in color and marker.
        width: in inches. Of more than ``MAX_CLASSES`` classes those with the most images are shown.
    """
    first = next(iter(games.values()))
    counts = first.class_counts
    columns = np.argsort(-counts, kind="stable")[: min(MAX_CLASSES, int((counts > 0).sum()))]
    rates = {label: game.class_hits[columns] / counts[columns] for label, game in games.items()}
    order = np.argsort(-np.mean(list(rates.values()), axis=0), kind="stable")
    figure, (axis,) = make_figure(width=width, height=1.1 + 0.25 * len(columns))
    lines: list[Line2D] = []
    for (label, game), (color, marker) in zip(games.items(), _cycle(len(games)), strict=True):
        lines += axis.plot(
            100 * rates[label][order],
            np.arange(len(columns)),
            linestyle="none",
            color=color,
            marker=marker,
            markersize=8,
            markeredgecolor=BACKGROUND_COLOR,
            clip_on=False,
        )
        axis.axvline(100 * game.hit_rate, color=color, linewidth=1.2, linestyle=(0, (4, 3)))
    lines.append(axis.axvline(100 * first.center_rate, color=MUTED_COLOR, linewidth=1.2, linestyle=":"))
    names = [
        f"{truncate_label(first.classes[column], 24 if width > NARROW else 15)} ({counts[column]:,})"
        for column in columns[order].tolist()
    ]
    set_rows(axis, np.arange(len(columns)), names)
    axis.set_xlim(0, 100)
    axis.grid(True, axis="x", color=GRID_COLOR, linewidth=0.8)
    axis.set_xlabel("hit rate, %")
    labels = [f"{truncate_label(label, 20)} {100 * game.hit_rate:.1f}" for label, game in games.items()]
    labels.append(f"center of the image {100 * first.center_rate:.1f}")
    add_legend(figure, lines, labels, columns=1 if width <= NARROW else min(len(lines), 4))
    return figure


def activation_figure(examples: Sequence[ActivationExample], *, width: float = WIDE) -> Figure:
    """Draw images × runs: the image with the boxes of its class, and the map of every run over it.

    A cross marks where a map is highest. The heat is what is above the average of the map.

    Args:
        examples: with the same runs.
        width: in inches.
    """
    labels = list(examples[0].maps) if examples else []
    side = min(width / (len(labels) + 1), 2.4)
    shape = (max(len(examples), 1), len(labels) + 1)
    figure, axes = make_figure(*shape, width=side * shape[1], height=(side + 0.3) * shape[0])
    for axis in axes:
        axis.set_axis_off()
    for number, example in enumerate(examples):
        row = axes[number * shape[1] : (number + 1) * shape[1]]
        pixels = np.asarray(thumbnail_image(example.split, example.row).convert("RGB"))
        for axis in row:
            axis.imshow(pixels, extent=_extent(example), interpolation="nearest")
            for x0, y0, x1, y1 in example.boxes.tolist():
                axis.add_patch(
                    Rectangle((x0 - 0.5, y0 - 0.5), x1 - x0 + 1, y1 - y0 + 1, fill=False, color=_BOX_COLOR, linewidth=2)
                )
        _title(row[0], example.class_name)
        for axis, label in zip(row[1:], labels, strict=True):
            above = np.clip(example.maps[label] - example.maps[label].mean(), 0, None)
            axis.imshow(above, cmap=_HEAT, extent=_extent(example), vmin=0, interpolation="bilinear")
            axis.plot(*example.points[label], marker="+", markersize=11, markeredgewidth=2, color=TEXT_COLOR)
            axis.plot(*example.points[label], marker="+", markersize=9, markeredgewidth=1, color=BACKGROUND_COLOR)
            hit = example.hits.get(label)
            outcome = "" if hit is None else ": hit" if hit else ": miss"
            _title(axis, truncate_label(label, 16) + outcome, VERMILLION if hit is False else MUTED_COLOR)
    return figure


def _cycle(count: int) -> list[tuple[str, str]]:
    return [COLOR_CYCLE[number % len(COLOR_CYCLE)] for number in range(count)]


def _extent(example: ActivationExample) -> tuple[float, float, float, float]:
    width, height = example.size
    return -0.5, width - 0.5, height - 0.5, -0.5


def _title(axis: Axes, text: str, color: str = TEXT_COLOR) -> None:
    axis.set_title(truncate_label(text, 22), loc="left", color=color, fontsize=10, parse_math=False)
