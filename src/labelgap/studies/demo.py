"""The demo: what missing labels cost on the embedded digits, and what the methods recover."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from labelgap.core.errors import LabelGapError, RunError
from labelgap.core.lock import LOCK_FILE, lock_folder
from labelgap.core.system import cpu_count
from labelgap.data import load
from labelgap.labels import PRESENT, UNKNOWN
from labelgap.studies.jobs import run_jobs
from labelgap.studies.study import Study, StudyMember
from labelgap.training import Run
from labelgap.training.fit import fit
from labelgap.training.progress import Reporter
from labelgap.training.run_folder import is_run_folder

TITLE = "One known label per image: what do the missing ones cost?"
METHODS = ("an", "ll-r")
EPOCHS = 5
SIZES = (2400, 400, 1000)
QUICK_SIZES = (240, 40, 100)
"""So few scenes that an epoch takes about a second; the numbers then say little."""
SETTINGS: Final[dict[str, Any]] = {
    "backbone": "tiny-cnn",
    "batch_size": 8,
    "lr": 3e-3,
    "warmup": 0.5,
    "ema": 0.99,
    "trace": "all",
}
"""Of every run, chosen by val mAP under a budget of 45 seconds on one core."""
OPTIONS: Final[dict[str, dict[str, Any]]] = {"ll-r": {"delta_rel": 5}}
"""Chosen on val as well: 83.6 mAP, and 82.8 with 7."""


@dataclass(frozen=True)
class FoundLabels:
    """How well the scores of a run find the labels that are missing."""

    unknown: int  # number of unknown labels of the training images
    missing: int  # how many of them are truly present
    right: int  # how many of the ``missing`` unknown labels with the highest scores are truly present


def count_found(run: Run) -> FoundLabels:
    """Rank the unknown labels by the scores that they had in the selected epoch, and count what is missing at the top.

    The trace of the run has recorded the scores of all labels.
    """
    trace = run.trace
    unknown = trace["observed"] == UNKNOWN
    present = trace["truth"][unknown] == PRESENT
    scores = trace["logit"][run.metrics["best_epoch"] - 1, unknown]
    missing = int(present.sum())
    return FoundLabels(len(present), missing, int(present[np.argsort(-scores, kind="stable")[:missing]].sum()))


def run_demo(
    out: str | os.PathLike[str],
    *,
    epochs: int = EPOCHS,
    seed: int = 0,
    device: str = "auto",
    processes: int | None = None,
    sizes: tuple[int, int, int] = SIZES,
    callback: Callable[[str, Run], None] = lambda label, run: None,
    report: Callable[[Run], object] | None = None,
) -> Study:
    """Train on the digits with all labels, then with one per image by several methods, with the same epochs.

    Ctrl-C ends the study, which then holds the runs that are finished.

    The folder must not exist yet. ``processes`` are trainings at a time; without a GPU all of them, since a small
    network uses one core best. ``sizes`` are the scenes of train, val and test. ``callback`` is called with the label
    and the run after each training, ``report`` in the process that trained it, so it can be pickled.
    """
    folder = Path(out)
    members = [
        StudyMember("all labels", "all-labels", extra_labels=True),
        *(StudyMember(name, name) for name in METHODS),
    ]
    train = partial(_train, folder=folder, epochs=epochs, seed=seed, device=device, sizes=sizes, report=report)
    with lock_folder(folder, "the demo"):
        if any(path.name != LOCK_FILE for path in folder.iterdir()):
            raise RunError(f"{folder} exists already: choose another --out, or remove it.")
        ended, left = dict[StudyMember, Run | LabelGapError](), deque(members)
        with suppress(KeyboardInterrupt):
            trained = run_jobs(deque(members), train, processes or _default_processes(device), Reporter(), len(members))
            for member, result in trained:
                ended[member] = result
                while left and left[0] in ended:  # told in their order
                    run = ended[member := left.popleft()]
                    if isinstance(run, LabelGapError):
                        raise run
                    callback(member.label, run)
        finished = [
            member for member in members if is_run_folder(path := folder / member.folder) and Run(path).finished
        ]
        if not finished:
            raise KeyboardInterrupt
        study = Study(folder, TITLE, finished)
        study.write()
    return study


def _train(
    member: StudyMember,
    folder: Path,
    epochs: int,
    seed: int,
    device: str,
    sizes: tuple[int, int, int],
    report: Callable[[Run], object] | None,
    quiet: bool,
) -> Path:
    if quiet:  # one of several processes
        torch.set_num_threads(1)
    data = load("digits", train=sizes[0], val=sizes[1], test=sizes[2])
    labels, method = (data.reveal(), "bce") if member.extra_labels else (data, member.label)
    settings = {**SETTINGS, "epochs": epochs, "seed": seed, "device": device}
    run = fit(labels, method, OPTIONS.get(method), out=folder / member.folder, quiet=quiet, **settings)
    if report is not None and run.finished:
        report(run)
    return run.path


def _default_processes(device: str) -> int:
    if device not in ("auto", "cpu") or (device == "auto" and torch.cuda.is_available()):
        return 1
    return 1 if cpu_count() == 1 else 1 + len(METHODS)  # two cores share three trainings, and none is idle
