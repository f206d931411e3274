"""The heads of a comparison: trained in groups on shared features, each stored under a hash of what determines it.

A comparison that was stopped, or gets one more method or seed, trains only the heads that are missing or damaged.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from labelgap.core.errors import InputError, RunError
from labelgap.core.files import file_digest, make_folder, remove_partials
from labelgap.core.manifest import MANIFEST_FILE, replacing, verify_folder
from labelgap.core.stored import damaged, parse_json, reading, validate
from labelgap.core.tensors import read_tensors, write_tensors
from labelgap.data.dataset import Dataset
from labelgap.labels import LabelTable
from labelgap.losses.base.state import free_memory
from labelgap.models import Backbone, check_backbone, create_backbone, is_pretrained
from labelgap.models.inference import inference_precision
from labelgap.studies.compare.results import HEADS_FOLDER
from labelgap.training.features import split_features
from labelgap.training.heads import HeadPlan, HeadResult, LinearEngine, train_heads
from labelgap.training.heads.engine import NEWTON_STEPS
from labelgap.training.heads.solver import FeatureBasis
from labelgap.training.heads.train import few_threads
from labelgap.training.network import check_feature_data
from labelgap.training.progress import Reporter
from labelgap.training.selection import Selection

T = TypeVar("T")

_VERSION: Final = 2  # raised when the same plan gives other weights than before, or another file
_MEMORY_SHARE: Final = 0.25
_MAX_GROUP: Final = 128
_METADATA_KEY: Final = "labelgap"
_MEASURED_IMAGES: Final = 500  # images of a measured step of "newton"
_CONVERGED: Final = 0.4  # the share of its epochs after which most heads of "newton" have converged


class HeadTask(NamedTuple):
    """A head to train, and what the heads that are trained with it share."""

    plan: HeadPlan
    epochs: int
    batch_size: int
    optimizer: str = "adam"
    standardize: bool = False
    order_seed: int = 0  # of the order of the batches
    last: bool = False  # whether its last epoch is kept, whatever val says: that of a convex problem is the solution

    @property
    def steps(self) -> int:
        """How often all images are seen."""
        return self.epochs * (NEWTON_STEPS if self.optimizer == "newton" else 1)


@dataclass(frozen=True)
class HeadTrainingSetup:
    """What all heads of a comparison share."""

    features: Mapping[str, Tensor]  # name of a split → ``(N, D)``, on the device
    selection: Selection  # the rule that selects epochs and settings
    device: torch.device
    fingerprint: str  # of the images and the network behind the features
    folder: Path  # of the comparison, where heads are stored
    reporter: Reporter
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
    """A trained head; its weights are read from the file when needed."""

    path: Path
    epoch: int  # the selected one
    score: float | None  # of that epoch under the rule; None under "last"
    seconds: float  # its share of the time of its group
    failed: str | None = None  # why training failed
    scores: tuple[float, ...] = ()  # of val after each epoch; empty under "last"

    @classmethod
    def load(cls, path: Path, shape: tuple[int, int] | None = None) -> StoredHead:
        """Read what a file says about its head; ``RunError`` where it is damaged or another's, or of another shape."""
        about = _read(path, shape)[2]
        scores = tuple(record["score"] for record in about.history if record.get("score") is not None)
        return cls(path, about.epoch, about.score, about.seconds, about.failed, scores)

    def weights(self) -> tuple[Tensor, Tensor]:
        """Read the weights ``(K, D)`` and the biases ``(K,)``."""
        return _read(self.path)[:2]


