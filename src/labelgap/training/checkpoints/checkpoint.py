"""What a run needs to go on after it was killed, and the weights of its best epoch.

Two generations are kept of each while a run goes on: where the disk has spoilt the newer one, an epoch is trained
again from the older, and the run ends as if nothing had happened.
"""

from __future__ import annotations

import pickle
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from labelgap.core.distributed import is_main_process
from labelgap.core.errors import RunError
from labelgap.core.files import DiskError, atomic_path, remove_partials
from labelgap.training.checkpoints.rng_state import get_rng_state, set_rng_state

__all__ = [
    "BEST",
    "LAST",
    "PREVIOUS",
    "PREVIOUS_BEST",
    "Stateful",
    "TrainingState",
    "completed_epochs",
    "has_backbone",
    "load_checkpoint",
    "load_weights",
    "remove_previous",
    "report_saved_epochs",
    "save_checkpoint",
    "save_weights",
]

LAST = "last.pt"
PREVIOUS = "last.previous.pt"
BEST = "best.safetensors"
PREVIOUS_BEST = "best.previous.safetensors"
FORMAT: Final = 1
_OWN: Final = ("format", "fingerprint", "state", "random")


@runtime_checkable
class Stateful(Protocol):
    """Something whose state can be taken and given back: a network, an optimiser, an objective, an average."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return everything that decides how it goes on."""

    def load_state_dict(self, state_dict: Any, /) -> Any:
        """Take up what ``state_dict`` gave."""


@dataclass
class TrainingState:
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


def save_checkpoint(
    folder: Path, state: TrainingState, parts: Mapping[str, Stateful], *, fingerprint: str = ""
) -> None:
    """Write ``last.pt``: everything that decides how training goes on. The one before stays as ``last.previous.pt``.

    Args:
        folder: the run's.
        state: after a whole epoch.
        parts: by name, what has a state of its own.
        fingerprint: of the configuration, so that no other takes it up.
    """
    reserved = [name for name in parts if name in _OWN]
    if reserved:
        raise ValueError(f"a part of a checkpoint cannot be called {reserved[0]!r}")
    states = {name: part.state_dict() for name, part in parts.items()}
    own = {"format": FORMAT, "fingerprint": fingerprint, "state": vars(state), "random": get_rng_state(_place(states))}
    with atomic_path(folder / LAST, previous=folder / PREVIOUS) as temporary, temporary.open("wb") as file:
        torch.save({**own, **states}, file)  # a path would be written into the file


def load_checkpoint(
    folder: Path,
    parts: Mapping[str, Stateful],
    device: torch.device,
    *,
    fingerprint: str = "",
    say: Callable[[str], None] = lambda text: None,
) -> TrainingState:
    """Put everything back as it was after the last whole epoch; a fresh state if there was none.

    A damaged checkpoint is passed over for the one before, and the epoch between them is trained again.

    Args:
        folder: the run's.
        parts: as they were given to ``save_checkpoint``, by the same names.
        device: where tensors go.
        fingerprint: of the configuration; a checkpoint of another is refused.
        say: told in a sentence when the older checkpoint is taken.
    """
    if is_main_process():
        remove_partials(folder)
    content, damage = _whole(folder, device)
    if content is None:
        return TrainingState()
    state = _take_up(folder, content, parts, device, fingerprint)
    if damage is not None:
        say(f"{folder / LAST} is damaged ({damage}): going on from the checkpoint before it, after epoch {state.epoch}")
    if is_main_process():
        if damage is not None:
            (folder / LAST).unlink(missing_ok=True)  # the next checkpoint must not push the whole one out
        _bring_back_best(folder, state.best_epoch)
    return state


def completed_epochs(folder: Path) -> int:
    """Return after how many epochs a run can be resumed; 0 where it starts anew."""
    for name in (LAST, PREVIOUS):
        try:
            content = torch.load(folder / name, map_location="cpu", weights_only=True, mmap=True)
            return int(content["state"]["epoch"])
        except Exception:
            continue
    return 0


@contextmanager
def report_saved_epochs(folder: Path) -> Iterator[None]:
    """Add to an error of the disk how much of the run in ``folder`` is safe, and how it goes on."""
    try:
        yield
    except DiskError as error:
        epochs = completed_epochs(folder)
        kept = f"the last whole epoch is {epochs}" if epochs else "no epoch was finished before"
        way_out = "free some space" if error.full else "make the folder writable"
        raise RunError(f"{error.problem}. Nothing is lost: {kept}; {way_out}, and go on with --resume.") from error


