"""The heads of a comparison: trained in groups, each stored in a file, and never trained twice.

The file name is a hash of everything that determines the weights: features, labels, method, options, learning rate,
batch size, weight decay, optimizer, seeds and the rule that selects the epoch. A comparison that was stopped, or gets
one more method or seed, trains only the heads that are not stored yet. A file carries a digest of its content; a
damaged head is trained again.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from labelgap.core.errors import RunError
from labelgap.core.files import make_folder, remove_partials
from labelgap.core.manifest import MANIFEST_FILE, replacing, verify_folder
from labelgap.core.stored import damaged, parse_json, reading, validate
from labelgap.core.system import available_memory
from labelgap.core.tensors import read_tensors, write_tensors
from labelgap.labels import LabelTable
from labelgap.studies.compare.comparison import HEADS_FOLDER
from labelgap.studies.compare.label_views import table_digest
from labelgap.training.heads import HeadPlan, HeadResult, train_heads
from labelgap.training.heads.engine import NEWTON_STEPS
from labelgap.training.heads.solver import FeatureBasis
from labelgap.training.progress import Reporter
from labelgap.training.selection import Selection

T = TypeVar("T")

_VERSION: Final = 2
"""Raised when the same plan gives other weights than before, or another file."""
_MEMORY_SHARE: Final = 0.25
_MAX_GROUP: Final = 128
_METADATA_KEY: Final = "labelgap"


class HeadTask(NamedTuple):
    """A head to train, and what the heads that are trained with it share.

    Attributes:
        plan: of the head.
        epochs: how many.
        batch_size: images per batch.
        optimizer: "adam" or "newton".
        standardize: whether it is trained on standardized features.
        order_seed: of the order of the batches.
        last: whether its last epoch is kept, whatever val says: that of a convex problem is the solution.
    """

    plan: HeadPlan
    epochs: int
    batch_size: int
    optimizer: str = "adam"
    standardize: bool = False
    order_seed: int = 0
    last: bool = False

    @property
    def steps(self) -> int:
        """How often all images are seen."""
        return self.epochs * (NEWTON_STEPS if self.optimizer == "newton" else 1)


Shape = tuple[int, int]
"""Number of classes and of features."""


@dataclass(frozen=True)
class HeadTrainingSetup:
    """What all heads of a comparison share.

    Attributes:
        features: name of a split → ``(N, D)``, on the device.
        selection: the rule that selects epochs and settings.
        device: where to train.
        fingerprint: of the images and the network behind the features.
        bases: the coordinates of the features that were needed so far; see ``basis``.
    """

    features: Mapping[str, Tensor]
    selection: Selection
    device: torch.device
    fingerprint: str
    bases: dict[tuple[bool, bool], FeatureBasis] = field(default_factory=dict)

    def basis(self, optimizer: str, *, standardize: bool) -> FeatureBasis | None:
        """Return the coordinates in which heads are trained, computed once; None for the features themselves."""
        key = standardize, optimizer == "newton"
        if any(key) and key not in self.bases:
            self.bases[key] = FeatureBasis.fit(self.features["train"], standardize=standardize, rotate=key[1])
        return self.bases.get(key)


class _HeadMetadata(BaseModel):
    """What the file of a head says about it; ``key`` is the name that the file was written with."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    key: str
    method: str
    options: dict[str, Any]
    lr: float
    seed: int
    epoch: int
    score: float | None
    seconds: float
    failed: str | None
    history: list[dict[str, Any]]


@dataclass(frozen=True, eq=False)
class StoredHead:
    """A trained head; its weights are read from the file when needed.

    Attributes:
        path: the file.
        shape: number of classes and of features.
        epoch: the selected epoch.
        score: of that epoch under the rule; None under "last".
        seconds: its share of the time of its group.
        failed: why training failed; None where it did not.
        scores: of val after each epoch; empty under "last".
    """

    path: Path
    shape: Shape
    epoch: int
    score: float | None
    seconds: float
    failed: str | None = None
    scores: tuple[float, ...] = ()

    def weights(self) -> tuple[Tensor, Tensor]:
        """Read the weights ``(K, D)`` and the biases ``(K,)``."""
        return _read(self.path, self.shape)[:2]


