"""Weights & Biases: a run in ``wandb/`` of ``WANDB_DIR`` or of the current folder; offline without ``WANDB_MODE``.

It is not in the run folder, because wandb makes links to its cache there, and labelgap refuses links out of a run.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from labelgap.training.loggers.base import EpochLogger, Row, Scalars

_SETTINGS: Final = {
    "console": "off",
    "disable_git": True,
    "save_code": False,
    "silent": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_transaction_log_flush_interval": 1,
}
"""Those that the installed version has; a killed process loses the epochs of the last second."""


class WandbLogger(EpochLogger):
    """Logs scalars with the epoch as their step, and the hyper-parameters as the config of the run.

    Nothing is sent and nobody is logged in unless ``WANDB_MODE=online``; ``wandb sync`` uploads an offline run later.
    Neither console output, code nor statistics of the machine are recorded. ``WANDB_PROJECT`` is "labelgap" by default.
    """

    package = "wandb"

    def __init__(self, folder: Path, settings: Mapping[str, Any], *, id: str, start: int) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # before the import: it reports crashes otherwise
        import wandb

        library: Any = wandb
        self._run = library.init(
            project=os.environ.get("WANDB_PROJECT", "labelgap"),
            name=folder.name,
            id=id or None,
            resume="allow" if id else None,
            config=dict(settings),
            mode=os.environ.get("WANDB_MODE", "offline"),
            settings=library.Settings(
                **{name: _SETTINGS[name] for name in _SETTINGS if hasattr(library.Settings(), name)}
            ),
        )
        super().__init__(folder, settings, id=str(self._run.id), start=start)

    def log(self, rows: Sequence[Row], new: Sequence[Row]) -> None:
        """Log the new epochs."""
        for epoch, scalars in new:
            self._run.log({"epoch": epoch, **scalars}, step=epoch, commit=True)

    def finish(self, rows: Sequence[Row], measured: Scalars) -> None:
        """Put the measures into the summary of the run."""
        self._run.summary.update(dict(measured))

    def close(self, *, finished: bool) -> None:
        """End the run."""
        self._run.finish(exit_code=0 if finished else 1)
