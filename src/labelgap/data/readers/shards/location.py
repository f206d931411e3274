"""Where shards are: in a folder, or at a URL, from where they are copied into the cache."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from labelgap.core.cache import cache_folder, cache_limit
from labelgap.core.errors import InputError, LabelGapError
from labelgap.core.files import atomic_path, file_digest, make_folder, remove_partials
from labelgap.core.lock import lock_folder
from labelgap.data.readers.shards.index import INDEX_FILE, ShardEntry

CACHE_FOLDER: Final = "shards"
ATTEMPTS: Final = 4
PAUSE_SECONDS = 1.0
"""Before the second attempt; it doubles."""
_BLOCK_BYTES: Final = 16 << 20
_NOT_FOUND: Final = 404
_COPIES: Final = 2
"""A digest that is wrong may be an error of the transfer."""
_LOCK_SECONDS: Final = 24 * 3600.0
_URL: Final = re.compile(r"(?:https?|s3)://[^\s\x00-\x1f]+")


def is_shard_url(text: str) -> bool:
    """Return whether a text is a URL that may hold shards: a folder of HTTP, HTTPS or S3, not a table or an archive.

    Example:
        >>> [is_shard_url(text) for text in ("https://example.org/v1.2", "s3://bucket/a", "s3://bucket/a.csv", "a")]
        [True, True, False, False]
    """
    if _URL.fullmatch(text) is None:
        return False
    path = PurePosixPath(urlsplit(text).path)
    return path.name == INDEX_FILE or not path.suffix[1:].isalpha()


class RemoteFolder:
    """A folder at a URL, read through fsspec; what fails is tried again a few times.

    Args:
        url: without a slash at its end.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    def address(self, name: str) -> str:
        """Return the URL of a file."""
        return f"{self.url}/{name}"

    def size(self, name: str) -> int | None:
        """Return the bytes of a file; None where the server does not say."""
        found = self._retry(name, lambda system, address: system.size(address))
        return None if found is None else int(found)

    def read(self, name: str) -> bytes:
        """Return the content of a small file."""
        content: bytes = self._retry(name, lambda system, address: system.cat_file(address))
        return content

    def copy(self, name: str, size: int, target: Path) -> None:
        """Copy a file of a known size, a block at a time; only a block that fails is requested again."""
        with target.open("wb") as file:
            while (start := file.tell()) < size:
                stop = min(start + _BLOCK_BYTES, size)
                block: bytes = self._retry(name, partial(_read_range, start=start, stop=stop))
                if len(block) != stop - start:  # a server without range requests sends the whole file
                    if len(block) != size:
                        raise InputError(f"{self.address(name)} has {len(block):,} bytes, not {size:,}.")
                    block = block[start:stop] if start else block
                file.write(block)

    def _retry(self, name: str, request: Callable[[Any, str], Any]) -> Any:
        """Return the result of a request; ``InputError`` with the URL where every attempt fails."""
        address, pause = self.address(name), PAUSE_SECONDS
        for attempt in range(ATTEMPTS):
            try:
                system, path = _file_system(address)
                return request(system, path)
            except LabelGapError:
                raise
            except PermissionError as error:
                raise InputError(f"{address} may not be read: {error}.") from None
            except Exception as error:  # of the package of the protocol: aiohttp, botocore …
                cause = error.__cause__ if isinstance(error, FileNotFoundError) else error
                if cause is None or isinstance(cause, FileNotFoundError) or getattr(cause, "status", 0) == _NOT_FOUND:
                    raise InputError(f"{address} does not exist.") from None
                if attempt + 1 == ATTEMPTS:
                    reason = str(cause) or type(cause).__name__
                    raise InputError(
                        f"{address} cannot be read, {ATTEMPTS} attempts failed ({reason}). Nothing is lost: run the "
                        "same command again when the server answers; a training continues with --resume."
                    ) from None
            time.sleep(pause)
            pause *= 2
        raise AssertionError


def _read_range(system: Any, path: str, start: int, stop: int) -> bytes:
    content: bytes = system.cat_file(path, start=start, end=stop)
    return content


def _file_system(address: str) -> tuple[Any, str]:
    """Return fsspec's file system of a URL, made anew in a forked process, and the path in it."""
    try:
        import fsspec

        system, path = fsspec.core.url_to_fs(address)
    except ImportError as error:
        raise InputError(
            f"{address}: shards at a URL need the packages fsspec, aiohttp (http) and s3fs (s3): "
            f"pip install 'labelgap[shards]' ({error})."
        ) from None
    return system, path