def train_or_load_heads(
    tasks: Sequence[HeadTask], setup: HeadTrainingSetup, folder: Path, reporter: Reporter
) -> list[StoredHead]:
    """Train the heads that are not stored in the folder, or damaged there, and return all of them.

    Heads with the same batch size and optimizer are trained together, as many as fit into memory. Each group is stored
    when it is done, so Ctrl-C loses one group at most; the manifest of a finished comparison stays true meanwhile.
    """
    make_folder(folder / HEADS_FOLDER)
    remove_partials(folder / HEADS_FOLDER)
    digests: dict[int, str] = {}
    paths = [head_path(folder, task, setup, digests) for task in tasks]
    width = setup.features["train"].shape[1]
    heads: dict[Path, StoredHead] = {}
    for path, task in zip(paths, tasks, strict=True):
        if path not in heads and path.exists():
            try:
                heads[path] = _load(path, (len(task.plan.labels.classes), width))
            except RunError as error:
                reporter.log(f"note: {error} It is trained again.")
    missing = {path: task for path, task in zip(paths, tasks, strict=True) if path not in heads}
    names, steps = [f"{HEADS_FOLDER}/{path.name}" for path in missing], [task.steps for task in missing.values()]
    with replacing(folder, names), reporter.bar("training", sum(steps)):
        for group in group_tasks(missing, setup):
            heads |= _train(group, setup, reporter)
    return [heads[path] for path in paths]


def group_tasks(tasks: Mapping[T, HeadTask], setup: HeadTrainingSetup) -> Iterator[dict[T, HeadTask]]:
    """Yield groups of heads that are trained together: those with the same settings that fit into memory.

    Under "newton" a method is trained on its own, until it has converged.
    """
    groups: dict[tuple[Any, ...], list[T]] = {}
    for key, task in tasks.items():
        groups.setdefault((*task[1:], task.plan.method if task.optimizer == "newton" else ""), []).append(key)
    for _, keys in sorted(groups.items(), key=lambda group: group[0]):
        size = _group_size(setup, tasks[keys[0]].plan.labels)
        for first in range(0, len(keys), size):
            yield {key: tasks[key] for key in keys[first : first + size]}


