"""What a run needs to go on after it was killed, and the weights of its best epoch."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from labelgap.core.errors import RunError
from labelgap.core.files import atomic_path

__all__ = ["BEST", "LAST", "State", "load_weights", "read_last", "save_weights", "write_last"]

LAST = "last.pt"
BEST = "best.safetensors"


@dataclass
class State:
    """Where training stands after a whole epoch.

    Attributes:
        epoch: epochs done.
        history: one dictionary per epoch, as in ``metrics.jsonl``.
        best_epoch: the epoch kept so far; 0 before the first.
        best_score: its score under the selection rule; None under "last".
    """

    epoch: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)
    best_epoch: int = 0
    best_score: float | None = None


def write_last(
    folder: Path, state: State, network: nn.Module, optimiser: torch.optim.Optimizer, objective: nn.Module
) -> None:
    """Write ``last.pt``: everything that decides how training goes on."""
    content = {
        "state": vars(state),
        "network": network.state_dict(),
        "optimiser": optimiser.state_dict(),
        "objective": objective.state_dict(),
        "random": torch.get_rng_state(),
    }
    with atomic_path(folder / LAST) as temporary:
        torch.save(content, temporary)


def read_last(
    folder: Path, network: nn.Module, optimiser: torch.optim.Optimizer, objective: nn.Module, device: torch.device
) -> State:
    """Put everything back as it was after the last whole epoch; a fresh state if there was none."""
    path = folder / LAST
    if not path.exists():
        return State()
    try:
        content = torch.load(path, map_location=device, weights_only=True)
        network.load_state_dict(content["network"])
        optimiser.load_state_dict(content["optimiser"])
        objective.load_state_dict(content["objective"])
        torch.set_rng_state(content["random"].cpu())
        return State(**content["state"])
    except (RuntimeError, KeyError, TypeError, ValueError, EOFError, pickle.UnpicklingError) as error:
        raise RunError(
            f"{path} cannot be resumed from ({str(error).splitlines()[0]}). Train into a new folder."
        ) from None


def save_weights(folder: Path, network: nn.Module) -> None:
    """Write ``best.safetensors``."""
    weights = {name: value.contiguous() for name, value in network.state_dict().items()}
    with atomic_path(folder / BEST) as temporary:
        safetensors.torch.save_file(weights, temporary)


def load_weights(folder: Path, network: nn.Module) -> None:
    """Load ``best.safetensors`` into a network; a backbone that was not trained is not in it and stays as it is."""
    path = folder / BEST
    try:
        weights: dict[str, Tensor] = safetensors.torch.load_file(path)
    except FileNotFoundError:
        raise RunError(f"{folder} has no {BEST}: no epoch was finished. Resume it.") from None
    except safetensors.SafetensorError as error:
        raise RunError(f"{path} is damaged ({error}).") from None
    missing, unexpected = network.load_state_dict(weights, strict=False)
    frozen = not any(name.startswith("backbone.") for name in weights)
    lacking = [name for name in missing if not (frozen and name.startswith("backbone."))]
    if lacking or unexpected:
        raise RunError(f"{path} does not fit the network of its config.json ({[*lacking, *unexpected][0]}).")