@dataclass(frozen=True)
class ShardLocation:
    """The shards of an index.

    Attributes:
        root: the folder, or the URL.
        entries: the shards.
    """

    root: Path | str
    entries: tuple[ShardEntry, ...]

    @property
    def remote(self) -> bool:
        """Whether the shards are at a URL."""
        return isinstance(self.root, str)

    def address(self, number: int) -> str:
        """Return the path or the URL of a shard, for messages."""
        return f"{self.root}/{self.entries[number].name}"

    def path(self, number: int, needed: Callable[[], bool] = lambda: True) -> Path:
        """Return the file of a shard; one of a URL is copied into the cache unless it is there or no longer needed."""
        entry = self.entries[number]
        if isinstance(self.root, Path):
            return self.root / entry.name
        path = self.cached(number)
        with suppress(OSError):
            if path.stat().st_size == entry.bytes:
                os.utime(path)  # the cache removes what was not used for the longest time
                return path
        make_folder(path.parent)
        with lock_folder(path.parent, "copying a shard", wait=_LOCK_SECONDS, name=f".{entry.digest}.lock"):
            if needed() and (not path.exists() or path.stat().st_size != entry.bytes):
                self._copy(RemoteFolder(self.root), entry, path)
                _make_room(path.parent, 0, kept=path)  # other processes may have copied shards at the same time
        return path

    def _copy(self, folder: RemoteFolder, entry: ShardEntry, path: Path) -> None:
        _make_room(path.parent, entry.bytes)
        with atomic_path(path) as temporary:
            for _ in range(_COPIES):
                folder.copy(entry.name, entry.bytes, temporary)
                if file_digest(temporary).hex() == entry.digest:
                    _mark(path).unlink(missing_ok=True)
                    return
            _mark(path).touch()
            raise InputError(
                f"{folder.address(entry.name)} is damaged: its digest is not the one in its index. Upload it again, or "
                "leave it out: --on-bad-image skip."
            )

    def is_doubtful(self, number: int) -> bool:
        """Return whether a shard of a URL was damaged when it was last copied."""
        return _mark(self.cached(number)).exists()

    def cached(self, number: int) -> Path:
        """Return where the copy of a shard of a URL is, or will be."""
        return cache_folder() / CACHE_FOLDER / f"{self.entries[number].digest}.tar"


def _mark(path: Path) -> Path:
    """Return the file that says that a shard was damaged when it was last copied."""
    return path.with_suffix(".damaged")


def _make_room(folder: Path, size: int, kept: Path | None = None) -> None:
    """Remove the shards that were not used for the longest time, so that one more fits the limit of the cache.

    One that is ``kept`` is not removed, even where it alone exceeds the limit.
    """
    limit = cache_limit().bytes
    remove_partials(folder, older_than=_LOCK_SECONDS)
    if limit is None:
        return
    files = []
    for path in folder.glob("[!.]*.tar"):  # not what is being copied
        with suppress(OSError):
            files.append((path.stat().st_mtime_ns, path.stat().st_size, path))
    total = size + sum(each[1] for each in files)
    for _, bytes_, path in sorted(files):
        if total <= limit:
            return
        if path == kept:
            continue
        with suppress(OSError):
            path.unlink()
            total -= bytes_


class ShardUse(NamedTuple):
    """A shard by its number, and the first and the last image of a pass that are in it."""

    number: int
    first: int
    last: int


class ReadAhead:
    """A thread that copies shards into the cache in the order in which they are needed, a few ahead.

    It keeps what is still needed younger than what is not, so that the cache removes the latter, and waits where the
    cache has no room for more.

    Args:
        location: of the shards.
        uses: of the shards, in the order in which they are needed.
        ahead: how many shards may be copied before the first of them is needed.
    """

    def __init__(self, location: ShardLocation, uses: Sequence[ShardUse], ahead: int) -> None:
        self._location, self._uses, self._ahead = location, uses, ahead
        self._read, self._stopped, self._room = 0, False, cache_limit().bytes
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="shards", daemon=True)
        self._thread.start()

    def advance(self, images: int) -> None:
        """Note that so many more images have been read."""
        with self._changed:
            self._read += images
            self._changed.notify()

    def stop(self) -> None:
        """Copy no further shard; one that is being copied is completed."""
        with self._changed:
            self._stopped = True
            self._changed.notify()

    def _run(self) -> None:
        for place, use in enumerate(self._uses):
            with self._changed:
                while not self._stopped and not self._may_copy(place):
                    self._changed.wait()
                if self._stopped:
                    return
                needed = self._needed(place)
            for other in needed:
                with suppress(OSError):
                    os.utime(self._location.cached(other.number))
            if self._is_needed(use):
                with suppress(LabelGapError, OSError):  # raised where the image is read
                    self._location.path(use.number, partial(self._is_needed, use))

    def _is_needed(self, use: ShardUse) -> bool:
        return use.last >= self._read

    def _needed(self, place: int) -> list[ShardUse]:
        """Return the shards before a place that have images that are not read yet."""
        return [use for use in self._uses[:place] if self._is_needed(use)]

    def _may_copy(self, place: int) -> bool:
        begun = sum(use.first <= self._read for use in self._uses)
        if place < begun:
            return True
        sizes = [self._location.entries[use.number].bytes for use in (*self._needed(place), self._uses[place])]
        return place < begun + self._ahead and (self._room is None or sum(sizes) <= self._room)
