"""Out-of-fold networks, where the backbone starts from nothing: each fold's images are scored by a network of its own.

A head on the features of a network that has learned nothing finds nothing. So the run is trained anew for each fold,
on the images of the others, exactly as it was. A fold that is done is kept in the run's folder until the audit is: one
that was killed goes on there.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from labelgap.audit.scorers import BLOCK_SIZE, StoredScorer
from labelgap.core.files import make_folder
from labelgap.data.dataset import Dataset, Split
from labelgap.training import Run, fit
from labelgap.training.config.rerun import fit_arguments
from labelgap.training.config.schema import CONFIG_FILE

__all__ = ["FoldNetworks"]

FOLDER: Final = "audit"


@dataclass(frozen=True, eq=False)
class FoldNetworks:
    """The networks of a run's folds.

    Attributes:
        run: the run that they repeat.
        data: what it was trained on.
        fold: ``(N,)`` of every row of train.
        device: as for ``fit``.
        workers: as for ``fit``.
    """

    run: Run
    data: Dataset
    fold: NDArray[np.int64]
    device: str = "auto"
    workers: int | None = None

    @property
    def folder(self) -> Path:
        """Where the folds are kept while they are needed: one place for these labels, folds and settings."""
        labels = self.data.train.labels
        digest = hashlib.sha256(self.run.config.fingerprint().encode())
        for array in (self.fold, labels.starts, labels.columns, labels.values):
            digest.update(np.ascontiguousarray(array).data)
        digest.update("\0".join(labels.images).encode("utf-8", "surrogatepass"))
        return self.run.path / FOLDER / digest.hexdigest()[:12]

    def scorer(self, splits: tuple[str, ...], advance: Callable[[int], None] = lambda count: None) -> StoredScorer:
        """Train what is not trained yet, score every image of the splits, and keep the logits in files."""
        make_folder(self.folder)
        stored = {split: self._matrix(split) for split in splits}
        folds = int(self.fold.max()) + 1
        for number in range(folds):
            run = self._trained(number)
            for split in splits:
                self._score(run, self.data.split(split), number, folds, stored[split])
            advance(1)
        return StoredScorer(stored)

    def clear(self) -> None:
        """Remove what was kept."""
        shutil.rmtree(self.run.path / FOLDER, ignore_errors=True)

    def _trained(self, number: int) -> Run:
        out = self.folder / f"fold-{number + 1}"
        rows = np.flatnonzero(self.fold != number)
        train = self.data.train
        part = Split("train", train.images.select(rows), train.labels.select(rows))
        data = replace(self.data, train=part, test=None, recipe={})
        settings = {**fit_arguments(self.run.config), "trace": "off"}
        begun = (out / CONFIG_FILE).exists()
        run = fit(data, **settings, out=out, device=self.device, workers=self.workers, resume=begun, quiet=True)
        if not run.finished or run.metrics["interrupted"]:
            raise KeyboardInterrupt
        return run

    def _score(self, run: Run, split: Split, number: int, folds: int, stored: NDArray[np.float32]) -> None:
        """Write the logits of a fold's images; of a split that no network has seen, its share of the mean."""
        own = split.name == "train"
        rows = np.flatnonzero(self.fold == number) if own else np.arange(len(split))
        step = max(1, BLOCK_SIZE // max(len(self.data.classes), 1))
        for start in range(0, len(rows), step):
            some = rows[start : start + step]
            logits = run.logits(split.images.select(some), device=self.device, workers=self.workers or 0)
            stored[some] += logits if own else logits / folds

    def _matrix(self, split: str) -> NDArray[np.float32]:
        shape = (len(self.data.split(split)), len(self.data.classes))
        return np.lib.format.open_memmap(self.folder / f"{split}.npy", mode="w+", dtype=np.float32, shape=shape)