def _group_size(setup: HeadTrainingSetup, labels: LabelTable) -> int:
    """Return how many heads fit into memory: weights, gradients, best weights, Adam's two, and per-image state."""
    images, classes = labels.shape
    head = 5 * 4 * classes * (setup.features["train"].shape[1] + 1) + 16 * images * classes
    free = torch.cuda.mem_get_info(setup.device)[0] if setup.device.type == "cuda" else available_memory()
    return _MAX_GROUP if free is None else int(min(max(_MEMORY_SHARE * free // head, 1), _MAX_GROUP))


def _train(tasks: Mapping[Path, HeadTask], setup: HeadTrainingSetup, reporter: Reporter) -> dict[Path, StoredHead]:
    first, count = next(iter(tasks.values())), len(tasks)
    selection, val = setup.selection, setup.features.get("val")
    selected = val is not None and selection.labels is not None and not first.last
    started, before = time.perf_counter(), reporter.done
    results = train_heads(
        setup.features["train"],
        [task.plan for task in tasks.values()],
        epochs=first.epochs,
        batch_size=first.batch_size,
        order_seed=first.order_seed,
        val_features=val if selected else None,
        val_labels=selection.labels if selected else None,
        select=selection.rule if selected else "last",
        device=setup.device,
        optimizer=first.optimizer,
        basis=setup.basis(first.optimizer, standardize=first.standardize),
        progress=lambda done, _: reporter.move_to(before + done * first.steps * count // first.epochs),
    )
    reporter.move_to(before + first.steps * count)
    if first.last and val is not None:
        scores = val.cpu().numpy()
        for result in results:
            measured = selection.score(scores @ result.weight.T + result.bias) if result.failed is None else None
            result.best_score = None if measured is None else measured.value
    seconds = (time.perf_counter() - started) / count
    return {path: _write(path, result, seconds) for path, result in zip(tasks, results, strict=True)}


def head_path(folder: Path, task: HeadTask, setup: HeadTrainingSetup, digests: dict[int, str]) -> Path:
    """Return the file of a head, named by what determines its weights."""
    plan = task.plan
    for table in (plan.labels, setup.selection.labels):
        digests.setdefault(id(table), table_digest(table))
    parts = {
        "version": _VERSION,
        "features": setup.fingerprint,
        "labels": digests[id(plan.labels)],
        "method": plan.method,
        "options": dict(sorted(plan.options.items())),
        "lr": plan.lr,
        "batch_size": task.batch_size,
        "epochs": task.epochs,
        "seed": plan.seed,
        "order": task.order_seed,
        "rule": setup.selection.rule,
        "val": digests[id(setup.selection.labels)],
    }
    later = {"weight_decay": plan.weight_decay, "optimizer": task.optimizer, "standardize": task.standardize}
    later |= {"last": task.last}
    parts |= {name: value for name, value in later.items() if value not in (0.0, "adam", False)}
    key = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:20]
    return folder / HEADS_FOLDER / f"{plan.method.replace(':', '.')}-{key}.safetensors"


def _write(path: Path, result: HeadResult, seconds: float) -> StoredHead:
    plan = result.plan
    metadata = _HeadMetadata(
        key=path.stem,
        method=plan.method,
        options=dict(plan.options),
        lr=plan.lr,
        seed=plan.seed,
        epoch=result.best_epoch,
        score=result.best_score,
        seconds=seconds,
        failed=result.failed,
        history=list(result.history),
    )
    arrays = {"weight": result.weight, "bias": result.bias}
    tensors = {
        name: torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32)) for name, values in arrays.items()
    }
    write_tensors(path, tensors, {_METADATA_KEY: json.dumps(metadata.model_dump())})
    return _stored_head(path, tensors["weight"].shape, metadata)


def _load(path: Path, shape: Shape) -> StoredHead:
    return _stored_head(path, shape, _read(path, shape)[2])


def _stored_head(path: Path, shape: Sequence[int], metadata: _HeadMetadata) -> StoredHead:
    (classes, width), scores = shape, [record.get("score") for record in metadata.history]
    about = (metadata.epoch, metadata.score, metadata.seconds, metadata.failed)
    return StoredHead(path, (classes, width), *about, tuple(score for score in scores if score is not None))


def damaged_heads(folder: Path) -> list[str]:
    """Return the files of heads in the folder of a comparison that are damaged or missing, relative to it."""
    damaged = set[str]()
    if (folder / MANIFEST_FILE).exists():
        damaged |= {each.name for each in verify_folder(folder) if each.state == "missing"}
    for path in (folder / HEADS_FOLDER).glob("*.safetensors"):
        try:
            check_head(path)
        except RunError:
            damaged.add(f"{HEADS_FOLDER}/{path.name}")
    return sorted(name for name in damaged if name.startswith(f"{HEADS_FOLDER}/"))


def check_head(path: Path) -> None:
    """Read a stored head; ``RunError`` where it is damaged or another's."""
    _read(path, None)


def _read(path: Path, shape: Shape | None) -> tuple[Tensor, Tensor, _HeadMetadata]:
    """Read the weights, the biases and the metadata of a head; any shape where it is None."""
    tensors, stored = read_tensors(path)
    with reading(path):
        metadata = validate(parse_json(stored[_METADATA_KEY]), _HeadMetadata, path)
        weight, bias = tensors["weight"], tensors["bias"]
    if metadata.key != path.stem or weight.shape != (shape or weight.shape) or bias.shape != weight.shape[:1]:
        raise damaged(path, "it is another head")
    if {weight.dtype, bias.dtype} != {torch.float32}:
        raise damaged(path, "its weights are not of type float32")
    return weight, bias, metadata
