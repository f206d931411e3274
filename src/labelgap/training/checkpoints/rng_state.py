"""The states of the global random number generators, so that a resumed run draws what an unbroken one would."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def get_rng_state(device: torch.device) -> dict[str, Any]:
    """Return the states of Python's, NumPy's, torch's and the device's generators in plain types.

    With several processes the first one writes the checkpoint, and all restore its state, each on its own device.

    Example:
        >>> before = get_rng_state(torch.device("cpu"))
        >>> first = torch.rand(2), np.random.rand(), random.random()
        >>> set_rng_state(before, torch.device("cpu"))
        >>> torch.equal(torch.rand(2), first[0]), (np.random.rand(), random.random()) == first[1:]
        (True, True)
    """
    _, key, position, has_gauss, gauss = np.random.get_state(legacy=True)
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "numpy": (torch.from_numpy(np.asarray(key).astype(np.int64)), int(position), int(has_gauss), float(gauss)),
        "python": random.getstate(),
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    elif device.type == "mps":
        state["mps"] = torch.mps.get_rng_state()
    return state


def set_rng_state(state: dict[str, Any], device: torch.device) -> None:
    """Restore all generators; the state of a device of another type is ignored."""
    torch.set_rng_state(state["torch"].cpu())
    key, position, has_gauss, gauss = state["numpy"]
    np.random.set_state(("MT19937", key.cpu().numpy().astype(np.uint32), position, has_gauss, gauss))
    version, numbers, last = state["python"]
    random.setstate((version, tuple(numbers), last))
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"].cpu(), device)
    elif device.type == "mps" and "mps" in state:
        torch.mps.set_rng_state(state["mps"].cpu())
