"""The folder in which a prediction grows: numbered parts, each whole or not there, and what they are parts of."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from labelgap.core.errors import RunError
from labelgap.core.files import atomic_path, write_json
from labelgap.data.images import FileImages, ImageSource
from labelgap.training.checkpoints.checkpoint import BEST
from labelgap.training.config.schema import CONFIG_FILE as CONFIG

__all__ = ["Chunk", "ChunkStore", "describe_prediction", "plan_chunks"]

JOB: Final = "job.json"
MAX_IMAGES: Final = 1024
MAX_ENTRIES: Final = 1 << 20

_WORDS: Final = {
    "run": "another run, or the run has been trained since",
    "images": "other images",
    "count": "another number of images",
    "batch": "another batch size",
    "part": "another version of labelgap",
    "format": "another version of labelgap",
}


@dataclass(frozen=True)
class Chunk:
    """Rows ``start`` to ``stop`` of one of the sources."""

    number: int
    source: int
    start: int
    stop: int


def plan_chunks(sizes: Sequence[int], classes: int, batch_size: int) -> list[Chunk]:
    """Cut sources into parts of whole batches: 1,024 images, or fewer where there are many classes.

    Example:
        >>> [(part.source, part.start, part.stop) for part in plan_chunks([1500, 10], classes=80, batch_size=64)]
        [(0, 0, 1024), (0, 1024, 1500), (1, 0, 10)]
    """
    length = chunk_length(classes, batch_size)
    cuts = [
        (source, start, min(start + length, size))
        for source, size in enumerate(sizes)
        for start in range(0, size, length)
    ]
    return [Chunk(number, *cut) for number, cut in enumerate(cuts)]


def chunk_length(classes: int, batch_size: int) -> int:
    """Return how many images a part has: a multiple of the batch size."""
    return max(1, min(MAX_IMAGES, MAX_ENTRIES // max(classes, 1)) // batch_size) * batch_size


def describe_prediction(run: Path, sources: Sequence[ImageSource], classes: int, batch_size: int) -> dict[str, Any]:
    """Return what a prediction is of: parts of one must not go on with another.

    Files of images are told by their names alone: to ask a million of them for their size takes minutes.
    """
    weights = hashlib.blake2b(digest_size=16)
    for name in (CONFIG, BEST):
        with (run / name).open("rb") as file:
            weights.update(hashlib.file_digest(file, "blake2b").digest())
    images = hashlib.blake2b(digest_size=16)
    for source in sources:
        if isinstance(source, FileImages):
            images.update(str(source.root).encode("utf-8", "surrogateescape"))
            for name in source.files:
                images.update(b"\0" + name.encode("utf-8", "surrogateescape"))
        else:
            images.update(source.fingerprint().encode())
    return {
        "format": 1,
        "run": weights.hexdigest(),
        "count": sum(map(len, sources)),
        "images": images.hexdigest(),
        "batch": batch_size,
        "part": chunk_length(classes, batch_size),
    }


class ChunkStore:
    """The folder ``FILE.partial`` of a prediction.

    Args:
        out: the file to be.
        job: what it is of; see ``describe_prediction``.
        restart: whether to throw away what another prediction left there.
    """

    def __init__(self, out: Path, job: Mapping[str, Any], *, restart: bool = False) -> None:
        self.folder = out.with_name(f"{out.name}.partial")
        stored = self._stored()
        if stored is not None and restart:
            shutil.rmtree(self.folder)
        elif stored is not None and stored != job:
            different = next((name for name in _WORDS if stored.get(name) != job.get(name)), "format")
            raise RunError(
                f"{self.folder} holds an unfinished prediction of {_WORDS[different]}: finish that one by its own "
                "command, throw it away with --restart, or choose another --out."
            )
        self.folder.mkdir(exist_ok=True)
        write_json(self.folder / JOB, dict(job))

    def _stored(self) -> dict[str, Any] | None:
        """Return what the folder holds parts of; None where there is nothing. What is not ours is left alone."""
        try:
            stored = json.loads((self.folder / JOB).read_text(encoding="utf-8"))
        except FileNotFoundError:
            if self.folder.is_dir() and any(not name.name.startswith(".") for name in self.folder.iterdir()):
                raise RunError(f"{self.folder} is there already and is no prediction: choose another --out.") from None
            return None
        except (ValueError, OSError) as error:
            raise RunError(f"{self.folder / JOB} is damaged ({error}): remove {self.folder}, and begin anew.") from None
        return stored if isinstance(stored, dict) else {}

    def has(self, part: Chunk) -> bool:
        """Whether a part is there."""
        return self._path(part).exists()

    def write(self, part: Chunk, logits: NDArray[np.float32], wrong: Mapping[int, str]) -> None:
        """Write a part: ``(rows, K)`` logits, NaN for what could not be read, and row → why.

        The reasons come first: a part is there when its logits are.
        """
        if wrong:
            write_json(self._path(part, ".json"), {str(row): reason for row, reason in wrong.items()})
        with atomic_path(self._path(part)) as temporary:
            np.save(temporary, logits)

    def read(self, part: Chunk) -> NDArray[np.float32]:
        """Return the logits of a part."""
        try:
            logits: NDArray[np.float32] = np.load(self._path(part))
        except (ValueError, EOFError) as error:
            raise RunError(f"{self._path(part)} is damaged ({error}): remove it, and call the command again.") from None
        return logits

    def reasons(self, part: Chunk) -> dict[int, str]:
        """Return row → why it could not be read, of those that could not."""
        path = self._path(part, ".json")
        wrong = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        return {int(row): reason for row, reason in wrong.items()}

    def forget(self, part: Chunk) -> None:
        """Remove a part, so that it is computed again."""
        self._path(part).unlink(missing_ok=True)
        self._path(part, ".json").unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the folder with all that is in it."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _path(self, part: Chunk, suffix: str = ".npy") -> Path:
        return self.folder / f"part-{part.number:06d}{suffix}"
