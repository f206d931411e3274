"""``best.safetensors``: the weights of the best epoch, which carry the epoch and a digest of their content.

The weights of the best epoch before it are kept while a run trains: where the last checkpoint is lost, the run resumes
from the one before, whose best epoch may be another.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Final

from torch import Tensor, nn

from labelgap.core.errors import LabelGapError, RunError
from labelgap.core.manifest import check_files
from labelgap.core.stored import damaged
from labelgap.core.tensors import read_tensor_metadata, read_tensors, write_tensors
from labelgap.models import Backbone, as_backbone
from labelgap.training.config.schema import INITIAL_WEIGHTS

BEST: Final = "best.safetensors"
PREVIOUS_BEST: Final = "best.previous.safetensors"
_EPOCH: Final = "epoch"
REMEDY: Final = "Restore it from a copy, or train again; --resume helps in an unfinished run."


def save_weights(folder: Path, network: nn.Module, epoch: int | None = None) -> None:
    """Write ``best.safetensors``; the weights of the best epoch before become ``best.previous.safetensors``.

    Args:
        folder: of the run.
        network: its weights.
        epoch: of the weights, recorded in the file.
    """
    rewritten = epoch is not None and _recorded_epoch(folder / BEST) == epoch
    metadata = {} if epoch is None else {_EPOCH: str(epoch)}
    previous = None if rewritten else folder / PREVIOUS_BEST
    write_tensors(folder / BEST, network.state_dict(), metadata, previous=previous)


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Return the tensors of ``best.safetensors``."""
    if not (folder / BEST).exists():
        raise RunError(f"{folder} has no {BEST}: no epoch is complete. Resume it with --resume.")
    check_files(folder, [BEST])
    return read_tensors(folder / BEST, remedy=REMEDY)[0]


def load_weights(folder: Path, network: nn.Module) -> None:
    """Load ``best.safetensors`` into a network; a frozen backbone that is not in the file is left as it is."""
    weights = read_weights(folder)
    set_weights(network, weights, folder / BEST, frozen=not has_backbone(weights))


def has_backbone(weights: Mapping[str, Tensor]) -> bool:
    """Return whether weights are of the whole network, not of the head only."""
    return any(name.startswith("backbone.") for name in weights)


def set_weights(network: nn.Module, weights: Mapping[str, Tensor], path: Path, *, frozen: bool = False) -> None:
    """Load tensors of a file into a network.

    Args:
        network: all of its tensors have to be there, and no others.
        weights: the tensors.
        path: of their file.
        frozen: whether the backbone is left as it is.
    """
    own = network.state_dict()
    lacking = [name for name in own if name not in weights and not (frozen and name.startswith("backbone."))]
    other = [
        name
        for name, value in weights.items()
        if name not in own or own[name].shape != value.shape or own[name].is_complex() != value.is_complex()
    ]
    if lacking or other:
        raise damaged(path, f"{[*lacking, *other][0]} does not fit the network of its config.json", REMEDY)
    network.load_state_dict(dict(weights), strict=False)


def has_weights_of(folder: Path, epoch: int) -> bool:
    """Return whether intact weights of an epoch are on the disk."""
    # best.safetensors twice: the first process may rename the other file to it in the meantime
    return any(_is_intact(folder / name, epoch) for name in (BEST, PREVIOUS_BEST, BEST))


def restore_weights(folder: Path, epoch: int) -> None:
    """Let ``best.safetensors`` be the weights of an epoch, where only the older file has them."""
    if not _is_intact(folder / BEST, epoch) and _is_intact(folder / PREVIOUS_BEST, epoch):
        (folder / PREVIOUS_BEST).replace(folder / BEST)


def _is_intact(path: Path, epoch: int) -> bool:
    if _recorded_epoch(path) != epoch:
        return False
    try:
        read_tensors(path)
    except LabelGapError:
        return False
    return True


def _recorded_epoch(path: Path) -> int | None:
    """Return the epoch recorded in a file of weights; None without an intact header or a record."""
    try:
        return int(read_tensor_metadata(path)[_EPOCH])
    except (LabelGapError, KeyError, ValueError):
        return None


def copy_backbone(network: nn.Module, folder: Path, size: int | None) -> Backbone:
    """Return a copy of a module as a backbone, with the initial weights of the run in the folder if there is one."""
    backbone = as_backbone(deepcopy(network))
    if size is not None:
        backbone.input_spec = replace(backbone.input_spec, size=size)
    stored = folder / INITIAL_WEIGHTS
    if stored.exists():
        weights = read_tensors(stored)[0]
        try:
            set_weights(backbone, weights, stored)
        except RunError as error:
            raise RunError(f"the network is not the one that {folder} was started with: {error}") from None
    return backbone
