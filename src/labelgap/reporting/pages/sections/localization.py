"""The section on where a network looks: the pointing game, and class activation maps over images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from labelgap.core.errors import LabelGapError
from labelgap.core.text import join_names
from labelgap.data.dataset import Dataset, Split
from labelgap.data.split import hold_out_val
from labelgap.inference.localization import PointingGame, heat_map_png, pointing_game, unseen_split, without_maps
from labelgap.reporting.analysis.activation_maps import ActivationExample, activation_examples
from labelgap.reporting.example_images import data_url, thumbnail_data_url
from labelgap.reporting.figure_data import Columns, stack_columns
from labelgap.reporting.figures.activation_maps import activation_figure, pointing_figure
from labelgap.reporting.formatting import format_count, format_measure, single_line
from labelgap.reporting.html import FigureRenderer
from labelgap.training import Run

MAX_RUNS: Final = 6
_SAMPLE: Final = (12, 100, 200)
"""Images of the pointing game: at least, of 224 × 224 pixels, at most."""
_HEAT_SIDE: Final = 64


def localization_section(
    runs: Mapping[str, Run], data: Dataset | None, figures: FigureRenderer, *, images: bool
) -> dict[str, Any]:
    """Return hit rates and maps of the runs whose network has class activation maps.

    The pointing game is over a sample of images, so that a page takes seconds: ``pointing_game`` takes all. Without
    boxes there are only the maps; a run that has none says why. The first ``MAX_RUNS`` runs are shown.

    Args:
        runs: by label, trained on the same data.
        data: None leaves the section out.
        figures: of the page.
        images: whether the page may contain images of the data set.
    """
    finished = {label: run for label, run in runs.items() if run.finished}
    reasons = {label: reason for label, run in finished.items() if (reason := without_maps(run))}
    shown = {label: run for label, run in finished.items() if label not in reasons}
    if data is None or not finished:
        return {"localization": None}
    linear = all(run.config.protocol == "linear" for run in finished.values())
    split = unseen_split(data if linear else hold_out_val(data))
    found = dict[str, tuple[PointingGame | None, list[ActivationExample]]]()
    for label in list(shown)[:MAX_RUNS]:
        try:
            found[label] = _measure(label, shown[label], split, images)
        except (LabelGapError, OSError) as error:
            if "no class activation maps" in str(error):  # else no network, or an unreadable image: a path is private
                reasons[label] = str(error).removesuffix(".")
    games = {label: game for label, (game, _) in found.items() if game is not None}
    examples = _merged([each for _, each in found.values()])
    if not games and not examples and not reasons:
        return {"localization": None}
    return {
        "localization": {
            "reasons": [(single_line(label), single_line(reason)) for label, reason in reasons.items()],
            "omitted": max(len(shown) - MAX_RUNS, 0),
            "split": split.name,
            "several": len(runs) > 1,
            **_game_values(games, figures),
            "examples": _example_values(examples, figures),
        }
    }


def _measure(label: str, run: Run, split: Split, images: bool) -> tuple[PointingGame | None, list[ActivationExample]]:
    game = None
    if split.boxes is not None and len(split.boxes.rows):
        least, middle, most = _SAMPLE
        count = round(middle * (224 / run.model.backbone.input_spec.size) ** 2)
        game = pointing_game(run, split, images=min(max(count, least), most))
        game = game if len(game.rows) else None
    return game, activation_examples({label: run}, split) if images else []


def _merged(parts: Sequence[Sequence[ActivationExample]]) -> list[ActivationExample]:
    """Return the examples of several runs, which are of the same images, with the maps of all."""
    merged = []
    for each in zip(*parts, strict=True):
        for other in each[1:]:
            each[0].maps.update(other.maps)
            each[0].points.update(other.points)
            each[0].hits.update(other.hits)
        merged.append(each[0])
    return merged


def _game_values(games: Mapping[str, PointingGame], figures: FigureRenderer) -> dict[str, Any]:
    """Return the figure and the table of the pointing game; empty without boxes."""
    if not games:
        return {"figure": None, "rows": [], "images": "", "available": "", "center": ""}
    first = next(iter(games.values()))
    columns: dict[str, Columns] = {
        label: {
            "class": list(game.classes),
            "images": game.class_counts,
            "hits": game.class_hits,
            "hit_rate": np.where(game.class_counts > 0, game.class_hits / np.maximum(game.class_counts, 1), np.nan),
        }
        for label, game in games.items()
    }
    rates = "; ".join(f"{label} {format_measure(game.hit_rate)}" for label, game in games.items())
    return {
        "figure": figures.render(
            lambda width: pointing_figure(games, width=width),
            f"Hit rate per class, and the mean over classes: {rates}.",
            name="pointing-game",
            data=stack_columns("run", columns),
        ),
        "rows": [
            (
                single_line(label),
                [format_measure(game.hit_rate), f"{int(game.hits.sum()):,} of {len(game.hits):,}"],
            )
            for label, game in games.items()
        ],
        "images": format_count(first.images),
        "available": format_count(first.available),
        "center": format_measure(first.center_rate),
    }


def _example_values(examples: Sequence[ActivationExample], figures: FigureRenderer) -> list[dict[str, Any]]:
    """Return images and maps as data URLs, boxes and maxima in pixels of the image."""
    if not examples:
        return []
    maxima: Columns = {
        "image": [each.split.labels.images[each.row] for each in examples for _ in each.maps],
        "class": [each.class_name for each in examples for _ in each.maps],
        "run": [label for each in examples for label in each.maps],
        "x": [each.points[label][0] for each in examples for label in each.maps],
        "y": [each.points[label][1] for each in examples for label in each.maps],
        "hit": [each.hits.get(label) for each in examples for label in each.maps],
    }
    names = join_names([each.class_name for each in examples])
    figures.keep(
        lambda width: activation_figure(examples, width=width),
        f"Class activation maps of {names}.",
        name="activation-maps",
        data=maxima,
    )
    return [
        {
            "image": single_line(each.split.labels.images[each.row]),
            "class_name": single_line(each.class_name),
            "thumbnail": thumbnail_data_url(each.split, each.row),
            "width": each.size[0],
            "height": each.size[1],
            "boxes": [(x0, y0, x1 - x0 + 1, y1 - y0 + 1) for x0, y0, x1, y1 in each.boxes.tolist()],
            "maps": [
                {
                    "label": single_line(label),
                    "heat": data_url(heat_map_png(activations, each.size, _HEAT_SIDE)),
                    "x": round(each.points[label][0] + 0.5, 1),
                    "y": round(each.points[label][1] + 0.5, 1),
                    "hit": each.hits.get(label),
                }
                for label, activations in each.maps.items()
            ],
        }
        for each in examples
    ]
