"""``MODEL_CARD.md``: what a stranger should know before using a run."""

from __future__ import annotations

from typing import Any

from labelgap.core.files import write_text
from labelgap.data.dataset import Dataset
from labelgap.objectives import describe
from labelgap.training.run import Run

__all__ = ["write_card"]


def write_card(run: Run, data: Dataset) -> None:
    """Write the card of a finished run."""
    config, summary = run.config, run.metrics
    entry = describe(config.method)
    lines = [
        f"# {run.path.name}: {data.name}, {config.method}",
        "",
        f"A multi-label image classifier of {len(config.classes)} classes: {', '.join(config.classes[:30])}"
        + (" …" if len(config.classes) > 30 else "."),
        "",
        "## Data",
        *(f"- {rule}" for rule in data.rules),
        *(_states(split.name, split.labels.counts().total, len(split)) for split in data.splits),
        "",
        "## Method",
        f"- `{config.method}` ({entry.reference}): {entry.summary}. Chosen: {config.why}.",
        f"- {config.protocol}, {config.backbone}, head {config.head}, {config.epochs} epochs, "
        f"batch {config.batch_size}, lr {config.lr:g}, seed {config.seed}"
        + (f", options {config.options}" if config.options else "")
        + ".",
        f"- Weights of the backbone: {run.model.backbone.source} ({run.model.backbone.licence}).",
        f"- Epoch {summary['best_epoch']} of {summary['epochs']} kept, by the rule '{config.select}'.",
        "",
        "## Results",
        *(_result(name, summary[name]) for name in ("val", "test") if name in summary),
        "",
        "## Limits",
        "- Measured on images like those of the data above; on others expect less.",
        "- A class counts in a mean only where known presents and known absents support it; the number is given.",
        f"- Thresholds: {_marks(summary['thresholds']['marks'])}.",
        "",
    ]
    write_text(run.path / "MODEL_CARD.md", "\n".join(lines))


def _states(name: str, counts: tuple[int, int, int], images: int) -> str:
    present, absent, unknown = counts
    return f"- {name}: {images:,} images; {present:,} labels present, {absent:,} absent, {unknown:,} unknown."


def _result(name: str, measured: dict[str, Any]) -> str:
    if measured["map"] is None:
        return f"- {name}: the known labels support no accuracy (no class has both a known present and a known absent)."
    counted = f"{measured['classes_counted']} of {measured['classes']} classes"
    return (
        f"- {name}: mAP {100 * measured['map']:.2f} over {counted}; F1 micro {100 * measured['f1_micro']:.2f}, "
        f"macro {100 * measured['f1_macro']:.2f} at the thresholds below."
    )


def _marks(marks: list[str]) -> str:
    kinds = {
        "measured": "measured on val",
        "estimated": "estimated from known positives alone",
        "default": "0.5 for want of labels",
    }
    found = [f"{marks.count(mark)} {words}" for mark, words in kinds.items() if mark in marks]
    return ", ".join(found)