def save_weights(folder: Path, network: nn.Module, epoch: int | None = None) -> None:
    """Write ``best.safetensors``; the weights of the best epoch before stay as ``best.previous.safetensors``.

    Args:
        folder: the run's.
        network: its weights.
        epoch: whose weights they are, noted in the file.
    """
    weights = {name: value.contiguous() for name, value in network.state_dict().items()}
    noted = None if epoch is None else {"epoch": str(epoch)}
    again = epoch is not None and _epoch_of(folder / BEST) == epoch
    with atomic_path(folder / BEST, previous=None if again else folder / PREVIOUS_BEST) as temporary:
        safetensors.torch.save_file(weights, temporary, metadata=noted)


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


def has_backbone(folder: Path) -> bool:
    """Return whether ``best.safetensors`` holds a whole network, or only the head on a backbone known by its name."""
    try:
        with safetensors.safe_open(folder / BEST, framework="pt") as file:
            return any(name.startswith("backbone.") for name in file.keys())  # noqa: SIM118
    except safetensors.SafetensorError as error:
        raise RunError(f"{folder / BEST} is damaged ({error}).") from None


def remove_previous(folder: Path) -> None:
    """Remove the older generation, which a run that has come to its end does not need."""
    for name in (PREVIOUS, PREVIOUS_BEST):
        (folder / name).unlink(missing_ok=True)


def _whole(folder: Path, device: torch.device) -> tuple[dict[str, Any] | None, str | None]:
    """Return the newest checkpoint that is whole, None where there is none, and what is wrong with a newer one."""
    damage: dict[str, str] = {}
    for name in (LAST, PREVIOUS):
        try:
            return _content(folder / name, device), damage.get(LAST)
        except FileNotFoundError:
            continue
        except (PermissionError, IsADirectoryError) as error:
            raise RunError(f"{folder / name} cannot be read ({error.strerror}).") from None
        except _DAMAGED as error:
            damage[name] = _first_line(error)
    if not damage:
        return None, None
    name, reason = next(iter(damage.items()))
    both = f", and {PREVIOUS} is no better" if len(damage) > 1 else ""
    raise RunError(
        f"{folder / name} is damaged ({reason}){both}: this run cannot be resumed. Train into a new folder"
        f"{'' if not (folder / BEST).exists() else f'; {BEST} still holds the best weights there were'}."
    )


_DAMAGED: Final = (
    zipfile.BadZipFile,
    zlib.error,
    pickle.UnpicklingError,
    OSError,
    EOFError,
    RuntimeError,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    IndexError,
    NotImplementedError,
)
"""What reading a file with wrong bytes in it can raise."""


def _content(path: Path, device: torch.device) -> dict[str, Any]:
    """Read a checkpoint, every byte of it checked: torch alone would not see a flipped bit."""
    with zipfile.ZipFile(path) as archive:
        if archive.testzip() is not None:
            raise zipfile.BadZipFile("a part of it is not what was written")
    content = torch.load(path, map_location=device, weights_only=True)
    if not isinstance(content, dict) or "state" not in content:
        raise ValueError("it is no checkpoint")
    return content


def _take_up(
    folder: Path, content: dict[str, Any], parts: Mapping[str, Stateful], device: torch.device, fingerprint: str
) -> TrainingState:
    """Give every part its state back, or say why this checkpoint is not for them."""
    if content.get("format") != FORMAT:
        raise RunError(
            f"{folder} was trained by another version of labelgap (checkpoint format {content.get('format')}, not "
            f"{FORMAT}): resume it with that one, or train into a new folder."
        )
    if fingerprint and content["fingerprint"] != fingerprint:
        raise RunError(
            f"the checkpoint in {folder} is of another configuration than its config.json: put the one back that "
            "belongs to it, or train into a new folder."
        )
    try:
        for name, part in parts.items():
            part.load_state_dict(content[name])
        set_rng_state(content["random"], device)
        return TrainingState(**content["state"])
    except (RuntimeError, KeyError, TypeError, ValueError) as error:
        raise RunError(
            f"the checkpoint in {folder} does not fit this run ({_first_line(error)}). Train into a new folder."
        ) from None


def _bring_back_best(folder: Path, best_epoch: int) -> None:
    """Put the best weights back that were the best at the checkpoint, where a later epoch's have taken their place."""
    if _epoch_of(folder / BEST) != best_epoch and _epoch_of(folder / PREVIOUS_BEST) == best_epoch:
        (folder / PREVIOUS_BEST).replace(folder / BEST)


def _epoch_of(path: Path) -> int | None:
    """Return the epoch that weights are of; None where there are none, or nobody noted it."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            return int((file.metadata() or {})["epoch"])
    except (OSError, KeyError, ValueError, safetensors.SafetensorError):
        return None


def _place(value: Any) -> torch.device:
    """Return the device of the first tensor that is not in main memory."""
    if isinstance(value, Tensor) and value.device.type != "cpu":
        return value.device
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    found = (place for item in inner if (place := _place(item)).type != "cpu")
    return next(found, torch.device("cpu"))


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
