"""The section of a page on memorization: what a network learned about the missing labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labelgap.reporting.figures.memorization import memorization_panels, modified_label_panels
from labelgap.reporting.formatting import join_names, single_line
from labelgap.reporting.html import FigureRenderer
from labelgap.reporting.memorization import Memorization

__all__ = ["memorization_section"]


def memorization_section(
    found: Mapping[str, Memorization], methods: Mapping[str, str], figures: FigureRenderer
) -> dict[str, Any]:
    """Return the figures of memorization and, for large-loss methods, of the labels they modified; None without them.

    Args:
        found: label of a run → its memorization.
        methods: label of a run → its method.
        figures: of the page.
    """
    section: dict[str, Any] = {"memorization": None, "modified": None, "modified_by": ""}
    if not found:
        return section
    ends = "; ".join(
        f"{label}: false negatives {values.false_negative[0]:.2f} to {values.false_negative[-1]:.2f}, true negatives "
        f"{values.true_negative[0]:.2f} to {values.true_negative[-1]:.2f}"
        for label, values in found.items()
    )
    section["memorization"] = figures.render(
        lambda width: memorization_panels(found, width=width), f"Mean loss in the first and the last epoch. {ends}."
    )
    modified = {
        label: values.modified
        for label, values in found.items()
        if methods[label].startswith("ll-") and values.modified is not None
    }
    if modified:
        section["modified_by"] = join_names([single_line(label) for label in modified])
        section["modified"] = figures.render(
            lambda width: modified_label_panels(modified, width=width),
            f"Labels modified by {section['modified_by']} per epoch.",
        )
    return section
