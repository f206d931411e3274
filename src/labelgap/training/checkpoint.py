"""``last.pt``, from which a run resumes, and ``best.safetensors``, the weights of its best epoch.

Two generations of each are on the disk while a run trains: where the newer one is damaged, the older one counts.
"""

from __future__ import annotations

import pickle
import random
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
import torch
from pydantic import BaseModel, NonNegativeInt, PrivateAttr
from torch import Tensor, nn

from labelgap.core.distributed import is_main_process
from labelgap.core.errors import LabelGapError, RunError
from labelgap.core.files import DiskError, atomic_path, remove_file, remove_partials
from labelgap.core.manifest import check_files
from labelgap.core.stored import READ_ERRORS, check_ordinary, damaged, size_limit, validate
from labelgap.core.tensors import read_tensor_metadata, read_tensors, write_tensors
from labelgap.core.text import truncate_text
from labelgap.losses.base.terms import widest_float
from labelgap.training.history import EpochRecord, check_epochs, finite
from labelgap.training.run_files import BEST, LAST

PREVIOUS: Final = "last.previous.pt"
PREVIOUS_BEST: Final = "best.previous.safetensors"
FORMAT: Final = 2
_BEST_LOST: Final = f"{BEST}, which belongs to it, is damaged or missing"
_BEST_REMEDY: Final = "Restore it from a copy, or train again; --resume helps in an unfinished run."


@runtime_checkable
class Stateful(Protocol):
    """Something with a state to save and restore: a network, an optimizer, a scheduler, a loss."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return the state."""

    def load_state_dict(self, state_dict: Any, /) -> Any:
        """Restore the state."""


class PartialEpoch(BaseModel, extra="forbid", strict=True, arbitrary_types_allowed=True):
    """The position in an epoch after a complete optimizer step, and the mean loss until there."""

    batches: NonNegativeInt = 0
    images: NonNegativeInt = 0
    loss_sum: float | Tensor = 0.0  # of the mean loss of each batch times its images, on the device
    seconds: float = 0.0  # until it was resumed; all processes one after another
    trace: dict[str, Tensor] = {}  # what was recorded; set where it is saved
    _started: float = PrivateAttr(default_factory=time.perf_counter)

    def add(self, loss: Tensor, images: int) -> None:
        """Add the mean loss of a batch of so many images; nothing waits for the device."""
        value = float(loss) if loss.is_cpu else loss.detach().to(widest_float(loss.device))
        self.loss_sum = self.loss_sum + value * images
        self.images += images

    @property
    def mean_loss(self) -> float:
        """The mean so far; reading it waits for the device."""
        return float(self.loss_sum) / max(self.images, 1)

    @property
    def elapsed(self) -> float:
        """The seconds that the epoch has taken, in all processes one after another."""
        return self.seconds + time.perf_counter() - self._started

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint saves, in plain types and tensors."""
        return {**dict(self), "loss_sum": float(self.loss_sum), "seconds": self.elapsed}


class TrainingState(BaseModel, extra="forbid", strict=True):
    """The progress of a training after a complete epoch, or after a step of the next one."""

    epoch: int = 0  # number of completed epochs
    history: list[dict[str, Any]] = []  # as in ``metrics.jsonl``
    best_epoch: int = 0  # 0 before the first, or where epoch 0, the linear head, is the best
    best_score: float | None = None  # under the selection rule; None under "last"
    divergences: int = 0  # how often training has diverged, and the rates were halved
    partial: PartialEpoch | None = None  # how far the next epoch is; None between epochs, and while a step is computed


def save_checkpoint(
    folder: Path, state: TrainingState, parts: Mapping[str, Stateful], device: torch.device, *, fingerprint: str = ""
) -> None:
    """Write ``last.pt``, with a ``fingerprint`` of the configuration; the one before becomes ``last.previous.pt``."""
    states = {name: part.state_dict() for name, part in parts.items()}
    progress = {name: value for name, value in state if name != "partial"}
    if state.partial is not None:
        progress["partial"] = state.partial.state_dict()
    drawn = get_rng_state(device)
    content = {"format": FORMAT, "fingerprint": fingerprint, "state": progress, "random": drawn, **states}
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
    """Restore the last checkpoint of the ``fingerprint``, or the one before a damaged one; a fresh state for none."""
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
        if not _has_weights(folder / BEST, state.best_epoch) and _has_weights(folder / PREVIOUS_BEST, state.best_epoch):
            (folder / PREVIOUS_BEST).replace(folder / BEST)
    return state


def completed_epochs(folder: Path) -> int:
    """Return the number of epochs after which a run resumes; 0 where it starts from the beginning."""
    with suppress(Exception):
        content, _ = _newest(folder, torch.device("cpu"))
        return 0 if content is None else int(content["state"]["epoch"])
    return 0


@contextmanager
def report_saved_epochs(folder: Path) -> Iterator[None]:
    """Add to a disk error how many epochs of the run in ``folder`` are saved, and how to resume."""
    try:
        yield
    except DiskError as error:
        remedy = "free some space" if error.full else "make the folder writable"
        saved = f"the last complete epoch is {completed_epochs(folder)}; {remedy}, and continue with --resume"
        raise RunError(f"{error.problem}. Nothing is lost: {saved}.") from error


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
        except (*READ_ERRORS, pickle.UnpicklingError, LabelGapError) as error:
            damage[name] = _first_line(error)
    if not damage:
        return None, None
    name, reason = next(iter(damage.items()))
    best = f"; {BEST} still holds the best weights" if reason != _BEST_LOST and (folder / BEST).exists() else ""
    raise RunError(
        f"{folder / name} is damaged ({reason}), and there is no intact {PREVIOUS}: this run cannot be resumed. Train "
        f"into a new folder{best}."
    )


def _read(path: Path, device: torch.device) -> dict[str, Any]:
    """Read a checkpoint and verify its sizes and checksums, which torch does not."""
    if path.exists():
        check_ordinary(path, limit=size_limit(path))
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


def _check_state(content: Mapping[str, Any], path: Path) -> None:
    """Raise an error unless a state is that of a training, whose best weights are there."""
    state, within = TrainingState.model_validate(content), "partial" in content
    stored = [(state, {"partial"}), *([] if state.partial is None else [(state.partial, set[str]())])]
    if any(each.model_fields_set | optional != type(each).model_fields.keys() for each, optional in stored):
        raise ValueError("a number of its state is missing")
    for record in state.history:
        validate(finite(record), EpochRecord, path)
    check_epochs(state.history, state.epoch)
    best, scored = state.best_epoch, [record["epoch"] for record in state.history] or ([0] if within else [])
    if best not in scored:
        raise ValueError("the best epoch is none of its epochs")
    elsewhere = best != state.epoch or (within and state.history)
    # best.safetensors twice: the first process may rename the other file to it in the meantime
    if elsewhere and not any(_has_weights(path.parent / name, best) for name in (BEST, PREVIOUS_BEST, BEST)):
        raise ValueError(_BEST_LOST)


def _restore(
    folder: Path, content: dict[str, Any], parts: Mapping[str, Stateful], device: torch.device, fingerprint: str
) -> TrainingState:
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
        return TrainingState(**content["state"])
    except READ_ERRORS as error:
        raise RunError(
            f"the checkpoint in {folder} does not fit this run ({_first_line(error)}). Train into a new folder."
        ) from None


def _first_line(error: BaseException) -> str:
    return truncate_text((str(error).splitlines() or [type(error).__name__])[0], 200)


def save_weights(folder: Path, network: nn.Module, epoch: int) -> None:
    """Write ``best.safetensors``, with its epoch; the best weights before become ``best.previous.safetensors``."""
    previous = None if _recorded_epoch(folder / BEST) == epoch else folder / PREVIOUS_BEST
    write_tensors(folder / BEST, network.state_dict(), {"epoch": str(epoch)}, previous=previous)


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Return the tensors of ``best.safetensors``."""
    if not (folder / BEST).exists():
        raise RunError(f"{folder} has no {BEST}: no epoch is complete. Resume it with --resume.")
    check_files(folder, [BEST])
    return read_tensors(folder / BEST, remedy=_BEST_REMEDY)[0]


