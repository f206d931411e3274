"""``metrics.jsonl``: one line per epoch, and a last line with the summary of the run."""

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
    """Replace the whole file; a number that is not finite is written as null."""
    lines = [*state.history, *([{"summary": summary}] if summary is not None else [])]
    text = "".join(json.dumps(_finite(line), ensure_ascii=False) + "\n" for line in lines)
    write_text(folder / METRICS_FILE, text)


def read_history(folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the epochs and the summary; the summary is empty until the run is finished."""
    path = folder / METRICS_FILE
    if not path.exists():
        return [], {}
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        if not all(isinstance(line, dict) for line in lines):
            raise ValueError("a line is not a JSON object")
    except ValueError as error:
        raise RunError(f"{path} is damaged ({error}). Remove it, and --resume writes it again.") from None
    summary: dict[str, Any] = next((line["summary"] for line in lines if "summary" in line), {})
    return [line for line in lines if "epoch" in line], summary


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
