"""Features that a backbone extracts, once per image: the inputs of the linear protocol.

They are cached by the network and the content of an image, whatever split, table or command asks for it. The cache also
keeps digests of files by path, size, inode and times: a file is read again only if its state is unknown, or it changed
less than two seconds before it was hashed, within the resolution of a file system's clock.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from labelgap.core.cache import KEY_BYTES, RowStore
from labelgap.core.distributed import is_distributed, single_process
from labelgap.core.errors import InputError
from labelgap.core.files import file_digest
from labelgap.core.system import cpu_count
from labelgap.data.dataset import Dataset
from labelgap.data.decoding import check_file
from labelgap.data.images import FeatureVectors, FileImages, ImageSource, StoredImages
from labelgap.models import Backbone
from labelgap.models.inference import inference_backbone, inference_precision
from labelgap.models.info import Precision
from labelgap.training.loop.inputs import ImageInputs, bounded_batch
from labelgap.training.loop.processes import fail_together, gather_objects, gather_own_rows, own_rows
from labelgap.training.progress import Reporter

BLOCK_SECONDS = 10.0  # the duration of a block: what is lost by a kill. The first block is one batch
SHARED_BLOCK_SECONDS = 1.0
"""While other processes compute features of the same network: what two processes may both compute."""
START_UPS = 4.0  # how many times longer than the start of its workers a block is at least
_DTYPE: Final = np.dtype("<f4")
_VERSION: Final = 3  # increased when the same image and weights give other features than before
_SETTLED: Final = 2_000_000_000  # nanoseconds since the last change after which the state of a file tells its content
_FILES_AT_ONCE: Final = 4096

Keys = NDArray[np.uint8]
Rows = NDArray[np.int64]


def split_features(
    data: Dataset,
    splits: Iterable[str],
    build_backbone: Callable[[], Backbone],
    device: torch.device,
    workers: int,
    reporter: Reporter,
    **options: Any,
) -> dict[str, NDArray[Any]]:
    """Return the ``(N, D)`` features of splits: the data's own, or ``extract_features`` of a backbone built then."""
    sources = {name: data.split(name).images for name in splits}
    vectors = {name: images.vectors for name, images in sources.items() if isinstance(images, FeatureVectors)}
    if vectors:
        return vectors
    how: dict[str, Any] = {"device": device, "workers": workers, "reporter": reporter, **options}
    return dict(zip(sources, extract_features(list(sources.values()), build_backbone(), **how), strict=True))


def extract_features(
    sources: Sequence[ImageSource],
    backbone: Backbone,
    *,
    device: torch.device,
    transform: str = "resize",
    batch_size: int = 32,
    workers: int = 0,
    reporter: Reporter,
    everywhere: bool = True,
    average_flips: bool = False,
    precision: Precision | None = None,
) -> list[NDArray[np.float32]]:
    """Return the ``(N, D)`` pooled features of each source, from the cache as far as they are there.

    Several processes each compute their ``own_rows``; ``everywhere`` is whether all get the features, or only the
    first. ``average_flips`` takes the mean of the features of an image and of its mirror image. ``precision`` is that
    of the convolutions where a CPU computes with it, None for the fastest.
    """
    precision, batch_size = inference_precision(backbone, device, precision), bounded_batch(batch_size, backbone)
    own = [images.select(own_rows(len(images))) for images in sources] if is_distributed() else sources
    halves: list[list[NDArray[np.float32]]] = []
    for mirrored in _halves(average_flips):
        with fail_together(), single_process():
            digests, starts = open_digests(), np.cumsum([0, *map(len, own)])
            contents = [content_keys(images, digests, reporter) for images in own]
            features = np.empty((int(starts[-1]), backbone.num_features), dtype=_DTYPE)
            counts = Counter[str]()
            if len(features):
                store = _open_store(backbone, transform, reporter, mirrored, precision)
                network = backbone.to(device).eval()
                inputs = [ImageInputs(images, network, device, workers=workers, transform=transform) for images in own]
                missing = _MissingFeatures(contents, inputs, features, store, batch_size)
                counts = missing.compute(network, reporter, mirrored, precision)
        halves.append([features[start:stop] for start, stop in pairwise(starts.tolist())])
        total: Counter[str] = sum(gather_objects(counts), Counter())
        if total["images"]:
            others = "".join(f", {total[what]:,} {what}" for what in ("from the cache", "copies") if total[what])
            images = "mirror images" if mirrored else "images"
            how = "" if precision == "float32" else f" in {precision}"
            reporter.log(f"features of {total['computed']:,} of {total['images']:,} {images} computed{how}{others}")
    return [
        gather_own_rows(_mean(parts), len(images), everywhere=everywhere)
        for images, *parts in zip(sources, *halves, strict=True)
    ]


