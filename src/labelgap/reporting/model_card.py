"""The model card of a run: what to know before using its weights; only numbers that the known labels support."""

from __future__ import annotations

import platform
import re
import shlex
from typing import Any, Final

import torch

from labelgap.data.dataset import Dataset
from labelgap.data.images import FEATURES
from labelgap.labels import LabelTable
from labelgap.reporting.descriptions import describe_settings, describe_thresholds, find_method, revises_labels
from labelgap.reporting.formatting import wrapped_command
from labelgap.reporting.page import render_template
from labelgap.reporting.style import outermost
from labelgap.training import Run
from labelgap.training.history import describe_estimated, describe_kept_epoch, unseen_splits
from labelgap.training.rerun import run_review_commands, train_command, train_script, without_directories
from labelgap.training.settings import PROTOCOLS

MODEL_CARD_FILE: Final = "MODEL_CARD.md"

RARE_CLASS_LIMIT: Final = 10  # with fewer known present labels, the average precision of a class is unreliable
_ENDS: Final = 5


def render_model_card(run: Run, data: Dataset | None = None) -> str:
    """Return the card of a finished run as Markdown of the Hugging Face hub; without data it counts no labels."""
    text = str(render_template("model_card.md", **_run_values(run, data), **_data_values(run, data)))
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def _run_values(run: Run, data: Dataset | None) -> dict[str, Any]:
    """Return what the template takes from the run; whether the data have unknown labels decides about commands."""
    config, metrics, method = run.config, run.metrics, find_method(run.config.method)
    splits = {split: metrics[split] for split in ("test", "val", "train") if metrics.get(split)}
    supported = [split for split, measured in splits.items() if measured["map"] is not None]
    unseen = unseen_splits(metrics)
    headline = next((split for split in unseen if split in supported), None)
    shareable = without_directories(config)
    command = train_command(shareable)
    val_selected = ["the epoch"] if config.select != "last" else []
    val_selected += ["the thresholds"] if set(run.thresholds.marks) != {"default"} else []
    weights = metrics.get("weights") or {"source": "not recorded", "license": "not recorded"}
    return {
        "name": run.path.resolve().name,
        "folder": shlex.quote(run.path.resolve().name),
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
        "vectors": config.backbone == FEATURES,
        "things": "feature vectors" if config.backbone == FEATURES else "images",
        "threshold_sources": describe_thresholds(run),
        "calibrated": run.calibration is not None,
        "threshold_range": (float(run.thresholds.values.min()), float(run.thresholds.values.max())),
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
        more = dict.fromkeys(
            (*nothing, "class_rows", "class_split", "data_license", "train_images", "unknown_share"), ()
        )
        return {**more, "data_name": name, "data_kind": name, "classes_omitted": False}
    present = dict(zip(data.classes, data.train.labels.counts().present, strict=True))
    measured = [split for split in data.splits if (run.metrics.get(split.name) or {}).get("map") is not None]
    unmeasured = {split.name: _unknown_share(split.evaluation_labels) for split in reversed(measured)}
    return {
        "data_name": data.name,
        "data_kind": str(data.recipe.get("name", "own")),
        "data_license": data.recipe.get("license"),
        "train_images": len(data.train),
        "unknown_share": _unknown_share(data.train.labels),
        "unmeasured": {name: share for name, share in unmeasured.items() if share},
        "never_present": [name for name, count in present.items() if count == 0],
        "rarely_present": [name for name, count in present.items() if 0 < count < RARE_CLASS_LIMIT],
        "findings": [str(finding) for finding in data.findings],
        "label_counts": [
            (split.name, len(split), split.labels.counts().total, _unknown_share(split.labels)) for split in data.splits
        ],
        "hidden_splits": [split.name for split in data.splits if split.truth is not None and not split.labels.complete],
        **_class_values(run, data),
    }


def _class_values(run: Run, data: Dataset) -> dict[str, Any]:
    split = data.test or data.val or (data.train if run.config.folds else None)
    each = {} if split is None else (run.metrics.get(split.name) or {}).get("average_precision", {})
    order = sorted((name for name, value in each.items() if value is not None), key=lambda name: -each[name])
    if split is None or len(order) < 2:
        return {"class_rows": (), "class_split": "", "classes_omitted": False}
    present, train_present = split.evaluation_labels.counts().present, data.train.labels.counts().present
    rows = [
        {
            "name": name,
            "average_precision": each[name],
            "present": int(present[column]),
            "train_present": int(train_present[column]),
            "threshold": float(run.thresholds.values[column]),
            "threshold_source": run.thresholds.marks[column],
            "rare": present[column] < RARE_CLASS_LIMIT,
        }
        for name in outermost(order, 2 * _ENDS)
        for column in [data.classes.index(name)]
    ]
    return {"class_rows": rows, "class_split": split.name, "classes_omitted": len(rows) < len(order)}


def _unknown_share(labels: LabelTable) -> float:
    total = labels.counts().total
    return float(total[2] / max(sum(total), 1))