def compute_split_features(
    data: Dataset,
    backbone: str,
    weights: str | None,
    device: torch.device,
    workers: int,
    reporter: Reporter,
    *,
    size: int | None = None,
) -> tuple[dict[str, Tensor], str]:
    """Return the ``(N, D)`` float32 features of all splits, and the fingerprint of images, network and precision."""
    check_feature_data(data, backbone, "linear")
    precision = inference_precision(backbone, device)
    differences = [str(size)] * (size is not None) + [precision] * (precision != "float32")
    digest = hashlib.blake2b(" ".join([backbone, str(weights), *differences]).encode(), digest_size=12)
    if weights is not None and Path(weights).is_file():
        digest.update(file_digest(Path(weights)))
    for split in data.splits[:2]:
        digest.update(split.images.fingerprint().encode())

    def backbone_of_images() -> Backbone:
        check_backbone(backbone)
        if not is_pretrained(backbone, weights):
            raise InputError(
                f"the backbone '{backbone}' has no pretrained weights, so its features carry no information: choose a "
                "pretrained one (`labelgap backbones`), or give its --weights."
            )
        return create_backbone(backbone, weights=weights, size=size)

    names = [split.name for split in data.splits]
    arrays = split_features(data, names, backbone_of_images, device, workers, reporter)
    tensors = {name: torch.from_numpy(np.array(values, dtype=np.float32)) for name, values in arrays.items()}
    return {name: values.to(device) for name, values in tensors.items()}, digest.hexdigest()


def train_or_load_heads(tasks: Sequence[HeadTask], setup: HeadTrainingSetup) -> list[StoredHead]:
    """Train the heads that are not stored in the folder, or damaged there, in groups, and return all of them."""
    reporter = setup.reporter
    make_folder(setup.folder / HEADS_FOLDER)
    remove_partials(setup.folder / HEADS_FOLDER)
    paths = head_paths(tasks, setup)
    by_path = dict(zip(paths, tasks, strict=True))
    width, heads = setup.features["train"].shape[1], dict[Path, StoredHead]()
    for path, task in by_path.items():
        if path.exists():
            try:
                heads[path] = StoredHead.load(path, (len(task.plan.labels.classes), width))
            except RunError as error:
                reporter.log(f"note: {error} It is trained again.")
    missing = {path: task for path, task in by_path.items() if path not in heads}
    names, steps = [f"{HEADS_FOLDER}/{path.name}" for path in missing], [task.steps for task in missing.values()]
    with replacing(setup.folder, names), reporter.bar("training", sum(steps)):
        for group in _groups(missing, setup):
            heads |= _train(group, setup)
    return [heads[path] for path in paths]


def head_paths(tasks: Sequence[HeadTask], setup: HeadTrainingSetup) -> list[Path]:
    """Return the file of each head, named by what determines its weights."""
    tables = {id(table): table for table in (setup.selection.labels, *(task.plan.labels for task in tasks))}
    digests = {key: _table_digest(table) for key, table in tables.items()}
    paths = list[Path]()
    for task in tasks:
        plan = task.plan
        val, labels = digests[id(setup.selection.labels)], digests[id(plan.labels)]
        parts: dict[str, Any] = {"version": _VERSION, "features": setup.fingerprint, "labels": labels, "val": val}
        parts |= {"rule": setup.selection.rule, "order": task.order_seed, "epochs": task.epochs, "seed": plan.seed}
        parts |= {"method": plan.method, "options": dict(plan.options), "lr": plan.lr, "batch_size": task.batch_size}
        later = {"weight_decay": plan.weight_decay, "optimizer": task.optimizer}
        later |= {"standardize": task.standardize, "last": task.last}
        parts |= {name: value for name, value in later.items() if value not in (0.0, "adam", False)}
        key = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:20]
        paths.append(setup.folder / HEADS_FOLDER / f"{plan.method.replace(':', '.')}-{key}.safetensors")
    return paths


def _table_digest(table: LabelTable | None) -> str:
    digest = hashlib.blake2b(digest_size=12)
    if table is not None:
        digest.update("\n".join([*table.classes, "", *table.images]).encode())
        for array in (table.starts, table.columns, table.values):
            digest.update(array.tobytes())
    return digest.hexdigest()