class CachedFeatures:
    """The features of a network that are in the cache, to be read only."""

    def __init__(
        self,
        backbone: Backbone,
        device: torch.device,
        transform: str = "resize",
        *,
        average_flips: bool = False,
        precision: Precision | None = None,
    ) -> None:
        precision = inference_precision(backbone, device, precision)
        self.width, self.digests, quiet = backbone.num_features, open_digests(), Reporter(quiet=True)
        self.stores = [_open_store(backbone, transform, quiet, half, precision) for half in _halves(average_flips)]

    def read(self, images: ImageSource) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
        """Return which images have features, and the ``(N, D)`` features; unknown files are not read."""
        keys, rows = content_keys(images, self.digests, hash_files=False).keys, np.arange(len(images))
        found, halves = np.ones(len(images), dtype=bool), list[NDArray[np.float32]]()
        for store in self.stores:
            halves.append(np.zeros((len(images), self.width), dtype=_DTYPE))
            found &= store.read(keys, halves[-1].view(np.uint8), rows)
        return found, _mean(halves)

    def count_missing(self, sources: Iterable[ImageSource], reporter: Reporter | None = None) -> list[int]:
        """Return of each source how many images have no features; mirror images count too where they are used."""
        contents = [content_keys(images, self.digests, reporter) for images in sources]
        return [sum(int(np.count_nonzero(~store.find(each.keys))) for store in self.stores) for each in contents]


def _halves(average_flips: bool) -> tuple[bool, ...]:
    """Return which features are needed: of images, of mirror images (True)."""
    return (False, True) if average_flips else (False,)


