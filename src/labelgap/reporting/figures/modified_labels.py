"""Figure of the unknown labels that methods modified: how many, and how many rightly."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from labelgap.reporting.analysis.modified_labels import ModifiedLabels
from labelgap.reporting.colors import BACKGROUND_COLOR, COLOR_CYCLE, MUTED_COLOR, TEXT_COLOR
from labelgap.reporting.formatting import truncate_label
from labelgap.reporting.style import NARROW, WIDE, add_legend, make_figure, set_epoch_axis

_TITLES = {
    "share": "modified, % of unknown",
    "precision": "precision: truly {state}, %",
    "recall": "recall, % of truly {state}",
}


def modified_label_panels(
    methods: Mapping[str, ModifiedLabels], state: str = "present", *, width: float = WIDE
) -> Figure:
    """Draw share, precision and recall of the modified labels per epoch; a measure that no method has, is left out.

    Args:
        methods: by label; up to six differ in color and marker.
        state: that the labels were taken for, "present" or "absent".
        width: in inches.
    """
    names = [name for name in _TITLES if any(np.isfinite(getattr(values, name)).any() for values in methods.values())]
    narrow = width <= NARROW
    rows, columns = (max(len(names), 1), 1) if narrow else (1, max(len(names), 1))
    figure, axes = make_figure(rows, columns, width=width, height=2.2 * rows + 0.7)
    lines = []
    for number, values in enumerate(methods.values()):
        color, marker = COLOR_CYCLE[number % len(COLOR_CYCLE)]
        epochs = np.arange(1, len(values.share) + 1)
        for axis, name in zip(axes, names, strict=False):
            line = axis.plot(
                epochs,
                100 * getattr(values, name),
                color=color,
                marker=marker,
                markeredgecolor=BACKGROUND_COLOR,
                linewidth=2,
            )[0]
            set_epoch_axis(axis, len(epochs))
        lines.append(line)
    for place, (axis, name) in enumerate(zip(axes, names, strict=False)):
        axis.set_title(_TITLES[name].format(state=state), loc="left", color=TEXT_COLOR)
        axis.set_ylim(0, None if name == "share" else 103)
        axis.set_xlabel("epoch" if not narrow or place == len(names) - 1 else "")
    labels = [truncate_label(label, 24) for label in methods]
    if "precision" in names:
        base_rate = 100 * float(np.nanmean([values.base_rate for values in methods.values()]))
        axis = axes[names.index("precision")]
        lines.append(axis.axhline(base_rate, color=MUTED_COLOR, linewidth=1.2, linestyle=(0, (4, 3))))
        labels.append(f"modifying at random ({base_rate:.1f} %)")
    add_legend(figure, lines, labels, columns=1 if narrow else min(len(lines), 4))
    return figure
