"""``last.pt``, from which a run resumes, and ``best.safetensors``, the weights of its best epoch.

Two generations of each are on the disk while a run trains. Where the newer one is damaged, the run resumes from the
older one, repeats what was between them, and ends with the same numbers.
"""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

import torch
from torch import Tensor

from labelgap.core.distributed import is_main_process
from labelgap.core.errors import LabelGapError, RunError
from labelgap.core.files import DiskError, atomic_path, remove_file, remove_partials
from labelgap.core.stored import READ_ERRORS, check_ordinary, validate
from labelgap.core.text import truncate_text
from labelgap.training.checkpoints.history import EpochRecord, check_epochs, finite
from labelgap.training.checkpoints.partial_epoch import PartialEpoch
from labelgap.training.checkpoints.rng_state import get_rng_state, set_rng_state
from labelgap.training.checkpoints.weights import BEST, PREVIOUS_BEST, has_weights_of, restore_weights

LAST = "last.pt"
PREVIOUS = "last.previous.pt"
FORMAT: Final = 2
_RESERVED: Final = ("format", "fingerprint", "state", "random")
_BEST_LOST: Final = f"{BEST}, which belongs to it, is damaged or missing"
_READ_ERRORS: Final = (*READ_ERRORS, pickle.UnpicklingError, LabelGapError)
"""What reading a damaged file can raise."""


@runtime_checkable
class Stateful(Protocol):
    """Something with a state to save and restore: a network, an optimizer, a scheduler, a loss."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return the state."""

    def load_state_dict(self, state_dict: Any, /) -> Any:
        """Restore the state."""


@dataclass
class TrainingState:
    """The progress of a training after a complete epoch, or after a step of the next one.

    Attributes:
        epoch: number of completed epochs.
        history: one dictionary per epoch, as in ``metrics.jsonl``; first that of epoch 0 where it was scored.
        best_epoch: the best epoch so far; 0 before the first, or where epoch 0, the linear head, is the best.
        best_score: its score under the selection rule; None under "last".
        divergences: how often training has diverged, and the rates were halved.
        partial: how far the next epoch is; None between epochs, and while a step is computed.
    """

    epoch: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)
    best_epoch: int = 0
    best_score: float | None = None
    divergences: int = 0
    partial: PartialEpoch | None = None


def save_checkpoint(
    folder: Path, state: TrainingState, parts: Mapping[str, Stateful], *, fingerprint: str = ""
) -> None:
    """Write ``last.pt``; the checkpoint before becomes ``last.previous.pt``.

    Args:
        folder: of the run.
        state: after a complete epoch, or after a complete step.
        parts: name → what has a state.
        fingerprint: of the configuration; ``load_checkpoint`` compares it.
    """
    reserved = [name for name in parts if name in _RESERVED]
    if reserved:
        raise ValueError(f"a part of a checkpoint cannot be called {reserved[0]!r}")
    states = {name: part.state_dict() for name, part in parts.items()}
    random = get_rng_state(_device_of(states))
    progress = {name: value for name, value in vars(state).items() if name != "partial"}
    if state.partial is not None:
        progress["partial"] = state.partial.state_dict()
    content = {"format": FORMAT, "fingerprint": fingerprint, "state": progress, "random": random, **states}
    with atomic_path(folder / LAST, previous=folder / PREVIOUS) as temporary, temporary.open("wb") as file:
        torch.save(content, file)  # given a path, torch would write it into the file


def load_checkpoint(
    folder: Path,
    parts: Mapping[str, Stateful],
    device: torch.device,
    *,
    fingerprint: str = "",
    log: Callable[[str], None] = lambda text: None,
) -> TrainingState:
    """Restore everything as it was at the last checkpoint; return a fresh state if there is none.

    Args:
        folder: of the run.
        parts: under the names that were given to ``save_checkpoint``.
        device: of the tensors.
        fingerprint: of the configuration; a checkpoint of another one is refused.
        log: gets a message when ``last.pt`` is damaged and the checkpoint before it is used.
    """
    if is_main_process():
        remove_partials(folder)
    content, damage = _newest(folder, device)
    if content is None:
        return TrainingState()
    state = _restore(folder, content, parts, device, fingerprint)
    if damage is not None:
        log(f"{folder / LAST} is damaged ({damage}): resuming from the checkpoint before it, after epoch {state.epoch}")
    if is_main_process():
        if damage is not None:
            remove_file(folder / LAST)  # the next checkpoint must not replace the intact one
        restore_weights(folder, state.best_epoch)
    return state


def completed_epochs(folder: Path) -> int:
    """Return the number of epochs after which a run resumes; 0 where it starts from the beginning."""
    for name in (LAST, PREVIOUS):
        try:
            check_ordinary(folder / name)
            content = torch.load(folder / name, map_location="cpu", weights_only=True, mmap=True)
            return int(content["state"]["epoch"])
        except Exception:
            continue
    return 0


