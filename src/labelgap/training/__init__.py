"""One run: protocols, loop, checkpoints, traces, selection of the epoch."""

from labelgap.training.fit import fit
from labelgap.training.run import Run, open_run

__all__ = ["Run", "fit", "open_run"]
