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
QUICK_SIZES = (240, 40, 100)  # so few scenes that an epoch takes about a second; the numbers then say little
SETTINGS: Final = dict[str, Any](backbone="tiny-cnn", batch_size=8, lr=3e-3, warmup=0.5, ema=0.99, trace="all")
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
    """Rank the unknown labels by their scores in the selected epoch (see its trace), and count what is at the top."""
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

    ``processes`` are trainings at a time, without a GPU all. ``report`` is called in the process that trained.
    """
    folder = Path(out)
    all_labels = StudyMember("all labels", "all-labels", extra_labels=True)
    members = [all_labels, *(StudyMember(name, name) for name in METHODS)]
    if not processes:  # two cores share three trainings, and none is idle
        on_gpu = device not in ("auto", "cpu") or (device == "auto" and torch.cuda.is_available())
        processes = 1 if on_gpu or cpu_count() == 1 else len(members)
    train = partial(_train, folder=folder, epochs=epochs, seed=seed, device=device, sizes=sizes, report=report)
    with lock_folder(folder, "the demo"):
        if any(path.name != LOCK_FILE for path in folder.iterdir()):
            raise RunError(f"{folder} exists already: choose another --out, or remove it.")
        ended, left = dict[StudyMember, Run | LabelGapError](), deque(members)
        with suppress(KeyboardInterrupt):
            for member, result in run_jobs(deque(members), train, processes, Reporter(), len(members)):
                ended[member] = result
                while left and left[0] in ended:  # told in their order
                    run = ended[member := left.popleft()]
                    if isinstance(run, LabelGapError):
                        raise run
                    callback(member.label, run)
        stored = [member for member in members if is_run_folder(folder / member.folder)]
        if not (finished := [member for member in stored if Run(folder / member.folder).finished]):
            raise KeyboardInterrupt
        study = Study(folder, TITLE, finished)
        study.write()
    return study


def _train(
    member: StudyMember,
    folder: Path,
    sizes: tuple[int, int, int],
    report: Callable[[Run], object] | None,
    quiet: bool,
    **settings: Any,
) -> Path:
    if quiet:  # one of several processes
        torch.set_num_threads(1)
    data = load("digits", train=sizes[0], val=sizes[1], test=sizes[2])
    labels, method = (data.reveal(), "bce") if member.extra_labels else (data, member.label)
    out = folder / member.folder
    run = fit(labels, method, OPTIONS.get(method), out=out, quiet=quiet, **{**SETTINGS, **settings})
    if report is not None and run.finished:
        report(run)
    return run.path
