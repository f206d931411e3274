"""Images in shards, each read by its offset."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import numpy as np
from numpy.typing import NDArray

from labelgap.core.errors import InputError
from labelgap.data.decoding import EncodedImage
from labelgap.data.images import DigestedImages
from labelgap.data.readers.shards.index import ImageRows
from labelgap.data.readers.shards.location import ReadAhead, ShardLocation, ShardUse

WINDOW: Final = 8
"""Shards of a URL whose images are shuffled together; the cache has to hold about three times as many."""
_ATTEMPTS: Final = 3


class ShardImages(DigestedImages):
    """Images of shards: the same images in any order, as from files of their own.

    Args:
        location: where the shards are.
        rows: the images of all shards.

    The features of an image are cached by the digest of its bytes, so that they are those of the file it was made of.
    """

    row_fields = ("shards", "offsets", "sizes", "digests")

    def __init__(self, location: ShardLocation, rows: ImageRows) -> None:
        self.location = location
        self.root = location.root
        self.names = rows.names
        self.shards, self.offsets, self.sizes, self.digests = rows.shards, rows.offsets, rows.sizes, rows.digests

    def __repr__(self) -> str:
        return f"ShardImages({len(self):,} in {len(np.unique(self.shards)):,} shards of {self.root})"

    def encoded(self, row: int) -> EncodedImage:
        """Return the bytes of image ``row``."""
        number, offset, size = (int(each[row]) for each in (self.shards, self.offsets, self.sizes))
        place = self.location.address(number)
        for _ in range(_ATTEMPTS):
            path = self.location.path(number)
            try:
                with path.open("rb", buffering=0) as file:
                    file.seek(offset)
                    content = file.read(size)
            except FileNotFoundError:
                continue  # another process has just removed it from the cache
            except OSError as error:
                raise InputError(f"{place} cannot be read: {(error.strerror or str(error)).lower()}.") from None
            if len(content) < size:
                raise InputError(f"{place} is truncated: {self.names[row]} lies beyond its end. Copy it again.")
            return EncodedImage(content, f"{self.names[row]} in {place}")
        raise InputError(f"{place} does not exist any more.")

    def shuffle(self, generator: np.random.Generator) -> NDArray[np.int64]:
        """Return every row once, in a random order.

        Where shards are copied from a URL, the shards are shuffled, and then the images within every ``WINDOW`` shards,
        so that each shard is needed for a short time only.
        """
        if not self.location.remote:
            return generator.permutation(len(self))
        by_shard = np.argsort(self.shards, kind="stable")
        parts = np.split(by_shard, np.flatnonzero(np.diff(self.shards[by_shard])) + 1)
        order = generator.permutation(len(parts)).tolist()
        windows = [order[start : start + WINDOW] for start in range(0, len(order), WINDOW)]
        shuffled = [generator.permutation(np.concatenate([parts[part] for part in window])) for window in windows]
        return np.concatenate([np.zeros(0, dtype=np.int64), *shuffled])

    @contextmanager
    def read_ahead(self, rows: NDArray[np.int64]) -> Iterator[ReadAhead | None]:
        """Copy the shards of a URL into the cache while the block runs, before their images are needed.

        The ``ReadAhead`` is told how many of the rows have been read.
        """
        if not self.location.remote or not len(rows):
            yield None
            return
        needed, first = np.unique(self.shards[rows], return_index=True)
        last = len(rows) - 1 - np.unique(self.shards[rows][::-1], return_index=True)[1]
        order = np.argsort(first)
        uses = [ShardUse(*each) for each in np.stack([needed, first, last], axis=1)[order].tolist()]
        ahead = ReadAhead(self.location, uses, 2 * WINDOW)
        try:
            yield ahead
        finally:
            ahead.stop()
