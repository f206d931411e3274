"""The model card of a run: what to know before using its weights.

The text is in ``templates/model_card.md``; this module computes its values. Only numbers that the known labels support
are shown.
"""

from __future__ import annotations

import platform
import re
import shlex
from pathlib import Path
from typing import Any, Final

import torch

from labelgap.core.files import write_text
from labelgap.data.dataset import Dataset, Split
from labelgap.data.feature_vectors import FEATURES
from labelgap.reporting.descriptions import describe_settings, describe_thresholds, find_method, revises_labels
from labelgap.reporting.formatting import wrapped_command
from labelgap.reporting.page import render_template
from labelgap.training import Run
from labelgap.training.history import describe_estimated, describe_kept_epoch, unseen_splits
from labelgap.training.rerun import run_review_commands, train_command, train_script, without_directories
from labelgap.training.settings import PROTOCOLS

MODEL_CARD_FILE: Final = "MODEL_CARD.md"

RARE_CLASS_LIMIT: Final = 10  # with fewer known present labels, the average precision of a class is unreliable
_ENDS: Final = 5


def write_model_card(run: Run, data: Dataset | None = None) -> Path:
    """Write the card of a finished run into its folder and return the path."""
    path = run.path / MODEL_CARD_FILE
    write_text(path, render_model_card(run, data))
    return path


def render_model_card(run: Run, data: Dataset | None = None) -> str:
    """Return the card of a finished run as Markdown; without the data set it was trained on it counts no labels.

    It begins with the YAML metadata of the Hugging Face hub, so that a run folder can be published with it as README.
    """
    text = str(render_template("model_card.md", **_run_values(run, data), **_data_values(run, data)))
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def _run_values(run: Run, data: Dataset | None) -> dict[str, Any]:
    """Return what the template takes from the run; whether the data have unknown labels decides about commands."""
    config, metrics, name = run.config, run.metrics, run.path.resolve().name
    splits = {split: metrics[split] for split in ("test", "val", "train") if metrics.get(split)}
    supported = [split for split, measured in splits.items() if measured["map"] is not None]
    unseen = unseen_splits(metrics)
    headline = next((split for split in unseen if split in supported), None)
    shareable = without_directories(config)
    command = train_command(shareable)
    thresholds = run.thresholds
    val_selected = ["the epoch"] if config.select != "last" else []
    val_selected += ["the thresholds"] if set(thresholds.marks) != {"default"} else []
    vectors = config.backbone == FEATURES
    method = find_method(config.method)
    weights = metrics.get("weights") or {"source": "not recorded", "license": "not recorded"}
    return {
        "name": name,
        "config": config,
        "metrics": metrics,
        "kept_epoch": describe_kept_epoch(metrics),
        "splits": splits,
        "supported": supported,
        "estimated": {split: text for split, each in splits.items() if (text := describe_estimated(each))},
        "review_commands": () if headline else run_review_commands(run.path, config, data, share=True),
        "headline": None if headline is None else splits[headline],
        "headline_split": "training images, scored out of fold" if headline == "train" else f"{headline} images",
        "out_of_fold": "train" in unseen,
        "val_selected": val_selected,
        "vectors": vectors,
        "things": "feature vectors" if vectors else "images",
        "folder": shlex.quote(name),
        "threshold_sources": describe_thresholds(run),
        "threshold_range": (float(thresholds.values.min()), float(thresholds.values.max())),
        "protocol": PROTOCOLS[config.protocol],
        "summary": method.summary if method else "",
        "citation": method.citation if method else "",
        "revises": revises_labels(config.method),
        "revision_count": len(run.revisions),
        "quality": metrics.get("revisions"),
        "settings": describe_settings(config, everything=True, size=weights.get("size")),
        "command": None if command is None else wrapped_command(command),
        "script": train_script(shareable),
        "folders_removed": shareable != config,
        "weights": weights,
        "torch_version": torch.__version__,
        "python_version": platform.python_version(),
        "rare_limit": RARE_CLASS_LIMIT,
        "ends": _ENDS,
    }


def _data_values(run: Run, data: Dataset | None) -> dict[str, Any]:
    """Return what the template takes from the data set; empty values where there is none."""
    if data is None:
        name = str(run.config.data.get("name") or "unnamed data")
        nothing = ("unmeasured", "never_present", "rarely_present", "findings", "label_counts", "hidden_splits")
        return {
            **dict.fromkeys(nothing, ()),
            **{"data_name": name, "data_kind": name, "data_license": None, "train_images": 0, "unknown_share": 0.0},
            **{"class_rows": (), "class_split": "", "classes_omitted": False},
        }
    counts = data.train.labels.counts()
    present = dict(zip(data.classes, counts.present, strict=True))
    label_counts = [_label_counts(split) for split in data.splits]
    measured = [split for split in data.splits if (run.metrics.get(split.name) or {}).get("map") is not None]
    return {
        "data_name": data.name,
        "data_kind": str(data.recipe.get("name", "own")),
        "data_license": data.recipe.get("license"),
        "train_images": len(data.train),
        "unknown_share": label_counts[0]["unknown_share"],
        "unmeasured": {
            split.name: share for split in reversed(measured) if (share := _unknown_share(split.evaluation_labels))
        },
        "never_present": [name for name, count in present.items() if count == 0],
        "rarely_present": [name for name, count in present.items() if 0 < count < RARE_CLASS_LIMIT],
        "findings": [str(finding) for finding in data.findings],
        "label_counts": label_counts,
        "hidden_splits": [split.name for split in data.splits if split.truth is not None and not split.labels.complete],
        **_class_values(run, data),
    }


def _class_values(run: Run, data: Dataset) -> dict[str, Any]:
    """Return the rows of the best and the worst classes, of all where they are few."""
    split = data.test or data.val or (data.train if run.config.folds else None)
    measured = None if split is None else run.metrics.get(split.name)
    each = {} if measured is None else measured["average_precision"]
    order = sorted((name for name, value in each.items() if value is not None), key=lambda name: -each[name])
    if split is None or len(order) < 2:
        return {"class_rows": (), "class_split": "", "classes_omitted": False}
    omitted = len(order) > 2 * _ENDS
    present, train_present = split.evaluation_labels.counts().present, data.train.labels.counts().present
    found = run.thresholds
    rows = [
        {
            "name": name,
            "average_precision": each[name],
            "present": int(present[column]),
            "train_present": int(train_present[column]),
            "threshold": float(found.values[column]),
            "threshold_source": found.marks[column],
            "rare": present[column] < RARE_CLASS_LIMIT,
        }
        for name in ([*order[:_ENDS], *order[-_ENDS:]] if omitted else order)
        for column in [data.classes.index(name)]
    ]
    return {"class_rows": rows, "class_split": split.name, "classes_omitted": omitted}


def _label_counts(split: Split) -> dict[str, Any]:
    counts = dict(zip(("present", "absent", "unknown"), split.labels.counts().total, strict=True))
    return {"split": split.name, "images": len(split), "unknown_share": _unknown_share(split.labels), **counts}


def _unknown_share(labels: Any) -> float:
    total = labels.counts().total
    return float(total[2] / max(sum(total), 1))
