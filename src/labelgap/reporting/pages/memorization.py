"""The section of a page on memorization: what a network learned about the missing labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labelgap.losses.large_loss import AbsoluteLargeLoss, RelativeLargeLoss
from labelgap.reporting.figures.memorization import memorization_panels, modified_label_panels
from labelgap.reporting.formatting import join_names, single_line
from labelgap.reporting.html import FigureRenderer
from labelgap.reporting.memorization import Memorization
from labelgap.reporting.run_description import find_method

__all__ = ["memorization_section"]


def memorization_section(
    found: Mapping[str, Memorization], methods: Mapping[str, str], figures: FigureRenderer
) -> dict[str, Any]:
    """Return the figures of memorization and, for large-loss methods, of the labels they modified; None without them.

    ``found`` and ``methods`` have the memorization and the method of a run by its label.
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
        if values.modified is not None and _is_large_loss(methods[label])
    }
    if modified:
        section["modified_by"] = join_names([single_line(label) for label in modified])
        section["modified"] = figures.render(
            lambda width: modified_label_panels(modified, width=width),
            f"Labels modified by {section['modified_by']} per epoch.",
        )
    return section


def _is_large_loss(name: str) -> bool:
    method = find_method(name)
    return method is not None and issubclass(method.loss_class, RelativeLargeLoss | AbsoluteLargeLoss)
