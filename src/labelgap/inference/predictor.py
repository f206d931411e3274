"""``Predictor``: from a batch of images to what a run says about them; the one way to decode, resize and score them."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from copy import deepcopy
from functools import cached_property
from itertools import repeat
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelgap.core.errors import InputError
from labelgap.core.system import freed_memory_is_kept
from labelgap.data.addresses import EncodedImages
from labelgap.data.images import FeatureVectors, ImageSource
from labelgap.data.loader import ImageLoader, ReadBatch
from labelgap.data.parts import PartsDescription
from labelgap.inference.columns import PredictionColumns
from labelgap.labels import ABSENT, PRESENT, UNKNOWN
from labelgap.metrics import Thresholds
from labelgap.models import Backbone, Classifier
from labelgap.models.inference import inference_backbone, inference_network
from labelgap.models.info import Precision
from labelgap.training.devices import choose_device
from labelgap.training.features import CachedFeatures, network_key
from labelgap.training.loop.inputs import ImageInputs, bounded_batch, start_ahead
from labelgap.training.network import feature_inputs
from labelgap.training.run import Run, open_run

Rows = range | NDArray[np.int64]
Prediction = tuple[ReadBatch, NDArray[np.float32], NDArray[np.float32]]
"""A batch, its logits ``(B, K)`` and, where they are asked for, its features ``(B, D)``."""
INPUTS: Final = ("bytes", "path", "image", "feature")
"""The columns that a ``Predictor`` reads: files as bytes, addresses, arrays; features of a run on features."""
DOWNLOADS: Final = 16  # images that are read at once where they are addresses
_CODES: Final = np.array([ABSENT, PRESENT, UNKNOWN], dtype=np.int8)
"""The code of each of ``LABELS``: what is unsure is unknown."""


class Predictor:
    """Scores images with a finished run: ``predictor({"path": [...]})``.

    It holds the network and not the folder, so that a pickled one works on machines that do not have the run, and no
    state: what it returns depends on the batch alone.

    Args:
        run: a run, or its folder; or a backbone, of which there are only features.
        device: "auto", "cpu", "cuda", "mps"; "auto" is chosen on the machine that predicts.
        batch_size: images at a time; fewer where they are large.
        features: whether to return features too.

    A dictionary of columns in, see ``INPUTS``; one of arrays out: ``logit``, ``score`` and ``probability`` ``(B, K)``,
    NaN where there is none; ``label`` ``(B, K)`` of PRESENT, ABSENT, UNKNOWN (too near the threshold); ``error``
    ``(B,)``, "" where the image can be read; ``feature`` ``(B, D)`` on request.
    """

    def __init__(
        self,
        run: Run | Backbone | str | os.PathLike[str],
        *,
        device: str = "auto",
        batch_size: int = 64,
        features: bool = False,
    ) -> None:
        if batch_size < 1:
            raise InputError(f"batch_size={batch_size}: it must be at least 1.")
        self.device_name, self.features, self.transform_name = device, features, "resize"
        self.classes: tuple[str, ...] = ()
        self.thresholds, self.calibration = Thresholds(np.empty(0), ()), None
        self.precision: Precision | None = None  # the fastest of each machine
        if isinstance(run, Backbone):
            self.network = Classifier(run, 1).eval()
        else:
            opened = run if isinstance(run, Run) else open_run(run)
            config, self.thresholds, self.calibration = opened.config, opened.thresholds, opened.calibration
            self.classes, self.network, self.transform_name = config.classes, opened.model, config.transform
            self.precision = config.feature_precision
        if features and not self.network.reads_features:
            raise InputError("the logits of this run are not those of one vector for each image: it has no features.")
        backbone = self.network.backbone
        self.batch_size = bounded_batch(batch_size, backbone, self.network.average_sizes)
        inputs = ImageInputs(EncodedImages(()), backbone, torch.device("cpu"), transform=self.transform_name)
        self.transform = inputs.transform_of(None)
        self._scorer: Callable[[Tensor], Tensor] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "network": deepcopy(self.network).cpu(), "_scorer": None}

    @cached_property
    def digest(self) -> str:
        """A hash of all that decides what is returned."""
        network, head = self.network, self.network.head
        own: list[Any] = [network.average_flips, network.average_sizes, self.precision]
        if self.classes:
            options = {name: value for name, value in vars(head).items() if name[0] != "_" and name != "training"}
            own += [type(head).__name__, sorted(options.items()), self.columns.to_json()]
        found = hashlib.sha256(f"{network_key(network.backbone, repr(self.transform))} {own}".encode())
        for value in head.state_dict().values() if self.classes else ():
            found.update(value.detach().cpu().numpy().tobytes())
        return found.hexdigest()[:32]

    def parts_description(self, source: str, shards: int) -> PartsDescription:
        """Return what identifies the parts of a source, which a digest names."""
        about: dict[str, Any] = {"predictor": self.digest, "classes": self.classes, "features": self.features}
        return PartsDescription(source=source, shards=shards, **about)

    @property
    def columns(self) -> PredictionColumns:
        """What the labels rest on."""
        return PredictionColumns(self.classes, self.thresholds, self.calibration)

    @property
    def device(self) -> torch.device:
        """The device, on this machine."""
        return choose_device(self.device_name)

    def check(self, images: ImageSource) -> None:
        """Raise an error where images or features are not what the network takes."""
        feature_inputs(images.select([]), self.network, torch.device("cpu"))

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        """Return what the run says about the images in one of the columns ``INPUTS``."""
        name = next((name for name in INPUTS if name in batch), None)
        if name is None:
            raise InputError(f"a batch has one of the columns {', '.join(INPUTS)}; this one has {', '.join(batch)}.")
        names = batch["image"] if name == "bytes" and "image" in batch else None
        errors = np.full(len(batch[name]), "", dtype=object)
        if name == "feature":
            vectors = np.stack(batch[name])
            errors[invalid := ~np.isfinite(vectors).all(axis=1)] = "the features are not finite numbers."
            images: ImageSource = FeatureVectors(np.where(invalid[:, None], 0, vectors))
        else:
            images = EncodedImages(batch[name], names, quiet=False)
        self.check(images)
        width = self.network.backbone.num_features if self.features else 0
        logits = np.empty((len(images), len(self.classes)), dtype=np.float32)
        found = np.empty((len(images), width), dtype=np.float32)
        threads = max(torch.get_num_threads(), DOWNLOADS if name == "path" else 1)
        with warnings.catch_warnings(action="ignore"):  # of broken metadata: here, as threads share the filters
            for read, own, vectors in self.iterate(images, range(len(images)), threads=threads):
                logits[read.rows], found[read.rows] = own, vectors
                errors[list(read.errors)] = list(map(str, read.errors.values()))
        logits[errors != ""] = np.nan
        return {**self.describe(logits), "error": errors.astype(str), **({"feature": found} if self.features else {})}

    def describe(self, logits: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
        """Return the columns of logits ``(B, K)``; NaN is an image that cannot be read."""
        if not self.classes:
            return {}
        found = self.columns.describe(logits)
        return {**found, "label": _CODES[found["label"]]}

    def iterate(self, images: ImageSource, rows: Rows, workers: int = 0, threads: int = 0) -> Iterator[Prediction]:
        """Yield batches of rows in order, with logits and features if asked for; images are decoded ahead."""
        if isinstance(images, FeatureVectors):
            parts = torch.split(torch.as_tensor(np.asarray(rows)), self.batch_size)
            vectors = (torch.from_numpy(images.vectors[part.numpy()].astype(np.float32)) for part in parts)
            yield from ((batch, *self._compute(batch)) for batch in map(ReadBatch, parts, vectors, repeat({})))
            return
        how: dict[str, Any] = {"channels": self.network.backbone.input_spec.channels, "batch_size": self.batch_size}
        loader = ImageLoader(images, rows, transform=self.transform, workers=workers, **how)
        memory = freed_memory_is_kept() if self.device.type == "cpu" else nullcontext()
        if not threads:
            with memory:
                yield from ((batch, *self._compute(batch)) for batch in loader.batches())
            return
        with memory, ThreadPoolExecutor(threads) as pool, ThreadPoolExecutor(1) as ahead:
            for reading in start_ahead(range(len(loader)), lambda number: ahead.submit(loader.read, number, pool), 1):
                yield (batch := reading.result()), *self._compute(batch)

    def _compute(self, batch: ReadBatch) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the logits ``(B, K)``, and where they are asked for the features ``(B, D)``; NaN where unreadable."""
        device, network = self.device, self.network
        if self._scorer is None:
            self._scorer = inference_network(network.to(device), device, self.precision)
        with torch.inference_mode():
            values = batch.values.to(device)
            inputs = network.normalize(values) if values.dtype == torch.uint8 else values
            if self.features:
                read = inference_backbone(network.backbone, device, self.precision).features
                views = [inputs, inputs.flip(-1)] if network.average_flips else [inputs]
                vectors = torch.stack([read(view).float() for view in views]).mean(0)
                logits = network.head(vectors) if self.classes else vectors[:, :0]
            else:
                logits, vectors = self._scorer(inputs), torch.empty(len(inputs), 0)
        result: list[NDArray[np.float32]] = [each.float().cpu().numpy().copy() for each in (logits, vectors)]
        for each in result:
            if not np.isfinite(each).all():
                raise InputError("the run gives scores that are not finite: its training has diverged.")
            each[np.isin(batch.rows, list(batch.errors))] = np.nan
        return result[0], result[1]

    def read_cached(self, images: ImageSource) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
        """Return which images have cached features, and the ``(N, K)`` logits of these; nothing is cached here."""
        network, found = self.network.to(self.device), np.zeros(len(images), dtype=bool)
        logits = np.zeros((len(images), len(self.classes)), dtype=np.float32)
        if network.reads_features and not isinstance(images, FeatureVectors):
            found, features = self._cache.read(images)
            with torch.inference_mode():
                logits[found] = network.head(torch.from_numpy(features[found]).to(self.device)).float().cpu().numpy()
        return found, logits

    @cached_property
    def _cache(self) -> CachedFeatures:
        how: dict[str, Any] = {"average_flips": self.network.average_flips, "precision": self.precision}
        return CachedFeatures(self.network.backbone, self.device, self.transform_name, **how)
