"""A finished run as the teacher of another one: what it makes of unknown labels is what the other is to learn.

The teacher may be an earlier round of the same network: its own probabilities of the images that it was trained on are
better labels than none (docs/results/recipe.md).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import torch

from labelgap.core.distributed import is_main_process, single_process
from labelgap.core.errors import InputError, nearest
from labelgap.core.stored import damaged
from labelgap.core.tensors import read_tensors, write_tensors
from labelgap.core.text import pluralize
from labelgap.data.dataset import Dataset, Split
from labelgap.labels import LabelTable, SoftLabels
from labelgap.metrics.label_model import PlattCalibration
from labelgap.training.loop.processes import barrier, fail_together
from labelgap.training.progress import Reporter
from labelgap.training.run import Run, open_run
from labelgap.training.run_files import TEACHER_FILE

SMOOTHING: Final = 0.05
"""A teacher is never certain: its probability t counts as 0.9 t + 0.05. It is the smoothing of known labels, too."""
TAUGHT: Final = ("bce-ls", {"smoothing": SMOOTHING})
"""The method that `auto` chooses where a teacher speaks of every unknown label."""
_REMEDY: Final = "Train into a new folder."


def open_teacher(path: str, classes: tuple[str, ...]) -> tuple[Run, PlattCalibration]:
    """Open the run and its calibration; an error where it does not know the classes, or how likely a label is."""
    run = open_run(path)
    if missing := [name for name in classes if name not in run.config.classes]:
        close = nearest(missing[0], run.config.classes)
        meant = f"; it has {close}" if close else ""
        raise InputError(f"the teacher {path} does not know the class {missing[0]}{meant}. --rename changes a name.")
    if run.calibration is None:
        raise InputError(
            f"the teacher {path} has no calibration, so its scores are no probabilities: its val has too few known "
            "labels, or there is none. Train the teacher with a val split."
        )
    return run, run.calibration


def check_unseen(teacher: Run, data: Dataset, folds: int) -> None:
    """Refuse a teacher that was trained on images which measure the run: it would pass on labels that are hidden."""
    for split in data.splits:
        measures = split.name != "train" or folds
        if measures and (count := teacher.count_training_images(data, split.name)):
            where = split.name if split.name != "train" else "train, and cross-validation hides their labels"
            raise InputError(
                f"the teacher {teacher.path} was trained on {pluralize(count, 'image')} of {where}: scores of "
                "them would be too high. Train both runs with the same val split; --protocol end-to-end holds one out."
            )


def follow_teacher(path: str, train: Split, folder: Path, device: str, workers: int, reporter: Reporter) -> LabelTable:
    """Return the labels of train with what the teacher says of the unknown ones; kept in ``folder``, to resume."""
    with fail_together(), single_process():
        if is_main_process() and not (folder / TEACHER_FILE).exists():
            run, calibration = open_teacher(path, train.labels.classes)
            reporter.log(f"the teacher {path} scores {len(train):,} training images")
            logits = run.logits(train.images, device=device, workers=workers, cached=True, reporter=reporter)
            # an offset for every class: those with few known labels have that of the others
            chance = calibration.probabilities(logits, every_class=True)
            columns = [run.config.classes.index(name) for name in train.labels.classes]
            target = torch.from_numpy(SMOOTHING + (1 - 2 * SMOOTHING) * chance[:, columns])
            write_tensors(folder / TEACHER_FILE, {"target": target})
    barrier()
    said = read_tensors(folder / TEACHER_FILE, remedy=_REMEDY)[0]["target"]
    if said.shape != train.labels.shape or said.dtype != torch.float32 or not ((said >= 0) & (said <= 1)).all():
        raise damaged(folder / TEACHER_FILE, "it is of other images or classes", _REMEDY)
    return train.labels.with_soft(SoftLabels(said.numpy(), torch.ones_like(said).numpy()))
