"""How long the heads of a comparison will take to train, by a few steps of every group of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import torch

from labelgap.studies.compare.evaluation import MethodPlan
from labelgap.studies.compare.heads import HeadTask, HeadTrainingSetup, group_tasks, head_path
from labelgap.studies.compare.search import head_tasks
from labelgap.training.heads import LinearEngine
from labelgap.training.heads.train import few_threads

IMAGES: Final = 500
"""Images of a measured step of "newton"."""
CONVERGED: Final = 0.4
"""The share of its epochs after which most heads of "newton" have converged."""
FURTHER: Final = 1.5
"""How long the settings around the best ones take, relative to the first ones."""


def estimate_seconds(plans: Sequence[MethodPlan], setup: HeadTrainingSetup, folds: int, folder: Path) -> float:
    """Return about how many seconds the heads that a comparison has not stored take to train, and those of folds."""
    first = [task for plan in plans for config in plan.candidates for task in head_tasks(plan, config)]
    further = FURTHER if any(any(plan.left_open.values()) for plan in plans) else 0.0
    if folds:
        final = [task for plan in plans for task in head_tasks(plan, plan.candidates[0])]
        one_seed = first[:: len(plans[0].view.datasets)]
        return (1 + further) * _seconds(one_seed * folds, setup) + _seconds(final * (folds + 1), setup)
    digests: dict[int, str] = {}
    by_path = {head_path(folder, task, setup, digests): task for task in first}
    return (1 + further) * _seconds([task for path, task in by_path.items() if not path.exists()], setup)


def _seconds(tasks: Sequence[HeadTask], setup: HeadTrainingSetup) -> float:
    """Measure a step of every group of heads, after another one; of "newton" on a part of the images."""
    features, seconds = setup.features["train"], 0.0
    for group in group_tasks(dict(enumerate(tasks)), setup):
        first = next(iter(group.values()))
        newton = first.optimizer == "newton"
        rows = np.arange(min(len(features), IMAGES if newton else first.batch_size))
        engine = LinearEngine(
            features[: len(rows)],
            [replace(task.plan, labels=task.plan.labels.select(rows)) for task in group.values()],
            epochs=first.epochs,
            batch_size=first.batch_size,
            device=setup.device,
            optimizer=first.optimizer,
            standardize=first.standardize,
        )
        with few_threads(engine), torch.no_grad():
            for _ in range(2):
                started = time.perf_counter()
                engine.train_batch(torch.from_numpy(rows).to(setup.device))
                if setup.device.type == "cuda":
                    torch.cuda.synchronize(setup.device)
        steps = first.steps * len(features) / len(rows) * (CONVERGED if newton else 1.0)
        seconds += (time.perf_counter() - started) * steps
    return seconds
