"""Where a network looks: the pointing game, and class activation maps over images (Kim et al. 2022, table 4, and
figure 1 of its supplement)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from markupsafe import Markup
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from labelgap.core.errors import LabelGapError
from labelgap.core.text import join_names
from labelgap.data.dataset import Dataset, Split
from labelgap.data.split import hold_out_val
from labelgap.inference.localization import (
    PointingGame,
    activation_maps,
    heat_map_png,
    image_size,
    map_maximum,
    pointing_game,
    pointing_hits,
    unseen_split,
    without_maps,
)
from labelgap.labels import PRESENT
from labelgap.reporting import style
from labelgap.reporting.formatting import divide, format_measure, truncate_label
from labelgap.reporting.page import Columns, Page, render_template, stack_columns
from labelgap.reporting.sections.examples import data_url, diverse_sample, thumbnail_data_url, thumbnail_image
from labelgap.training import Run

MAX_RUNS: Final = 6
MAX_CLASSES: Final = 24
_SAMPLE: Final = (12, 100, 200)  # images of the pointing game: at least, of 224 × 224 pixels, at most
_HEAT_SIDE: Final = 64
_HEAT: Final = LinearSegmentedColormap.from_list("heat", [(0.835, 0.369, 0, 0), (0.835, 0.369, 0, 0.67)])
_BOX_COLOR: Final = "#56b4e9"


@dataclass(frozen=True, eq=False)
class ActivationExample:
    """The maps of one class in one image, by the label of the run."""

    split: Split
    row: int  # of the image in the split
    class_name: str
    size: tuple[int, int]  # width and height of the image as stored
    boxes: NDArray[np.float64]  # (B, 4) of the class in it, without difficult objects; none where data have no boxes
    maps: dict[str, NDArray[np.float32]]  # (h, w) each, without the bias
    points: dict[str, tuple[float, float]]  # x and y in the image where a map is highest
    hits: dict[str, bool]  # whether that is inside a box; empty where the data have no boxes

    @property
    def image(self) -> str:
        """The name of the image."""
        return self.split.labels.images[self.row]


def activation_examples(
    runs: Mapping[str, Run], data: Dataset | Split, *, count: int = 6, device: str = "auto"
) -> list[ActivationExample]:
    """Return class activation maps of random images, of test else val, one class each, over many classes."""
    split = unseen_split(data) if isinstance(data, Dataset) else data
    table, corners = split.evaluation_labels, np.zeros((0, 4))
    present = table.values == PRESENT
    rows, columns = table.rows[present], table.columns[present].astype(np.int64)
    if split.boxes is not None:
        kept = slice(None) if split.boxes.difficult is None else ~split.boxes.difficult
        rows, columns, corners = split.boxes.rows[kept], split.boxes.classes[kept], split.boxes.corners[kept]
    chosen = diverse_sample(rows, columns, count, "activation examples")
    pairs = np.array(sorted(zip(rows[chosen], columns[chosen], strict=True)), dtype=np.int64).reshape(-1, 2)
    found = {label: activation_maps(run, split.images, pairs, device=device) for label, run in runs.items()}
    sides = {label: run.model.backbone.input_spec.size for label, run in runs.items()}
    examples = []
    for number, (row, column) in enumerate(pairs.tolist()):
        size = image_size(split.images, row)
        boxes = corners if split.boxes is None else corners[(rows == row) & (columns == column)]
        maps = {label: each[number] for label, each in found.items()}
        points = {label: map_maximum(each, sides[label], size) for label, each in maps.items()}
        shown = points if len(boxes) else {}
        hits = {label: bool(pointing_hits([point], [0] * len(boxes), boxes)[0]) for label, point in shown.items()}
        examples.append(ActivationExample(split, row, split.labels.classes[column], size, boxes, maps, points, hits))
    return examples


def pointing_figure(games: Mapping[str, PointingGame], *, width: float = style.WIDE) -> Figure:
    """Draw the hit rate of every class, or of the ``MAX_CLASSES`` with the most images; the mean is dashed."""
    first = next(iter(games.values()))
    counts = first.class_counts
    columns = np.argsort(-counts, kind="stable")[: min(MAX_CLASSES, int((counts > 0).sum()))]
    rates = {label: game.class_hits[columns] / counts[columns] for label, game in games.items()}
    order = np.argsort(-np.mean(list(rates.values()), axis=0), kind="stable")
    figure, (axis,) = style.make_figure(width=width, height=1.1 + 0.25 * len(columns))
    marks: dict[str, Any] = {"linestyle": "none", "linewidth": 1.5, "markersize": 8, "clip_on": False}
    for number, (label, game) in enumerate(games.items()):
        color, marker = style.cycle(number)
        marks["label"] = f"{truncate_label(label, 20)} {100 * game.hit_rate:.1f}"
        style.draw_line(axis, 100 * rates[label][order], np.arange(len(columns)), color, marker, **marks)
        axis.axvline(100 * game.hit_rate, color=color, linewidth=1.2, linestyle=style.DASHED)
    center = 100 * first.center_rate
    label = f"center of the image {center:.1f}"
    axis.axvline(center, color=style.MUTED_COLOR, linewidth=1.2, linestyle=":", label=label)
    shown = columns[order].tolist()
    names = style.fit_names((first.classes[column] for column in shown), width, 24, 15)
    rows = [f"{name} ({counts[column]:,})" for name, column in zip(names, shown, strict=True)]
    style.set_rows(axis, np.arange(len(columns)), rows)
    axis.set_xlim(0, 100)
    axis.grid(True, axis="x", color=style.GRID_COLOR, linewidth=0.8)
    axis.set_xlabel("hit rate, %")
    style.add_legend(figure)
    return figure


def activation_figure(examples: Sequence[ActivationExample], *, width: float = style.WIDE) -> Figure:
    """Draw images × runs: the image with the boxes of its class, and the map of every run over it, with its maximum."""
    labels = list(examples[0].maps) if examples else []
    side = min(width / (len(labels) + 1), 2.4)
    shape = (max(len(examples), 1), len(labels) + 1)
    figure, axes = style.make_figure(*shape, width=side * shape[1], height=(side + 0.3) * shape[0])
    for axis in axes:
        axis.set_axis_off()
    for number, example in enumerate(examples):
        row = axes[number * shape[1] : (number + 1) * shape[1]]
        pixels = np.asarray(thumbnail_image(example.split, example.row).convert("RGB"))
        extent = (-0.5, example.size[0] - 0.5, example.size[1] - 0.5, -0.5)
        for axis in row:
            axis.imshow(pixels, extent=extent, interpolation="nearest")
            for x0, y0, x1, y1 in example.boxes.tolist():
                corner, sides = (x0 - 0.5, y0 - 0.5), (x1 - x0 + 1, y1 - y0 + 1)
                axis.add_patch(Rectangle(corner, *sides, fill=False, color=_BOX_COLOR, linewidth=2))
        titles = [(truncate_label(example.class_name, 22), style.TEXT_COLOR)]
        for axis, label in zip(row[1:], labels, strict=True):
            above = np.clip(example.maps[label] - example.maps[label].mean(), 0, None)
            axis.imshow(above, cmap=_HEAT, extent=extent, vmin=0, interpolation="bilinear")
            for size, edge, cross in ((11, 2, style.TEXT_COLOR), (9, 1, style.BACKGROUND_COLOR)):
                axis.plot(*example.points[label], marker="+", markersize=size, markeredgewidth=edge, color=cross)
            hit = example.hits.get(label)
            outcome = "" if hit is None else ": hit" if hit else ": miss"
            color = style.VERMILLION if hit is False else style.MUTED_COLOR
            titles.append((truncate_label(truncate_label(label, 16) + outcome, 22), color))
        for axis, (text, color) in zip(row, titles, strict=True):
            axis.set_title(text, loc="left", color=color, fontsize=10, parse_math=False)
    return figure


def localization_section(runs: Mapping[str, Run], page: Page) -> Markup:
    """Return hit rates and maps of the runs, by label, over a sample of images; a run that has none says why."""
    finished = {label: run for label, run in runs.items() if run.finished}
    reasons = {label: reason for label, run in finished.items() if (reason := without_maps(run))}
    shown = {label: run for label, run in finished.items() if label not in reasons}
    if page.data is None or not finished:
        return Markup("")
    linear = all(run.config.protocol == "linear" for run in finished.values())
    split = unseen_split(page.data if linear else hold_out_val(page.data))
    games, examples, (least, middle, most) = dict[str, PointingGame](), list[ActivationExample](), _SAMPLE
    for label, run in list(shown.items())[:MAX_RUNS]:
        try:
            if split.boxes is not None and len(split.boxes.rows):
                count = round(middle * (224 / run.model.backbone.input_spec.size) ** 2)  # the fewer the larger they are
                game = pointing_game(run, split, images=min(max(count, least), most))
                games |= {label: game} if len(game.rows) else {}
            found = activation_examples({label: run}, split) if page.images else []
        except (LabelGapError, OSError) as error:
            if "no class activation maps" in str(error):  # else no network, or an unreadable image: a path is private
                reasons[label] = str(error).removesuffix(".")
            continue
        for example, other in zip(examples, found, strict=False):  # all runs have the same images
            example.maps.update(other.maps)
            example.points.update(other.points)
            example.hits.update(other.hits)
        examples = examples or found
    if not games and not examples and not reasons:
        return Markup("")
    if examples:  # the figure is kept for files; the page shows the maps by other means
        names = ("image", "class", "run", "x", "y", "hit")
        maps = [(each, label, *point) for each in examples for label, point in each.points.items()]
        rows = [(each.image, each.class_name, label, x, y, each.hits.get(label)) for each, label, x, y in maps]
        columns = dict(zip(names, zip(*rows, strict=True), strict=True))
        description = f"Class activation maps of {join_names([each.class_name for each in examples])}."
        page.figure("activation-maps", description, columns, activation_figure, examples, shown=False)
    figure, rates = None, {label: format_measure(game.hit_rate) for label, game in games.items()}
    if games:
        tables: dict[str, Columns] = {
            label: {"class": game.classes, "images": game.class_counts, "hits": game.class_hits}
            | {"hit_rate": divide(game.class_hits, game.class_counts)}
            for label, game in games.items()
        }
        text = f"Hit rate per class, and the mean over classes: {'; '.join(map(' '.join, rates.items()))}."
        figure = page.figure("pointing-game", text, stack_columns("run", tables), pointing_figure, games)
    return render_template(
        "sections/localization.html",
        reasons=reasons,
        omitted=max(len(shown) - MAX_RUNS, 0),
        split=split.name,
        several=len(runs) > 1,
        games=games,
        rows=[(label, [rates[label], f"{each.hits.sum():,} of {len(each.hits):,}"]) for label, each in games.items()],
        figure=figure,
        examples=examples,
        thumbnail=lambda each: thumbnail_data_url(each.split, each.row),
        heat=lambda each, label: data_url(heat_map_png(each.maps[label], each.size, _HEAT_SIDE)),
    )