def load_weights(folder: Path, network: nn.Module) -> None:
    """Load ``best.safetensors`` into a network; a frozen backbone that is not in the file is left as it is."""
    weights = read_weights(folder)
    set_weights(network, weights, folder / BEST, frozen=not has_backbone(weights))


def has_backbone(weights: Mapping[str, Tensor]) -> bool:
    """Return whether weights are of the whole network, not of the head only."""
    return any(name.startswith("backbone.") for name in weights)


def set_weights(network: nn.Module, weights: Mapping[str, Tensor], path: Path, *, frozen: bool = False) -> None:
    """Load the tensors of the file ``path`` into a network: all that it has, unless its backbone is ``frozen``."""
    check_fit(network.state_dict(), weights, path, ("backbone.",) if frozen else ())
    network.load_state_dict(dict(weights), strict=False)


def check_fit(
    own: Mapping[str, Tensor], weights: Mapping[str, Tensor], path: Path, optional: tuple[str, ...] = ()
) -> None:
    """Compare names and shapes of weights with a network's own; names that begin as ``optional`` may be missing."""
    lacking = [name for name in own if name not in weights and not name.startswith(optional)]
    other = [
        name
        for name, value in weights.items()
        if name not in own or own[name].shape != value.shape or own[name].is_complex() != value.is_complex()
    ]
    if lacking or other:
        raise damaged(path, f"{[*lacking, *other][0]} does not fit the network of its config.json", _BEST_REMEDY)


def _has_weights(path: Path, epoch: int) -> bool:
    try:
        return _recorded_epoch(path) == epoch and bool(read_tensors(path))
    except LabelGapError:
        return False


def _recorded_epoch(path: Path) -> int | None:
    try:
        return int(read_tensor_metadata(path)["epoch"])
    except (LabelGapError, KeyError, ValueError):
        return None


def get_rng_state(device: torch.device) -> dict[str, Any]:
    """Return the states of Python's, NumPy's, torch's and the device's generators in plain types."""
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
