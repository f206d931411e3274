"""Figure of the labels of single images as a method changes them over the epochs."""

from __future__ import annotations

from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from labelgap.labels import PRESENT, UNKNOWN
from labelgap.reporting.analysis.label_changes import LabelChanges
from labelgap.reporting.colors import BLUE, GREEN, GRID_COLOR, TEXT_COLOR, VERMILLION
from labelgap.reporting.example_images import thumbnail_image
from labelgap.reporting.formatting import truncate_label
from labelgap.reporting.style import NARROW, WIDE, make_figure, set_epoch_axis

_LINE: Final = 0.27


def label_change_figure(changes: LabelChanges, *, images: bool = True, width: float = WIDE) -> Figure:
    """Draw the labels of every image as lines over the epochs; an epoch that trained with a changed label is filled.

    Green: the label truly has the state that it was taken for; vermillion, with a cross: it has not; blue: the truth is
    not known. A name in bold was given as present.

    Args:
        changes: as ``label_changes`` returns them.
        images: whether to draw the images.
        width: in inches.
    """
    rows = list(dict.fromkeys(changes.rows.tolist()))
    groups = [np.flatnonzero(changes.rows == row) for row in rows]
    columns = 1 if width <= NARROW else 2
    lines = -(-len(groups) // columns)
    size = max(len(group) for group in groups)
    figure, axes = make_figure(lines, columns, width=width, height=lines * max(_LINE * size + 0.55, 1.4))
    for axis, row, group in zip(axes, rows, groups, strict=False):
        _draw(axis, changes, group)
        axis.set_title(truncate_label(changes.split.labels.images[row], 34), loc="left", fontsize=10, parse_math=False)
        if images:
            inset = axis.inset_axes((-0.62, 0.0, 0.3, 1.0))
            inset.imshow(np.asarray(thumbnail_image(changes.split, row).convert("RGB")))
            inset.set_axis_off()
    for axis in axes[len(groups) :]:
        axis.set_axis_off()
    for axis in axes[max(len(groups) - columns, 0) : len(groups)]:
        axis.set_xlabel("epoch")
    return figure


def _draw(axis: Axes, changes: LabelChanges, group: NDArray[np.int64]) -> None:
    """Draw the labels of one image."""
    epochs = len(changes.states)
    for line, place in enumerate(group.tolist()):
        axis.add_patch(Rectangle((0.55, line - 0.3), epochs - 0.1, 0.6, color=GRID_COLOR, linewidth=0))
        for epoch in np.flatnonzero(changes.states[:, place] != UNKNOWN).tolist():
            truth, state = changes.truth[place], changes.states[epoch, place]
            color = BLUE if truth == UNKNOWN else GREEN if truth == state else VERMILLION
            axis.add_patch(Rectangle((epoch + 0.55, line - 0.3), 0.9, 0.6, color=color, linewidth=0))
            if color == VERMILLION:
                axis.plot(epoch + 1, line, marker="x", color=TEXT_COLOR, markersize=4)
    names = changes.split.labels.classes
    shown = [truncate_label(names[column], 14) for column in changes.columns[group].tolist()]
    axis.set_yticks(np.arange(len(group)), shown, parse_math=False)
    for label, place in zip(axis.get_yticklabels(), group.tolist(), strict=True):
        label.set_fontweight("bold" if changes.observed[place] == PRESENT else "normal")
    axis.tick_params(axis="y", labelcolor=TEXT_COLOR)
    axis.set_ylim(len(group) - 0.5, -0.6)
    axis.grid(False)
    set_epoch_axis(axis, epochs)
    axis.set_xlim(0.4, epochs + 0.6)
