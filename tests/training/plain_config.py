"""The settings of a plain run, without any that differ from the defaults."""

from __future__ import annotations

from typing import Any

PLAIN: dict[str, Any] = {
    "data": {"name": "csv", "path": "/photos/tags.csv", "options": {}, "steps": []},
    "classes": ("cat", "dog"),
    "method": "ll-r",
    "why": None,
    "backbone": "small-cnn",
    "protocol": "end-to-end",
    "epochs": 4,
    "lr": 0.003,
    "backbone_lr": 0.003,
    "batch_size": 64,
    "flip": False,
    "seed": 0,
    "select": "clean",
    "trace": "off",
}
