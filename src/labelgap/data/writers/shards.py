"""Shards of a data set: tar files with its images and labels, and their index; see ``labelgap.data.readers.shards``.

The same data and options give the same bytes, the index last. What a killed process has left is used again by the same
request, and removed by another one.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import tarfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import PIL
from numpy.typing import NDArray
from PIL import Image

from labelgap.core.errors import InputError, LabelGapError, RunError
from labelgap.core.files import atomic_path, file_digest, is_partial, remove_partials, write_json
from labelgap.core.lock import LOCK_FILE, lock_folder
from labelgap.core.seeds import numpy_generator
from labelgap.core.stored import parse_json
from labelgap.core.system import cpu_count
from labelgap.data.dataset import Dataset, Split
from labelgap.data.decoding import EncodedImage, decode, open_image
from labelgap.data.images import FeatureVectors, StoredImages
from labelgap.data.readers.shards import (
    IMAGES_FILE,
    INDEX_FILE,
    UNFINISHED_FILE,
    ShardContent,
    ShardImages,
    ShardIndex,
    join_contents,
    read_index,
    scan_shard,
    write_index,
)
from labelgap.data.split import is_unsplit
from labelgap.data.transforms import resize
from labelgap.data.writers.exchange import known_class_names

_JPEG_QUALITY: Final = 92
_SUFFIXES: Final = {
    "AVIF": "avif",
    "BMP": "bmp",
    "GIF": "gif",
    "HEIF": "heic",
    "JPEG": "jpg",
    "JPEG2000": "jp2",
    "MPO": "jpg",
    "PNG": "png",
    "PPM": "ppm",
    "TIFF": "tiff",
    "WEBP": "webp",
}
_LEAST_DIGITS: Final = 6
_IMAGES_PER_THREAD: Final = 4


@dataclass(frozen=True)
class ShardOptions:
    """How shards are written."""

    size: int | None = None  # of the longest shorter side, stored as JPEG; None copies the bytes
    images_per_shard: int | None = None  # images of a shard; None where ``bytes_per_shard`` counts
    bytes_per_shard: int = 200_000_000  # bytes of the members of a shard
    shuffle: int | None = None  # seed of a random order of the images of each split; None keeps the order of the data

    def __post_init__(self) -> None:
        least = {"size": self.size, "images per shard": self.images_per_shard, "bytes per shard": self.bytes_per_shard}
        for name, value in least.items():
            if value is not None and value < 1:
                raise InputError(f"{name} is at least 1, not {value}.")


def write_shards(
    data: Dataset,
    out: Path,
    options: ShardOptions,
    *,
    force: bool = False,
    progress: Callable[[int], None] = lambda images: None,
    on_complete: Callable[[], None] = lambda: None,
) -> ShardIndex:
    """Write the images and the observed labels of all splits as shards; a hidden truth is not written.

    ``progress`` is called with the number of images that were just written, or found in a complete shard;
    ``on_complete`` where all shards of these data and options are there already, and intact.
    """
    if any(isinstance(split.images, FeatureVectors) for split in data.splits):
        raise InputError(f"{data.name} has feature vectors, no images: there is nothing to write into shards.")
    roots = [split.images.root for split in data.splits if isinstance(split.images, ShardImages)]
    if any(isinstance(root, Path) and root.resolve() == out.resolve() for root in roots):
        raise InputError(f"{out} holds the shards that are read: choose another --out.")
    with lock_folder(out, "writing shards"):
        request = _fingerprint(data, options)
        if not force and (index := _written_before(out, request)) is not None:
            on_complete()
            return index
        _prepare(out, request, force)
        contents = [content for split in data.splits for content in _write_split(split, data, out, options, progress)]
        classes, rows = join_contents(contents, data.classes)
        index = write_index(out, classes, not is_unsplit(data), [each.entry for each in contents], rows, request)
        (out / UNFINISHED_FILE).unlink()
    return index


def _written_before(out: Path, request: str) -> ShardIndex | None:
    """Return the index of a folder where all shards of a request are intact; those that are not are removed."""
    try:
        index, _ = read_index(out)
    except (LabelGapError, OSError):
        return None
    if index.request != request or (out / UNFINISHED_FILE).exists():
        return None
    paths = {out / entry.name: entry.digest for entry in index.shards}
    damaged = [path for path, digest in paths.items() if not path.is_file() or file_digest(path).hex() != digest]
    if not damaged:
        return index
    write_json(out / UNFINISHED_FILE, {"request": request})
    for path in damaged:
        path.unlink(missing_ok=True)
    return None


def _prepare(out: Path, request: str, force: bool) -> None:
    """Remove what does not belong to these shards; refuse a folder that holds something else."""
    found = {path.name for path in out.iterdir() if not is_partial(path.name)} - {LOCK_FILE}
    state: Any = None
    with suppress(OSError, ValueError):
        state = parse_json((out / UNFINISHED_FILE).read_bytes())
    resumes = state == {"request": request}
    if INDEX_FILE in found and not (force or resumes):
        raise RunError(
            f"{out} holds shards of other data or options. Choose another --out, or replace them with --force."
        )
    if found and not found & {INDEX_FILE, UNFINISHED_FILE}:
        raise RunError(f"{out} is not empty, and holds no shards of labelgap: choose another --out.")
    if not resumes:
        write_json(out / UNFINISHED_FILE, {"request": ""})
        for path in [out / INDEX_FILE, *out.glob("*.tar"), out / IMAGES_FILE]:
            path.unlink(missing_ok=True)
    remove_partials(out)
    write_json(out / UNFINISHED_FILE, {"request": request})


def _fingerprint(data: Dataset, options: ShardOptions) -> str:
    digest = hashlib.blake2b(repr((asdict(options), data.classes, PIL.__version__)).encode(), digest_size=16)
    for split in data.splits:
        digest.update(f"\0{split.name}\0{split.images.fingerprint()}\0".encode())
        for array in (split.labels.starts, split.labels.columns, split.labels.values, split.groups):
            digest.update(b"" if array is None else np.ascontiguousarray(array).data)
        digest.update("\0".join(split.labels.images).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _write_split(
    split: Split, data: Dataset, out: Path, options: ShardOptions, progress: Callable[[int], None]
) -> Iterator[ShardContent]:
    """Write the shards of a split, and yield the content of each; a shard that is complete already is only read."""
    rows: NDArray[np.int64] = np.arange(len(split))
    if options.shuffle is not None:
        rows = numpy_generator(options.shuffle, "shards", split.name).permutation(len(split))
    first = sum(len(other) for other in data.splits[: data.splits.index(split)])
    digits = max(_LEAST_DIGITS, len(str(sum(map(len, data.splits)))))
    done = number = 0
    while done < len(rows):
        path = out / f"{split.name}-{number:06d}.tar"
        content = None
        if path.exists():
            with suppress(InputError):
                content = scan_shard(path)
                progress(content.entry.count)
        if content is None:
            keys = [f"{first + place:0{digits}d}" for place in range(done, len(rows))]
            _write_shard(path, split, rows[done:], keys, options, not is_unsplit(data), progress)
            content = scan_shard(path)
        yield content
        done += content.entry.count
        number += 1


def _write_shard(
    path: Path,
    split: Split,
    rows: NDArray[np.int64],
    keys: Sequence[str],
    options: ShardOptions,
    has_split: bool,
    progress: Callable[[int], None],
) -> None:
    """Write a shard with as many of the rows as fit, at least one."""
    most = len(rows) if options.images_per_shard is None else options.images_per_shard
    limit = options.bytes_per_shard if options.images_per_shard is None else math.inf
    total = 0
    with atomic_path(path) as temporary, tarfile.open(temporary, "w", format=tarfile.USTAR_FORMAT) as tar:
        images = _encoded(split, rows[:most], options)
        for place, (key, row, (suffix, content)) in enumerate(zip(keys, rows[:most].tolist(), images, strict=False)):
            labels = _labels(split, row, has_split)
            total += len(content) + len(labels)
            if place and total > limit:
                return
            for name, member in ((f"{key}.{suffix}", content), (f"{key}.json", labels)):
                header = tarfile.TarInfo(name)  # no time, no owner
                header.size, header.mode = len(member), 0o644
                tar.addfile(header, io.BytesIO(member))
            progress(1)


def _encoded(split: Split, rows: NDArray[np.int64], options: ShardOptions) -> Iterator[tuple[str, bytes]]:
    """Yield suffix and bytes of images in order; several are encoded at once, in threads."""
    with ThreadPoolExecutor(cpu_count()) as threads:
        pending: deque[Future[tuple[str, bytes]]] = deque()
        try:
            for row in rows.tolist():
                pending.append(threads.submit(_encode, split, row, options.size))
                if len(pending) > _IMAGES_PER_THREAD * cpu_count():
                    yield pending.popleft().result()
            yield from (each.result() for each in pending)
        finally:
            threads.shutdown(cancel_futures=True)


def _encode(split: Split, row: int, size: int | None) -> tuple[str, bytes]:
    """Return suffix and bytes of an image: its own, PNG of one in memory, or JPEG with a shorter side of ``size``."""
    source = split.images
    if isinstance(source, StoredImages):
        image = source.encoded(row)
        content = image.read_bytes() if isinstance(image, Path) else image.getvalue()
        encoded = EncodedImage(content, str(image))
        with open_image(encoded, quiet=False) as opened:
            suffix, shorter = _SUFFIXES[opened.format or ""], min(opened.size)
        if size is None or shorter <= size:
            return suffix, content
        pixels = decode(encoded, size, quiet=False)
    else:
        pixels = source[row]
    if size is not None and min(pixels.shape[:2]) > size:
        scale = size / min(pixels.shape[:2])
        height, width = (max(size, round(scale * side)) for side in pixels.shape[:2])
        pixels, kind = resize(pixels, height, width, "bicubic").transpose(1, 2, 0), "JPEG"
    else:
        kind = "PNG"
    buffer = io.BytesIO()
    shown = Image.fromarray(np.ascontiguousarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels))
    shown.save(buffer, kind, **({"quality": _JPEG_QUALITY} if kind == "JPEG" else {}))
    return _SUFFIXES[kind], buffer.getvalue()


def _labels(split: Split, row: int, has_split: bool) -> bytes:
    present, absent = known_class_names(split.labels, row)
    value: dict[str, Any] = {"image": split.labels.images[row], **({"split": split.name} if has_split else {})}
    value |= {"present": present, "absent": absent}
    value |= {} if split.groups is None else {"group": int(split.groups[row])}
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
