"""``Predictor``: from a batch of images to what a run says about them; and the batches of any source of images.

Whoever predicts asks it: ``labelgap predict``, Ray, Spark, a program of one's own. So there is one way to decode an
image, to resize it and to score it. An image that cannot be read is reported, not raised.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit
from torch import Tensor

from labelgap.core.errors import InputError, LabelGapError
from labelgap.data.addresses import EncodedImages
from labelgap.data.feature_vectors import FeatureVectors
from labelgap.data.images import ImageSource
from labelgap.data.loader import ImageLoader, read_batches
from labelgap.data.transforms import Transform
from labelgap.inference.columns import PredictionColumns, labels_from_scores
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
INPUTS: Final = ("bytes", "path", "image", "feature")
"""The columns that a ``Predictor`` reads: files as bytes, addresses, arrays; features of a run on features."""
DOWNLOADS: Final = 16
"""Images that are read at once where they are addresses."""
_CODES: Final = np.array([ABSENT, PRESENT, UNKNOWN], dtype=np.int8)
"""The code of each of ``LABELS``: what is unsure is unknown."""


@dataclass(frozen=True)
class ReadBatch:
    """Some rows of a source."""

    rows: NDArray[np.int64]  # (B,)
    values: Tensor  # (B, C, size, size) uint8, or (B, D) features; zeros for unreadable images
    errors: dict[int, str] = field(default_factory=dict)  # row → why the image cannot be read


@dataclass(frozen=True)
class ImageReader:
    """Decodes and resizes rows of a source, in whichever process."""

    transform: Transform
    channels: int

    def read(self, images: ImageSource, rows: NDArray[np.int64], pool: ThreadPoolExecutor | None = None) -> ReadBatch:
        """Return some rows; a pool of threads reads each image for itself."""
        if isinstance(images, FeatureVectors):
            return ReadBatch(rows, torch.from_numpy(images.vectors[rows].astype(np.float32)))
        if pool is None:
            with suppress(LabelGapError):
                return ReadBatch(rows, self._decode(images, rows))
        values = torch.zeros(len(rows), self.channels, self.transform.size, self.transform.size, dtype=torch.uint8)
        errors: dict[int, str] = {}

        def read(position: int) -> None:
            try:
                values[position] = self._decode(images, rows[position : position + 1])[0]
            except LabelGapError as error:
                errors[int(rows[position])] = str(error)

        for _ in map(read, range(len(rows))) if pool is None else pool.map(read, range(len(rows))):
            pass
        return ReadBatch(rows, values, dict(sorted(errors.items())))

    def read_part(self, images: ImageSource, parts: Sequence[Rows], number: int) -> ReadBatch:
        """Return some of many rows."""
        return self.read(images, np.array(parts[number], dtype=np.int64))

    def _decode(self, images: ImageSource, rows: NDArray[np.int64]) -> Tensor:
        settings: dict[str, Any] = {"transform": self.transform, "channels": self.channels}
        return next(iter(ImageLoader(images, rows, batch_size=max(len(rows), 1), **settings)))[1]


class Predictor:
    """Scores images with a finished run: ``predictor({"path": [...]})``.

    It holds the network and not the folder, so that a pickled one works on machines that do not have the run, and no
    state: what it returns depends on the batch alone.

    Args:
        run: a run, or its folder.
        device: "auto", "cpu", "cuda", "mps"; "auto" is chosen on the machine that predicts.
        batch_size: images at a time; fewer where they are large.
        features: whether to return features too.

    A dictionary of columns in, see ``INPUTS``; one of arrays out: ``logit``, ``score`` and ``probability`` ``(B, K)``,
    NaN where there is none; ``label`` ``(B, K)`` of PRESENT, ABSENT, UNKNOWN (too near the threshold); ``error``
    ``(B,)``, "" where the image can be read; ``feature`` ``(B, D)`` on request.
    """

    def __init__(
        self, run: Run | str | os.PathLike[str], *, device: str = "auto", batch_size: int = 64, features: bool = False
    ) -> None:
        opened = run if isinstance(run, Run) else open_run(run)
        self.classes, self.thresholds, self.calibration = opened.config.classes, opened.thresholds, opened.calibration
        self.network = opened.model
        self.precision: Precision | None = opened.config.feature_precision
        self._prepare(opened.config.transform, device, batch_size, features)

    @classmethod
    def of_backbone(
        cls, backbone: Backbone, transform: str = "resize", *, device: str = "auto", batch_size: int = 64
    ) -> Predictor:
        """Return one that computes the features of a backbone alone, in the fastest precision of each machine."""
        made = cls.__new__(cls)
        made.classes, made.network, made.precision = (), Classifier(backbone, 1).eval(), None
        made.thresholds, made.calibration = Thresholds(np.empty(0), ()), None
        made._prepare(transform, device, batch_size, True)
        return made

    def _prepare(self, transform: str, device: str, batch_size: int, features: bool) -> None:
        if batch_size < 1:
            raise InputError(f"batch_size={batch_size}: it must be at least 1.")
        if features and not self.network.reads_features:
            raise InputError("the logits of this run are not those of one vector for each image: it has no features.")
        self.device_name, self.features = device, features
        self.batch_size = bounded_batch(batch_size, self.network.backbone, self.network.average_sizes)
        spec, nothing = self.network.backbone.input_spec, EncodedImages(())
        inputs = ImageInputs(nothing, self.network.backbone, torch.device("cpu"), transform=transform)
        self.reader = ImageReader(inputs.transform_of(None), spec.channels)
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
        found = hashlib.sha256(f"{network_key(network.backbone, repr(self.reader.transform))} {own}".encode())
        for value in head.state_dict().values() if self.classes else ():
            found.update(value.detach().cpu().numpy().tobytes())
        return found.hexdigest()[:32]

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
        batches = np.split(np.arange(len(images)), range(self.batch_size, len(images), self.batch_size))
        with (
            warnings.catch_warnings(action="ignore"),  # of broken metadata: here, as threads share the filters
            ThreadPoolExecutor(max(torch.get_num_threads(), DOWNLOADS if name == "path" else 1)) as pool,
            ThreadPoolExecutor(1) as ahead,  # reads a batch while the one before it is computed
        ):
            for reading in start_ahead(batches, lambda rows: ahead.submit(self.reader.read, images, rows, pool), 1):
                read = reading.result()
                logits[read.rows], found[read.rows] = self.compute(read)
                errors[list(read.errors)] = list(read.errors.values())
        logits[errors != ""] = np.nan
        return {**self.describe(logits), "error": errors.astype(str), **({"feature": found} if self.features else {})}

    def describe(self, logits: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
        """Return the columns of logits ``(B, K)``; NaN is an image that cannot be read."""
        if not self.classes:
            return {}
        scores: NDArray[np.float32] = expit(logits)
        probability = np.full_like(scores, np.nan)
        if self.calibration is not None:
            calibrated = np.flatnonzero(self.calibration.classes)
            probability[:, calibrated] = self.calibration.probabilities(logits)[:, calibrated]
        labels = _CODES[labels_from_scores(np.nan_to_num(scores), self.thresholds, self.calibration)]
        labels[np.isnan(scores)] = UNKNOWN
        return {"logit": logits, "score": scores, "probability": probability, "label": labels}

    def compute(self, batch: ReadBatch) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
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

    def iterate(
        self, images: ImageSource, rows: Rows, workers: int = 0
    ) -> Iterator[tuple[ReadBatch, NDArray[np.float32]]]:
        """Yield batches of rows of a source in order with their logits; worker processes decode the images."""
        parts = [rows[start : start + self.batch_size] for start in range(0, len(rows), self.batch_size)]
        workers = 0 if isinstance(images, FeatureVectors) else workers
        for batch in read_batches(partial(self.reader.read_part, images, parts), len(parts), workers):
            yield batch, self.compute(batch)[0]


class CachedLogits:
    """Logits from features that another command has cached; nothing is stored, as images may never be seen again."""

    def __init__(self, run: Run, device: torch.device) -> None:
        self.network, self.device = run.model.to(device), device
        self._cache: CachedFeatures | None = None
        if self.network.reads_features:
            config, backbone = run.config, self.network.backbone
            options: dict[str, Any] = {"average_flips": config.average_flips, "precision": config.feature_precision}
            self._cache = CachedFeatures(backbone, device, config.transform, **options)

    def read(self, images: ImageSource) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
        """Return which images have cached features, and the ``(N, K)`` logits, 0 where they have none."""
        found = np.zeros(len(images), dtype=bool)
        logits = np.zeros((len(images), len(self.network.head.bias)), dtype=np.float32)
        if self._cache is not None and not isinstance(images, FeatureVectors):
            found, features = self._cache.read(images)
            with torch.inference_mode():
                values = torch.from_numpy(features[found]).to(self.device)
                logits[found] = self.network.head(values).float().cpu().numpy()
        return found, logits