@contextmanager
def report_saved_epochs(folder: Path) -> Iterator[None]:
    """Add to a disk error which epochs of the run in ``folder`` are saved, and how to resume."""
    try:
        yield
    except DiskError as error:
        epochs = completed_epochs(folder)
        saved = f"the last complete epoch is {epochs}" if epochs else "no epoch was complete before"
        remedy = "free some space" if error.full else "make the folder writable"
        raise RunError(f"{error.problem}. Nothing is lost: {saved}; {remedy}, and continue with --resume.") from error


def remove_previous(folder: Path) -> None:
    """Remove the older generation, which a finished run does not need."""
    for name in (PREVIOUS, PREVIOUS_BEST):
        remove_file(folder / name)


def _newest(folder: Path, device: torch.device) -> tuple[dict[str, Any] | None, str | None]:
    """Return the newest usable checkpoint (None if there is none), and what is wrong with ``last.pt``."""
    damage: dict[str, str] = {}
    for name in (LAST, PREVIOUS):
        try:
            content = _read(folder / name, device)
            if content.get("format") == FORMAT:
                _check_state(content["state"], folder / name)
            return content, damage.get(LAST)
        except FileNotFoundError:
            continue
        except (PermissionError, IsADirectoryError) as error:
            raise RunError(f"{folder / name} cannot be read ({error.strerror}).") from None
        except _READ_ERRORS as error:
            damage[name] = _first_line(error)
    if not damage:
        return None, None
    name, reason = next(iter(damage.items()))
    if reason == _BEST_LOST:
        raise RunError(
            f"{folder / BEST} is damaged or missing, and no other file has the weights of the best epoch: this run "
            "cannot be resumed. Train into a new folder."
        )
    both = f", and so is {PREVIOUS}" if len(damage) > 1 else ""
    best = f"; {BEST} still holds the best weights" if (folder / BEST).exists() else ""
    raise RunError(
        f"{folder / name} is damaged ({reason}){both}: this run cannot be resumed. Train into a new folder{best}."
    )


def _read(path: Path, device: torch.device) -> dict[str, Any]:
    """Read a checkpoint and verify its sizes and checksums, which torch does not."""
    if path.exists():
        check_ordinary(path)
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        if any(member.compress_type != zipfile.ZIP_STORED for member in members):
            raise zipfile.BadZipFile("it is compressed")
        if sum(member.file_size for member in members) > path.stat().st_size:
            raise zipfile.BadZipFile("it claims more bytes than it has")
        if archive.testzip() is not None:
            raise zipfile.BadZipFile("a checksum is wrong")
    content = torch.load(path, map_location=device, weights_only=True)
    if not isinstance(content, dict) or not isinstance(content.get("state"), dict):
        raise ValueError("it is not a checkpoint")
    return content


def _check_state(state: dict[str, Any], path: Path) -> None:
    """Raise an error unless a state is that of a training, whose best weights are there."""
    within = "partial" in state
    if {*state, "partial"} != vars(TrainingState()).keys() or not isinstance(state["history"], list):
        raise ValueError("it has no state of a training")
    if within:
        PartialEpoch.from_state(state["partial"])
    if any(type(state[name]) is not int for name in ("epoch", "best_epoch", "divergences")):
        raise ValueError("an epoch is not a number")
    for record in state["history"]:
        validate(finite(record), EpochRecord, path)
    check_epochs(state["history"], state["epoch"])
    scored = [record["epoch"] for record in state["history"]] or ([0] if within else [])
    if state["best_epoch"] not in scored or not isinstance(state["best_score"], float | None):
        raise ValueError("the best epoch is none of its epochs")
    elsewhere = state["best_epoch"] != state["epoch"] or (within and state["history"])
    if elsewhere and not has_weights_of(path.parent, state["best_epoch"]):
        raise ValueError(_BEST_LOST)


def _restore(
    folder: Path, content: dict[str, Any], parts: Mapping[str, Stateful], device: torch.device, fingerprint: str
) -> TrainingState:
    """Restore every part, or say why this checkpoint is of another run."""
    if content.get("format") != FORMAT:
        found = truncate_text(repr(content.get("format")), 40)
        raise RunError(
            f"{folder} was trained by another version of labelgap (checkpoint format {found}, not "
            f"{FORMAT}): resume it with that version, or train into a new folder."
        )
    if fingerprint and content.get("fingerprint") != fingerprint:
        raise RunError(
            f"the checkpoint in {folder} is of another configuration than its config.json: restore the config.json "
            "that belongs to it, or train into a new folder."
        )
    try:
        for name, part in parts.items():
            part.load_state_dict(content[name])
        set_rng_state(content["random"], device)
        partial = content["state"].get("partial")
        within = None if partial is None else PartialEpoch.from_state(partial)
        return TrainingState(**{**content["state"], "partial": within})
    except READ_ERRORS as error:
        raise RunError(
            f"the checkpoint in {folder} does not fit this run ({_first_line(error)}). Train into a new folder."
        ) from None


def _device_of(value: Any) -> torch.device:
    """Return the device of the first tensor that is not on the CPU."""
    if isinstance(value, Tensor) and value.device.type != "cpu":
        return value.device
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    found = (device for item in inner if (device := _device_of(item)).type != "cpu")
    return next(found, torch.device("cpu"))


def _first_line(error: BaseException) -> str:
    return truncate_text((str(error).splitlines() or [type(error).__name__])[0], 200)
