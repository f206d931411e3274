"""One run: its settings and plan, protocols, loop, checkpoints, traces, selection of the epoch."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labelgap.training.run import Run, open_run

__all__ = ["Run", "open_run"]


def __getattr__(name: str) -> Any:
    """Import on first use: the commands read the settings without the seconds that PyTorch takes."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from labelgap.training import run

    return getattr(run, name)
