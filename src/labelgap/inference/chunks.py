"""The folder of an unfinished prediction: numbered chunks of logits, and a description of what they belong to."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel

from labelgap.core.errors import RunError
from labelgap.core.files import remove_partials, write_json
from labelgap.core.stored import parse_json, read_json, reading, validate
from labelgap.core.tensors import read_tensors, write_tensors
from labelgap.core.trust import outside_links
from labelgap.data.images import FileImages, ImageSource
from labelgap.training.checkpoint import BEST
from labelgap.training.config import CONFIG_FILE

DESCRIPTION_FILE: Final = "prediction.json"
MAX_IMAGES: Final = 1024
MAX_ENTRIES: Final = 1 << 20
FORMAT: Final = 2
_REMOVED_FILE: Final = ".removed.json"  # the description while the chunks are removed
_METADATA_KEY: Final = "labelgap"

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
    spans = ((source, start, size) for source, size in enumerate(sizes) for start in range(0, size, length))
    return [Chunk(number, source, at, min(at + length, size)) for number, (source, at, size) in enumerate(spans)]


def adjacent_chunks(chunks: Sequence[Chunk]) -> Iterator[list[Chunk]]:
    """Yield groups of chunks that follow each other in one source."""
    group: list[Chunk] = []
    for chunk in chunks:
        if group and (chunk.source != group[-1].source or chunk.start != group[-1].stop):
            yield group
            group = []
        group.append(chunk)
    if group:
        yield group


def chunk_length(classes: int, batch_size: int) -> int:
    """Return the number of images of a chunk: a multiple of the batch size."""
    return max(1, min(MAX_IMAGES, MAX_ENTRIES // max(classes, 1)) // batch_size) * batch_size


def chunk_folder(out: Path) -> Path:
    """Return the folder of the unfinished prediction of a file."""
    return out.with_name(f"{out.name}.partial")


def has_prediction(out: Path) -> bool:
    """Return whether a file has an unfinished prediction; one whose removal was interrupted is removed."""
    folder = chunk_folder(out)
    if (folder / _REMOVED_FILE).exists():
        _remove_chunks(folder)
    return (folder / DESCRIPTION_FILE).exists()


def _remove_chunks(folder: Path) -> None:
    remove_partials(folder)
    for file in (*folder.glob("chunk-*.*"), folder / _REMOVED_FILE):
        file.unlink(missing_ok=True)


def describe_prediction(run: Path, sources: Sequence[ImageSource], classes: int, batch_size: int) -> dict[str, Any]:
    """Return what identifies a prediction, which may resume its chunks; image files by their names, which is quick."""
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
        "format": FORMAT,
        "run": weights.hexdigest(),
        "count": sum(map(len, sources)),
        "images": images.hexdigest(),
        "batch_size": batch_size,
        "chunk_length": chunk_length(classes, batch_size),
    }


class _Description(BaseModel, extra="forbid", frozen=True):
    """``prediction.json``."""

    format: int
    run: str
    count: int
    images: str
    batch_size: int
    chunk_length: int


class _ChunkMetadata(BaseModel, extra="forbid", frozen=True):
    """What the file of a chunk says about it: of which prediction and rows it is, and row → error."""

    prediction: str
    source: int
    start: int
    stop: int
    errors: tuple[tuple[int, str], ...]


class ChunkStore:
    """The folder ``FILE.partial`` of a prediction; the caller holds its lock.

    A chunk carries a digest of its content and the identity of its prediction: a damaged or foreign one is found.
    """

    def __init__(self, out: Path, description: Mapping[str, Any], classes: int) -> None:
        self.out, self.folder = out, chunk_folder(out)
        self.description, self.classes = dict(description), classes
        self._identity = hashlib.sha256(json.dumps(self.description, sort_keys=True).encode()).hexdigest()

    def open(self, *, restart: bool = False) -> None:
        """Start a prediction, or resume the one in the folder; ``restart`` discards it."""
        if outside := outside_links(self.folder):
            raise RunError(f"{self.folder} has {outside[0]}, which leads out of it: choose another --out.")
        is_prediction = has_prediction(self.out)
        if not is_prediction and any(not file.name.startswith(".") for file in self.folder.iterdir()):
            raise RunError(f"{self.folder} exists already and is no prediction: choose another --out.")
        if is_prediction and restart:
            self.remove()
        elif is_prediction:
            self._compare()
        remove_partials(self.folder)
        write_json(self.folder / DESCRIPTION_FILE, self.description)

    def _compare(self) -> None:
        remedy = "Discard what was computed with --restart."
        stored = read_json(self.folder / DESCRIPTION_FILE, _Description, remedy=remedy).model_dump()
        if stored != self.description:
            different = next(name for name in _DIFFERENCES if stored[name] != self.description[name])
            raise RunError(
                f"{self.folder} holds an unfinished prediction of {_DIFFERENCES[different]}: finish that one with its "
                "own command, discard it with --restart, or choose another --out."
            )

    def has(self, chunk: Chunk) -> bool:
        """Return whether a chunk is written; ``RunError`` where it is damaged."""
        if not self._path(chunk).exists():
            return False
        self.read(chunk)
        return True

    def write(self, chunk: Chunk, logits: NDArray[np.float32], errors: Mapping[int, str]) -> None:
        """Write a chunk: ``(rows, K)`` logits, NaN for unreadable images, and row → error."""
        metadata = _ChunkMetadata(errors=tuple(errors.items()), **self._metadata_of(chunk)).model_dump_json()
        write_tensors(self._path(chunk), {"logits": torch.from_numpy(logits)}, {_METADATA_KEY: metadata})

    def read(self, chunk: Chunk) -> tuple[NDArray[np.float32], dict[int, str]]:
        """Return the logits of a chunk, and row → why the image cannot be read; ``RunError`` where it is damaged."""
        path, remedy = self._path(chunk), "The same command computes it again."
        tensors, stored = read_tensors(path, remedy=remedy)
        with reading(path, remedy):
            metadata = validate(parse_json(stored[_METADATA_KEY]), _ChunkMetadata, path, remedy)
            logits, errors = tensors["logits"], dict(metadata.errors)
            unreadable = logits[:, 0].isnan().nonzero().flatten() + chunk.start
            valid = metadata.model_dump(exclude={"errors"}) == self._metadata_of(chunk)
            if not valid or logits.shape != (len(chunk), self.classes) or logits.dtype != torch.float32:
                raise ValueError("it is of another prediction")
            if sorted(errors) != unreadable.tolist():
                raise ValueError("its errors are not those of its rows")
        return logits.numpy(), errors

    def discard(self, chunk: Chunk) -> None:
        """Remove a chunk, so that it is computed again."""
        self._path(chunk).unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the files of the prediction."""
        (self.folder / DESCRIPTION_FILE).replace(self.folder / _REMOVED_FILE)
        _remove_chunks(self.folder)

    def _metadata_of(self, chunk: Chunk) -> dict[str, Any]:
        return {"prediction": self._identity, "source": chunk.source, "start": chunk.start, "stop": chunk.stop}

    def _path(self, chunk: Chunk) -> Path:
        return self.folder / f"chunk-{chunk.number:06d}.safetensors"
