"""Out-of-fold networks, for backbones without pretrained weights: each fold is scored by a network of its own.

Features of an untrained network carry no information, so the run is repeated for each fold, on the images of the other
folds, with the same settings. The run's folder keeps finished folds until the audit is done: a killed audit resumes.
One audit at a time can use them. A fold that was damaged is trained again.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from labelgap.audit.scorers import BLOCK_SIZE, StoredScorer
from labelgap.core.distributed import is_main_process
from labelgap.core.errors import RunError
from labelgap.core.files import DiskError, make_folder
from labelgap.data.dataset import Dataset, Split
from labelgap.training import Run
from labelgap.training.config import CONFIG_FILE
from labelgap.training.fit import fit
from labelgap.training.loop.processes import barrier, broadcast_object, lock_together
from labelgap.training.loop.trainer import EpochCallback
from labelgap.training.rerun import fit_arguments

FOLDER: Final = "audit"
_LOCK_FILE: Final = ".audit.lock"


@dataclass(frozen=True, eq=False)
class FoldNetworks:
    """The networks of a run's folds: ``fold`` is ``(N,)``, of every row of train."""

    run: Run
    data: Dataset
    fold: NDArray[np.int64]
    device: str = "auto"
    workers: int | None = None

    @property
    def folder(self) -> Path:
        """The folder of these labels, folds and settings, inside the run's."""
        labels = self.data.train.labels
        digest = hashlib.sha256(self.run.config.fingerprint().encode())
        for array in (self.fold, labels.starts, labels.columns, labels.values):
            digest.update(np.ascontiguousarray(array).data)
        digest.update("\0".join(labels.images).encode("utf-8", "surrogatepass"))
        return self.run.path / FOLDER / digest.hexdigest()[:12]

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other audits of the run, which may write their candidates elsewhere, from its folds in this block."""
        with lock_together(self.run.path, "auditing", name=_LOCK_FILE):
            yield

    def scorer(self, splits: tuple[str, ...], advance: Callable[[int], None] = lambda count: None) -> StoredScorer:
        """Train the folds that are not finished, score every image of the splits, and store the logits in files.

        Several processes train and score together, and the first one stores.
        """
        if is_main_process():
            make_folder(self.folder)
        stored = {split: self._memmap(split) for split in splits}
        folds = int(self.fold.max()) + 1
        for number in range(folds):
            run = self._train(number, lambda _: advance(0))
            for split in splits:
                self._score(run, self.data.split(split), number, folds, stored[split])
            advance(1)
        return StoredScorer(stored)

    def clear(self) -> None:
        """Remove the stored folds."""
        shutil.rmtree(self.run.path / FOLDER, ignore_errors=True)

    def _train(self, number: int, on_epoch: EpochCallback) -> Run:
        out = self.folder / f"fold-{number + 1}"
        rows = np.flatnonzero(self.fold != number)
        train = self.data.train
        part = Split("train", train.images.select(rows), train.labels.select(rows))
        data = replace(self.data, train=part, test=None, recipe={})
        settings = {**fit_arguments(self.run.config), "trace": "off"}
        if settings.get("optimizer") == "newton":  # whose batch is all images, here fewer
            settings.pop("batch_size")
        resume = bool(broadcast_object((out / CONFIG_FILE).exists()))
        given = {**settings, "out": out, "device": self.device, "workers": self.workers, "quiet": True}
        given["on_epoch"] = on_epoch
        try:
            run = fit(data, **given, resume=resume)
            _ = run.finished and run.model
        except RunError as error:
            if not resume or isinstance(error, DiskError):
                raise
            barrier()
            if is_main_process():
                shutil.rmtree(out)
            barrier()
            run = fit(data, **given)
        if not run.finished or run.metrics["interrupted"]:
            raise KeyboardInterrupt
        return run

    def _score(self, run: Run, split: Split, number: int, folds: int, stored: NDArray[np.float32]) -> None:
        """Store the logits of a fold's images; for a split that no network was trained on, add to their mean."""
        out_of_fold = split.name == "train"
        rows = np.flatnonzero(self.fold == number) if out_of_fold else np.arange(len(split))
        step = max(1, BLOCK_SIZE // max(len(self.data.classes), 1))
        for start in range(0, len(rows), step):
            part = rows[start : start + step]
            logits = run.logits(split.images.select(part), device=self.device, workers=self.workers or 0)
            if is_main_process():
                stored[part] += logits if out_of_fold else logits / folds

    def _memmap(self, split: str) -> NDArray[np.float32]:
        shape = (len(self.data.split(split)), len(self.data.classes))
        if not is_main_process():
            return np.empty((0, shape[1]), dtype=np.float32)
        return np.lib.format.open_memmap(self.folder / f"{split}.npy", mode="w+", dtype=np.float32, shape=shape)
