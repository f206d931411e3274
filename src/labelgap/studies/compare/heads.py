"""The heads of a comparison: trained in groups, each kept in a file of its own, and never trained twice.

A head is found by what decides its weights: the features, its labels, the method and its options, the rates, the seeds
and the rule that chose its epoch. A comparison that was stopped, or asked for one more method or seed, trains only
what is not there yet.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from torch import Tensor

from labelgap.core.files import atomic_path, make_folder
from labelgap.core.system import available_memory
from labelgap.labels import LabelTable
from labelgap.studies.compare.grid import Hyperparameters
from labelgap.studies.compare.label_views import table_digest
from labelgap.training.heads import HeadPlan, HeadResult, train_heads
from labelgap.training.selection import Selection

__all__ = ["FOLDER", "HeadTask", "HeadTrainingSetup", "StoredHead", "train_or_load_heads"]

FOLDER: Final = "heads"
_VERSION: Final = 1
"""Raised when the same plan comes out otherwise than before."""
_ORDER_SEED: Final = 0
_MEMORY_SHARE: Final = 0.25
_MOST_AT_ONCE: Final = 128


@dataclass(frozen=True)
class HeadTrainingSetup:
    """What all heads of a comparison have in common.

    Attributes:
        features: ``(N, D)`` of train, on the device.
        val_features: of val, or None.
        selection: the rule by which epochs and settings are chosen.
        epochs: how many.
        device: where to train.
        fingerprint: of the images and the network that made the features.
    """

    features: Tensor
    val_features: Tensor | None
    selection: Selection
    epochs: int
    device: torch.device
    fingerprint: str


@dataclass(frozen=True, eq=False)
class HeadTask:
    """A head to be trained.

    Attributes:
        method: its name.
        setting: options, rate and batch size.
        seed: of the first weights and of what the method draws.
        labels: what it sees.
    """

    method: str
    setting: Hyperparameters
    seed: int
    labels: LabelTable


@dataclass(frozen=True, eq=False)
class StoredHead:
    """A trained head; its weights stay in their file until somebody asks for them.

    Attributes:
        path: the file.
        epoch: the epoch kept.
        score: of that epoch under the rule; None where the last epoch is kept unseen.
        epochs: how many were trained.
        seconds: its share of the time of its group.
        failed: why it came to nothing; None where it did not.
    """

    path: Path
    epoch: int
    score: float | None
    epochs: int
    seconds: float
    failed: str | None = None

    def weights(self) -> tuple[Tensor, Tensor]:
        """Read the weights ``(K, D)`` and the biases ``(K,)``."""
        with safe_open(self.path, framework="pt") as file:
            return file.get_tensor("weight"), file.get_tensor("bias")


def train_or_load_heads(
    tasks: Sequence[HeadTask],
    lesson: HeadTrainingSetup,
    folder: Path,
    *,
    told: Callable[[int, int, str], None] = lambda done, heads, words: None,
) -> list[StoredHead]:
    """Train the heads that are not in the folder yet, and return all of them.

    Heads of one batch size and seed are trained together, as many as fit into memory; each group is written when it is
    done, so that a Ctrl-C costs no more than the group it meets.

    Args:
        tasks: what is wanted.
        lesson: what they are trained on.
        folder: of the comparison.
        told: called with the epochs done of a group, its heads, and what there is to be said; see ``_train``.
    """
    make_folder(folder / FOLDER)
    digests: dict[int, str] = {}
    paths = [_path(folder, task, lesson, digests) for task in tasks]
    found = {path: head for path in dict.fromkeys(paths) if (head := _read(path)) is not None}
    missing = {path: task for path, task in zip(paths, tasks, strict=True) if path not in found}
    for group in _groups(missing, lesson):
        found |= _train(group, {path: missing[path] for path in group}, lesson, told)
    return [found[path] for path in paths]


def _groups(missing: dict[Path, HeadTask], lesson: HeadTrainingSetup) -> Iterable[list[Path]]:
    """Yield the heads that are trained together: of one batch size and seed."""
    together: dict[tuple[int, int], list[Path]] = {}
    for path, task in missing.items():
        together.setdefault((task.seed, task.setting.batch_size), []).append(path)
    for _, paths in sorted(together.items()):
        most = _at_once(lesson, missing[paths[0]].labels)
        for first in range(0, len(paths), most):
            yield paths[first : first + most]


def _at_once(lesson: HeadTrainingSetup, labels: LabelTable) -> int:
    """Return how many heads fit into memory: weights, gradient, best and Adam's two, and a state for every image."""
    images, classes = labels.shape
    each = 5 * 4 * classes * (lesson.features.shape[1] + 1) + 16 * images * classes
    free = torch.cuda.mem_get_info(lesson.device)[0] if lesson.device.type == "cuda" else available_memory()
    return _MOST_AT_ONCE if free is None else int(min(max(_MEMORY_SHARE * free // each, 1), _MOST_AT_ONCE))


def _train(
    paths: Sequence[Path], tasks: dict[Path, HeadTask], lesson: HeadTrainingSetup, told: Callable[[int, int, str], None]
) -> dict[Path, StoredHead]:
    first = tasks[paths[0]]
    plans = [
        HeadPlan(task.method, task.setting.options, task.setting.lr, task.labels, seed=task.seed)
        for task in (tasks[path] for path in paths)
    ]
    words = f"seed {first.seed}, batch {first.setting.batch_size}"
    told(0, len(plans), words)
    started = time.perf_counter()
    results = train_heads(
        lesson.features,
        plans,
        epochs=lesson.epochs,
        batch_size=first.setting.batch_size,
        order_seed=_ORDER_SEED,
        val_features=None if lesson.selection.labels is None else lesson.val_features,
        val_labels=lesson.selection.labels,
        select=lesson.selection.rule,
        device=lesson.device,
        progress=lambda done, _: told(done, len(plans), words),
    )
    share = (time.perf_counter() - started) / len(plans)
    return {path: _write(path, result, share) for path, result in zip(paths, results, strict=True)}


def _path(folder: Path, task: HeadTask, lesson: HeadTrainingSetup, digests: dict[int, str]) -> Path:
    """Return where a head is kept, by what decides its weights."""
    for table in (task.labels, lesson.selection.labels):
        digests.setdefault(id(table), table_digest(table))
    setting = task.setting
    parts = {
        "version": _VERSION,
        "features": lesson.fingerprint,
        "labels": digests[id(task.labels)],
        "method": task.method,
        "options": dict(sorted(setting.options.items())),
        "lr": setting.lr,
        "batch_size": setting.batch_size,
        "epochs": lesson.epochs,
        "seed": task.seed,
        "order": _ORDER_SEED,
        "rule": lesson.selection.rule,
        "val": digests[id(lesson.selection.labels)],
    }
    key = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:20]
    return folder / FOLDER / f"{task.method}-{key}.safetensors"


def _write(path: Path, result: HeadResult, seconds: float) -> StoredHead:
    plan = result.plan
    kept: dict[str, Any] = {
        "epoch": result.best_epoch,
        "score": result.best_score,
        "epochs": len(result.history),
        "seconds": seconds,
        "failed": result.failed,
    }
    about = {"method": plan.method, "options": dict(plan.options), "lr": plan.lr, "seed": plan.seed, **kept}
    arrays = {"weight": result.weight, "bias": result.bias}
    with atomic_path(path) as temporary:
        save_file(
            {name: np.ascontiguousarray(values, dtype=np.float32) for name, values in arrays.items()},
            temporary,
            metadata={"labelgap": json.dumps({**about, "history": result.history})},
        )
    return StoredHead(path, **kept)


def _read(path: Path) -> StoredHead | None:
    """Read a head, or nothing where there is none that is whole."""
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="numpy") as file:
            about = json.loads(file.metadata()["labelgap"])
            return StoredHead(path, **{name: about[name] for name in ("epoch", "score", "epochs", "seconds", "failed")})
    except (SafetensorError, OSError, KeyError, TypeError, ValueError):
        return None
