"""The folder of an unfinished prediction: numbered chunks of logits, and a description of what they belong to."""

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
from labelgap.training.config.schema import CONFIG_FILE

__all__ = ["Chunk", "ChunkStore", "describe_prediction", "plan_chunks"]

DESCRIPTION_FILE: Final = "prediction.json"
MAX_IMAGES: Final = 1024
MAX_ENTRIES: Final = 1 << 20

_DIFFERENCES: Final = {
    "run": "another run, or the run has been trained since",
    "images": "other images",
    "count": "another number of images",
    "batch_size": "another batch size",
    "chunk_length": "another version of labelgap",
    "format": "another version of labelgap",
}


@dataclass(frozen=True)
class Chunk:
    """Rows ``start`` to ``stop`` of one of the sources."""

    number: int
    source: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


def plan_chunks(sizes: Sequence[int], classes: int, batch_size: int) -> list[Chunk]:
    """Divide sources into chunks of whole batches: 1,024 images, or fewer where there are many classes.

    Example:
        >>> [(chunk.source, chunk.start, chunk.stop) for chunk in plan_chunks([1500, 10], classes=80, batch_size=64)]
        [(0, 0, 1024), (0, 1024, 1500), (1, 0, 10)]
    """
    length = chunk_length(classes, batch_size)
    spans = [
        (source, start, min(start + length, size))
        for source, size in enumerate(sizes)
        for start in range(0, size, length)
    ]
    return [Chunk(number, *span) for number, span in enumerate(spans)]


def chunk_length(classes: int, batch_size: int) -> int:
    """Return the number of images of a chunk: a multiple of the batch size."""
    return max(1, min(MAX_IMAGES, MAX_ENTRIES // max(classes, 1)) // batch_size) * batch_size


def describe_prediction(run: Path, sources: Sequence[ImageSource], classes: int, batch_size: int) -> dict[str, Any]:
    """Return what identifies a prediction: only the same one may resume its chunks.

    Image files are identified by their names alone: to read the size of a million files takes minutes.
    """
    weights = hashlib.blake2b(digest_size=16)
    for name in (CONFIG_FILE, BEST):
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
        "batch_size": batch_size,
        "chunk_length": chunk_length(classes, batch_size),
    }


class ChunkStore:
    """The folder ``FILE.partial`` of a prediction.

    Args:
        out: the file to be.
        description: what it is of; see ``describe_prediction``.
        restart: whether to discard an unfinished prediction.

    Raises:
        RunError: the folder holds another prediction, or something else.
    """

    def __init__(self, out: Path, description: Mapping[str, Any], *, restart: bool = False) -> None:
        self.folder = out.with_name(f"{out.name}.partial")
        stored = self._stored_description()
        if stored is not None and restart:
            shutil.rmtree(self.folder)
        elif stored is not None and stored != description:
            different = next((name for name in _DIFFERENCES if stored.get(name) != description.get(name)), "format")
            raise RunError(
                f"{self.folder} holds an unfinished prediction of {_DIFFERENCES[different]}: finish that one with its "
                "own command, discard it with --restart, or choose another --out."
            )
        self.folder.mkdir(exist_ok=True)
        write_json(self.folder / DESCRIPTION_FILE, dict(description))

    def _stored_description(self) -> dict[str, Any] | None:
        path = self.folder / DESCRIPTION_FILE
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            if self.folder.is_dir() and any(not file.name.startswith(".") for file in self.folder.iterdir()):
                raise RunError(f"{self.folder} exists already and is no prediction: choose another --out.") from None
            return None
        except (ValueError, OSError) as error:
            raise RunError(f"{path} is damaged ({error}): remove {self.folder} and start again.") from None
        return stored if isinstance(stored, dict) else {}

    def has(self, chunk: Chunk) -> bool:
        """Return whether a chunk is written."""
        return self._path(chunk).exists()

    def write(self, chunk: Chunk, logits: NDArray[np.float32], errors: Mapping[int, str]) -> None:
        """Write a chunk: ``(rows, K)`` logits, NaN for unreadable images, and row → error.

        The logits come last: a chunk is written when they are.
        """
        if errors:
            write_json(self._path(chunk, ".json"), {str(row): error for row, error in errors.items()})
        with atomic_path(self._path(chunk)) as temporary:
            np.save(temporary, logits)

    def read(self, chunk: Chunk) -> NDArray[np.float32]:
        """Return the logits of a chunk."""
        try:
            logits: NDArray[np.float32] = np.load(self._path(chunk))
        except (ValueError, EOFError) as error:
            raise RunError(f"{self._path(chunk)} is damaged ({error}): remove it and run the command again.") from None
        return logits

    def errors(self, chunk: Chunk) -> dict[int, str]:
        """Return row → why the image cannot be read."""
        path = self._path(chunk, ".json")
        stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        return {int(row): error for row, error in stored.items()}

    def discard(self, chunk: Chunk) -> None:
        """Remove a chunk, so that it is computed again."""
        self._path(chunk).unlink(missing_ok=True)
        self._path(chunk, ".json").unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _path(self, chunk: Chunk, suffix: str = ".npy") -> Path:
        return self.folder / f"chunk-{chunk.number:06d}{suffix}"
