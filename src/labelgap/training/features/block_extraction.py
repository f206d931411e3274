"""The features that the cache lacks, computed a block of about ten seconds at a time.

A complete block is stored, and then the cache is searched again: several processes that want the same images take short
blocks in a random order and so share the work.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from labelgap.core.cache.row_store import RowStore
from labelgap.models import Backbone
from labelgap.models.inference import Precision, inference_backbone
from labelgap.training.features.keys import ContentKeys
from labelgap.training.loop.inputs import ImageInputs
from labelgap.training.progress import Reporter

BLOCK_SECONDS = 10.0
"""The duration of a block: what is lost by a kill. The first block is one batch."""
SHARED_BLOCK_SECONDS = 1.0
"""While other processes compute features of the same network: what two processes may both compute."""
START_UPS = 4.0
"""How many times longer than the start of its workers a block is at least."""

Rows = NDArray[np.int64]


class _Batch(NamedTuple):
    """Images that are computed together: the number of their source, and rows counted over all sources."""

    source: int
    rows: Rows


def next_block(times: Sequence[float], seconds: float) -> int:
    """Return of how many batches the next block is, to last ``seconds``, or longer where its start is slow.

    Worker processes start with every block, which takes seconds where they are spawned: a block lasts ``START_UPS``
    times as long as their start, which is what its first batch takes longer than the others.

    Args:
        times: when a block began, and when each of its batches was computed.
        seconds: how long a block is to last.

    Example:
        >>> next_block([0.0, 6.0], 1.0), next_block([0.0, 6.0, 6.5, 7.0], 1.0), next_block([0.0, 6.0, 12.0], 1.0)
        (4, 44, 1)
    """
    first, others = times[1] - times[0], np.diff(times[1:])
    batch = float(others.mean()) if len(others) else first
    start_up = first - batch if len(others) else first
    return max(1, round(max(seconds, START_UPS * start_up) / max(batch, 1e-3)))


class BlockExtraction:
    """Fills a matrix of features; rows are counted over all sources."""

    def __init__(
        self,
        contents: Sequence[ContentKeys],
        starts: NDArray[np.int64],
        features: NDArray[np.float32],
        store: RowStore,
        batch_size: int,
        precision: Precision,
        mirrored: bool = False,
    ) -> None:
        self.contents, self.starts, self.features, self.store = contents, starts, features, store
        self.precision, self.mirrored = precision, mirrored
        self.bytes = features.view(np.uint8)
        self.keys = np.concatenate([content.keys for content in contents])
        every = np.arange(len(features))
        self.missing = every[~store.read(self.keys, self.bytes, every)]
        _, first, self.copy_of = np.unique(
            self.keys[self.missing].view("V16").ravel(), return_index=True, return_inverse=True
        )
        self.first = self.missing[first]
        self.batches = list(self._batches(np.sort(self.first), batch_size))

    def run(self, inputs: Sequence[ImageInputs], backbone: Backbone, reporter: Reporter) -> Counter[str]:
        """Compute what is missing, a block at a time, and store it; return the numbers of images."""
        computed, total, count = 0, len(self.features), 1
        if self.batches:
            backbone = inference_backbone(backbone, inputs[0].device, self.precision)
            self.store.reserve(len(self.first))
            with reporter.bar("features", len(self.first)):
                while self.batches:
                    start = secrets.randbelow(max(len(self.batches) - count, 0) + 1)
                    block = self.batches[start : start + count]
                    del self.batches[start : start + count]
                    times = [time.monotonic()]
                    for rows in self._compute(block, inputs, backbone):
                        times.append(time.monotonic())
                        computed += len(rows)
                        reporter.advance(len(rows))
                    count = next_block(times, SHARED_BLOCK_SECONDS if self.store.shared else BLOCK_SECONDS)
                    reporter.advance(self._skip_computed_elsewhere())
            self.features[self.missing] = self.features[self.first[self.copy_of]]
        copies = len(self.missing) - len(self.first)
        counts = {"images": total, "computed": computed, "from the cache": total - computed - copies, "copies": copies}
        return Counter(counts)

    def _batches(self, rows: Rows, batch_size: int) -> Iterator[_Batch]:
        """Yield batches of rows, each of one source."""
        bounds = np.searchsorted(rows, self.starts)
        for source, (start, stop) in enumerate(pairwise(bounds.tolist())):
            for first in range(start, stop, batch_size):
                yield _Batch(source, rows[first : min(first + batch_size, stop)])

    def _compute(self, block: Sequence[_Batch], inputs: Sequence[ImageInputs], backbone: Backbone) -> Iterator[Rows]:
        """Compute and store a block, yielding the rows of every batch; also what a failure leaves is stored."""
        for source, group in groupby(block, key=lambda batch: batch.source):
            batches, start, done = list(group), int(self.starts[source]), []
            rows = np.concatenate([batch.rows for batch in batches]) - start
            try:
                for index, values in inputs[source].batches(rows, batch_size=len(batches[0].rows)):
                    with torch.inference_mode():
                        seen = values.flip(-1) if self.mirrored else values
                        found = backbone.features(seen).float().cpu().numpy()
                    self.features[index.numpy() + start] = found
                    done.append(index.numpy() + start)
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
        left = np.concatenate([batch.rows for batch in self.batches])
        found = np.zeros(len(self.features), dtype=bool)
        found[left] = self.store.read(self.keys[left], self.bytes, left)
        before, self.batches = self.batches, [batch for batch in self.batches if not found[batch.rows].all()]
        return sum(len(batch.rows) for batch in before) - sum(len(batch.rows) for batch in self.batches)
