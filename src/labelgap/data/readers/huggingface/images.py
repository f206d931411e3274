"""Images in the rows of Arrow and Parquet files, or in files that the rows name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from labelgap.core.errors import InputError
from labelgap.data.decoding import EncodedImage
from labelgap.data.images import DigestedImages
from labelgap.data.readers.huggingface.files import DataFile


@dataclass(frozen=True, eq=False)
class ImageRows:
    """Where images are: the file, the batch in it, the row in the batch, and the size and digest of their bytes.

    Attributes:
        names: of the images.
        places: ``(N, 3)`` number of the file, of the batch and of the row.
        paths: the path of an image that is a file of its own; empty where the row holds its bytes.
        sizes: ``(N,)`` bytes.
        digests: ``(N, 16)``
    """

    names: Sequence[str]
    places: NDArray[np.int64]
    paths: Sequence[str]
    sizes: NDArray[np.int64]
    digests: NDArray[np.uint8]


class RowImages(DigestedImages):
    """Images in rows of files, read on access.

    Args:
        root: the folder of the data set.
        column: the column of images, of structs of bytes and path.
        files: what ``places`` of the rows count.
        rows: where the images are.
    """

    row_fields = ("places", "paths", "sizes", "digests")

    def __init__(self, root: Path, column: str, files: Sequence[DataFile], rows: ImageRows) -> None:
        self.root = root
        self.column = column
        self.data_files = tuple(files)
        self.names = tuple(rows.names)
        self.places, self.paths = rows.places, tuple(rows.paths)
        self.sizes, self.digests = rows.sizes, rows.digests

    def __repr__(self) -> str:
        return f"RowImages({len(self):,} in {len(np.unique(self.places[:, 0])):,} files of {self.root})"

    def encoded(self, row: int) -> Path | EncodedImage:
        """Return the bytes of image ``row``, or the path of its file."""
        if self.paths[row]:
            return Path(self.paths[row])
        number, batch, place = self.places[row].tolist()
        file = self.data_files[number]
        where = f"{self.names[row]} in {file.path}"
        try:
            content = file.batch(batch, [self.column]).column(0).field("bytes")[place].as_py()
        except (IndexError, OSError, KeyError):
            content = None
        if content is None:
            raise InputError(f"{where} does not exist any more: the file has changed since it was loaded.")
        return EncodedImage(content, where)

    def shuffle(self, generator: np.random.Generator) -> NDArray[np.int64]:
        """Return every row once, in a random order: batches are shuffled, then the images of every few of them.

        A row group of Parquet is unpacked as a whole, so each is needed for a short time only.
        """
        if not any(file.parquet for file in self.data_files):
            return generator.permutation(len(self))
        _, batch = np.unique(self.places[:, :2], axis=0, return_inverse=True)
        rank = generator.permutation(int(batch.max(initial=-1)) + 1)[batch.ravel()]
        return np.lexsort((generator.random(len(self)), rank // _WINDOW))


_WINDOW = 4
"""Row groups whose images are shuffled together; the cache holds twice as many."""