def _groups(tasks: Mapping[T, HeadTask], setup: HeadTrainingSetup) -> Iterator[dict[T, HeadTask]]:
    """Yield heads that are trained together: those of equal settings that fit into memory; newton's by method."""
    groups: dict[tuple[Any, ...], list[T]] = {}
    for key, task in tasks.items():
        groups.setdefault((*task[1:], task.plan.method if task.optimizer == "newton" else ""), []).append(key)
    for _, keys in sorted(groups.items(), key=lambda group: group[0]):
        images, classes = tasks[keys[0]].plan.labels.shape
        # Weights, gradients, best weights, Adam's two, and per-image state.
        head = 5 * 4 * classes * (setup.features["train"].shape[1] + 1) + 16 * images * classes
        size = int(min(max(_MEMORY_SHARE * free_memory(setup.device) // head, 1), _MAX_GROUP))
        for first in range(0, len(keys), size):
            yield {key: tasks[key] for key in keys[first : first + size]}


def _train(tasks: Mapping[Path, HeadTask], setup: HeadTrainingSetup) -> dict[Path, StoredHead]:
    first, count, reporter = next(iter(tasks.values())), len(tasks), setup.reporter
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


def training_seconds(tasks: Sequence[HeadTask], setup: HeadTrainingSetup) -> float:
    """Return about how long heads take: a step of every group is measured, of "newton" on a part of the images."""
    features, seconds = setup.features["train"], 0.0
    for group in _groups(dict(enumerate(tasks)), setup):
        first = next(iter(group.values()))
        newton = first.optimizer == "newton"
        rows = np.arange(min(len(features), _MEASURED_IMAGES if newton else first.batch_size))
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
            for _ in range(2):  # the first is a warm-up
                started = time.perf_counter()
                engine.train_batch(torch.from_numpy(rows).to(setup.device))
                if setup.device.type == "cuda":
                    torch.cuda.synchronize(setup.device)
        steps = first.steps * len(features) / len(rows) * (_CONVERGED if newton else 1.0)
        seconds += (time.perf_counter() - started) * steps
    return seconds


def _write(path: Path, result: HeadResult, seconds: float) -> StoredHead:
    plan = result.plan
    about = {"key": path.stem, "method": plan.method, "options": dict(plan.options), "lr": plan.lr, "seed": plan.seed}
    ended = {"epoch": result.best_epoch, "score": result.best_score, "seconds": seconds, "failed": result.failed}
    metadata = json.dumps({**about, **ended, "history": list(result.history)})
    arrays = {"weight": result.weight, "bias": result.bias}
    tensors = {name: torch.from_numpy(np.array(values, dtype=np.float32)) for name, values in arrays.items()}
    write_tensors(path, tensors, {_METADATA_KEY: metadata})
    scores = tuple(record["score"] for record in result.history if record["score"] is not None)
    return StoredHead(path, result.best_epoch, result.best_score, seconds, result.failed, scores)


def damaged_heads(folder: Path) -> list[str]:
    """Return the files of heads in the folder of a comparison that are damaged or missing, relative to it."""
    listed = verify_folder(folder).items() if (folder / MANIFEST_FILE).exists() else ()
    names = {name for name, state in listed if state == "missing" and name.startswith(f"{HEADS_FOLDER}/")}
    for path in (folder / HEADS_FOLDER).glob("*.safetensors"):
        try:
            StoredHead.load(path)
        except RunError:
            names.add(f"{HEADS_FOLDER}/{path.name}")
    return sorted(names)


def _read(path: Path, shape: tuple[int, int] | None = None) -> tuple[Tensor, Tensor, _HeadMetadata]:
    tensors, stored = read_tensors(path)
    with reading(path):
        metadata = validate(parse_json(stored[_METADATA_KEY]), _HeadMetadata, path)
        weight, bias = tensors["weight"], tensors["bias"]
    if metadata.key != path.stem or weight.shape != (shape or weight.shape) or bias.shape != weight.shape[:1]:
        raise damaged(path, "it is another head")
    if {weight.dtype, bias.dtype} != {torch.float32}:
        raise damaged(path, "its weights are not of type float32")
    return weight, bias, metadata