def _mean(halves: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    return halves[0] if len(halves) == 1 else np.mean(halves, axis=0, dtype=np.float32)


def _open_store(
    backbone: Backbone, transform: str, reporter: Reporter, mirrored: bool, precision: Precision
) -> RowStore:
    transform = f"{transform}, mirrored" if mirrored else transform
    network = {"backbone": backbone.name, "size": backbone.input_spec.size, "width": backbone.num_features}
    metadata = {**network, "transform": transform, "precision": precision}
    key = network_key(backbone, transform, precision)
    return RowStore(key, backbone.num_features * _DTYPE.itemsize, metadata, reporter.log)


def next_block(times: Sequence[float], seconds: float) -> int:
    """Return of how many batches the next block is, to last ``seconds``, or ``START_UPS`` times the start of its
    workers.

    Example:
        >>> next_block([0.0, 6.0], 1.0), next_block([0.0, 6.0, 6.5, 7.0], 1.0), next_block([0.0, 6.0, 12.0], 1.0)
        (4, 44, 1)
    """
    first, others = times[1] - times[0], np.diff(times[1:])
    batch = float(others.mean()) if len(others) else first
    start_up = first - batch if len(others) else first
    return max(1, round(max(seconds, START_UPS * start_up) / max(batch, 1e-3)))


_Batch = tuple[int, Rows]
"""Images that are computed together: the number of their source, and rows counted over all sources."""


class _MissingFeatures:
    """Fills the rows of ``features``, counted over all sources, that the cache lacks, a block at a time.

    Several processes that want the same images take short blocks in a random order, and search the cache after each.
    """

    def __init__(
        self,
        contents: Sequence[ContentKeys],
        inputs: Sequence[ImageInputs],
        features: NDArray[np.float32],
        store: RowStore,
        batch_size: int,
    ) -> None:
        self.contents, self.inputs, self.features, self.store = contents, inputs, features, store
        self.starts = np.cumsum([0, *map(len, inputs)])
        self.bytes = features.view(np.uint8)
        self.keys = np.concatenate([content.keys for content in contents])
        every = np.arange(len(features))
        self.rows = every[~store.read(self.keys, self.bytes, every)]
        named = self.keys[self.rows].view("V16").ravel()
        _, first, self.copy_of = np.unique(named, return_index=True, return_inverse=True)
        self.first = self.rows[first]
        rows = np.sort(self.first)
        self.batches = [
            (source, rows[first : min(first + batch_size, stop)])
            for source, (start, stop) in enumerate(pairwise(np.searchsorted(rows, self.starts).tolist()))
            for first in range(start, stop, batch_size)
        ]

    def compute(self, backbone: Backbone, reporter: Reporter, mirrored: bool, precision: Precision) -> Counter[str]:
        """Compute and store all that is missing; return the numbers of images."""
        computed, total, count = 0, len(self.features), 1
        if self.batches:
            backbone = inference_backbone(backbone, self.inputs[0].device, precision)
            self.store.reserve(len(self.first))
            with reporter.bar("features", len(self.first)):
                while self.batches:
                    start = secrets.randbelow(max(len(self.batches) - count, 0) + 1)
                    block = self.batches[start : start + count]
                    del self.batches[start : start + count]
                    times = [time.monotonic()]
                    for rows in self._compute_block(block, backbone, mirrored):
                        times.append(time.monotonic())
                        computed += len(rows)
                        reporter.advance(len(rows))
                    count = next_block(times, SHARED_BLOCK_SECONDS if self.store.shared else BLOCK_SECONDS)
                    reporter.advance(self._skip_computed_elsewhere())
            self.features[self.rows] = self.features[self.first[self.copy_of]]
        copies = len(self.rows) - len(self.first)
        counts = {"images": total, "computed": computed, "from the cache": total - computed - copies, "copies": copies}
        return Counter(counts)

    def _compute_block(self, block: Sequence[_Batch], backbone: Backbone, mirrored: bool) -> Iterator[Rows]:
        for source, group in groupby(block, key=itemgetter(0)):
            batches, start, done = [rows for _, rows in group], int(self.starts[source]), []
            rows = np.concatenate(batches) - start
            try:
                for index, values in self.inputs[source].batches(rows, batch_size=len(batches[0])):
                    with torch.inference_mode():
                        found = backbone.features(values.flip(-1) if mirrored else values).float().cpu().numpy()
                    done.append(index.numpy() + start)
                    self.features[done[-1]] = found
                    yield done[-1]
            finally:
                if done:
                    rows = np.concatenate(done)
                    rows = rows[self.contents[source].still_valid(rows - start)]
                    self.store.append(self.keys[rows], self.bytes[rows])

    def _skip_computed_elsewhere(self) -> int:
        """Read what other processes have stored since; return the number of images in batches that are complete."""
        if not self.batches:
            return 0
        left = np.concatenate([rows for _, rows in self.batches])
        found = np.zeros(len(self.features), dtype=bool)
        found[left] = self.store.read(self.keys[left], self.bytes, left)
        self.batches = [(source, rows) for source, rows in self.batches if not found[rows].all()]
        return len(left) - sum(len(rows) for _, rows in self.batches)


@dataclass(frozen=True, eq=False)
class ContentKeys:
    """Keys of the images of a source."""

    images: ImageSource
    keys: Keys  # (N, 16) bytes; random where an image is not known
    known: NDArray[np.bool_]  # (N,) False for a file that cannot be read, or was not hashed
    states: Keys | None = None  # (N, 16) digests of the states of files; None for images in memory

    def still_valid(self, rows: Rows) -> NDArray[np.bool_]:
        """Return whether images are known and their files have not changed since they were hashed."""
        if self.states is None or not isinstance(self.images, FileImages):
            return self.known[rows]
        now = _as_keys([_file_state(self.images.path(row))[0] for row in rows.tolist()])
        same: NDArray[np.bool_] = (now == self.states[rows]).all(axis=1)
        return self.known[rows] & same


def network_key(backbone: Backbone, transform: str, precision: str = "float32") -> str:
    """Return a key of all that decides the features of an image: architecture, weights, input, transform, precision."""
    weights = hashlib.sha256()
    for name, value in sorted(backbone.state_dict().items()):
        weights.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        weights.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    network = f"{type(backbone).__qualname__} {backbone.name}"
    parts = [str(_VERSION), repr(backbone.input_spec), transform, network, weights.hexdigest(), precision]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def open_digests() -> RowStore:
    """Return the digests of files by their states."""
    return RowStore("files", KEY_BYTES, {"content": "digests of image files"})


def content_keys(
    images: ImageSource, digests: RowStore, reporter: Reporter | None = None, *, hash_files: bool = True
) -> ContentKeys:
    """Return the keys of images, by the ``digests`` of files; with ``hash_files=False`` new ones are unknown."""
    if isinstance(images, StoredImages) and images.digests is not None:
        return ContentKeys(images, images.digests, np.ones(len(images), dtype=bool))
    if not isinstance(images, FileImages):
        keys = _as_keys([_pixel_digest(images[row]) for row in range(len(images))])
        return ContentKeys(images, keys, np.ones(len(images), dtype=bool))
    now, status = time.time_ns(), [_file_state(images.path(row)) for row in range(len(images))]
    states, changed = _as_keys([state for state, _ in status]), np.array([when for _, when in status], dtype=np.int64)
    keys = np.zeros_like(states)
    known = digests.read(states, keys, np.arange(len(images)))
    unread = np.flatnonzero(~known & (changed > 0)) if hash_files else np.empty(0, dtype=np.int64)
    if len(unread):
        digests.reserve(len(unread))
        for rows, found in _hash_files(images, unread, reporter or Reporter(quiet=True)):
            keys[rows], known[rows] = found, True
            lasting = rows[changed[rows] < now - _SETTLED]
            digests.append(states[lasting], keys[lasting])
    keys[~known] = _as_keys([os.urandom(KEY_BYTES * int(np.count_nonzero(~known)))])
    return ContentKeys(images, keys, known, states)


def _hash_files(images: FileImages, rows: Rows, reporter: Reporter) -> Iterator[tuple[Rows, Keys]]:
    """Yield rows with the digests of their files, some thousand at a time; unreadable files are left out."""
    with reporter.bar("reading images", len(rows)), ThreadPoolExecutor(cpu_count()) as threads:
        for start in range(0, len(rows), _FILES_AT_ONCE):
            part = rows[start : start + _FILES_AT_ONCE]
            digests = list(threads.map(_digest, map(images.path, part.tolist())))
            readable = [digest for digest in digests if digest is not None]
            yield part[[digest is not None for digest in digests]], _as_keys(readable)
            reporter.advance(len(part))


def _file_state(path: Path) -> tuple[bytes, int]:
    """Return a digest of the state of a file and when it last changed, in nanoseconds; 0 where it cannot be read."""
    try:
        status = check_file(path)
    except InputError:
        return bytes(KEY_BYTES), 0
    times = status.st_mtime_ns, status.st_ctime_ns
    text = b"%b\0%d %d %d %d" % (os.fsencode(path), status.st_size, status.st_ino, *times)
    return hashlib.blake2b(text, digest_size=KEY_BYTES).digest(), max(*times, 1)


def _digest(path: Path) -> bytes | None:
    try:
        return file_digest(path)
    except OSError:
        return None  # the network's own reader says what is wrong


def _pixel_digest(image: NDArray[np.uint8]) -> bytes:
    digest = hashlib.blake2b(repr(image.shape).encode(), digest_size=KEY_BYTES, person=b"pixels")
    digest.update(np.ascontiguousarray(image).data)
    return digest.digest()


def _as_keys(digests: list[bytes]) -> Keys:
    return np.frombuffer(bytearray(b"".join(digests)), dtype=np.uint8).reshape(-1, KEY_BYTES)
