"""``metrics.jsonl``: a line per epoch, and a last line that sums the run up."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from labelgap.core.errors import RunError
from labelgap.core.files import write_text
from labelgap.training.checkpoints.checkpoint import TrainingState

__all__ = ["read_history", "write_history"]

METRICS_FILE = "metrics.jsonl"


def write_history(folder: Path, state: TrainingState, summary: dict[str, Any] | None = None) -> None:
    """Write the whole file anew, whole or not at all; a number that does not exist is null."""
    lines = [*state.history, *([{"summary": summary}] if summary is not None else [])]
    write_text(folder / METRICS_FILE, "".join(json.dumps(_plain(line), ensure_ascii=False) + "\n" for line in lines))


def read_history(folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the epochs and the summary; the summary is empty while the run is not done."""
    path = folder / METRICS_FILE
    if not path.exists():
        return [], {}
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        if not all(isinstance(line, dict) for line in lines):
            raise ValueError("a line is no record")
    except ValueError as error:
        raise RunError(f"{path} is damaged ({error}). Remove it, and --resume writes it anew.") from None
    summary: dict[str, Any] = next((line["summary"] for line in lines if "summary" in line), {})
    return [line for line in lines if "epoch" in line], summary


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
