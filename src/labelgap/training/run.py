"""``Run``: a run folder as an object, and as a small HTML table for notebooks."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from copy import copy, deepcopy
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labelgap.core.errors import InputError, RunError
from labelgap.core.manifest import check_files
from labelgap.core.special import expit, logit
from labelgap.core.stored import damaged
from labelgap.core.tensors import read_tensors
from labelgap.core.text import html_facts, pluralize
from labelgap.core.trust import is_class_path, require_trust
from labelgap.data.dataset import Dataset, as_image_source
from labelgap.data.images import FEATURES, ImageSource
from labelgap.data.registry import load_stored
from labelgap.data.split import hold_out_val
from labelgap.labels import Revisions
from labelgap.metrics import Thresholds
from labelgap.metrics.label_model import PlattCalibration, read_calibration
from labelgap.models import Backbone, Classifier, as_backbone
from labelgap.models.inference import inference_network
from labelgap.models.info import NO_WEIGHTS
from labelgap.models.registry import names_address
from labelgap.training.checkpoint import has_backbone, read_weights, set_weights
from labelgap.training.config import CONFIG_FILE, INITIAL_WEIGHTS, RunConfig, read_config
from labelgap.training.devices import choose_device, choose_workers
from labelgap.training.evaluation import evaluate_in_full, match_classes
from labelgap.training.features import extract_features
from labelgap.training.history import (
    METRICS_FILE,
    describe_estimated,
    describe_kept_epoch,
    has_accuracy,
    read_history,
    trained_epochs,
    unseen_splits,
)
from labelgap.training.hub import local_folder
from labelgap.training.loop.inputs import FeatureInputs, ImageInputs, Inputs, bounded_batch, predict_logits
from labelgap.training.network import build_classifier, check_weights, feature_inputs, stored_feature_width
from labelgap.training.progress import Reporter
from labelgap.training.rerun import format_value, run_review_commands
from labelgap.training.run_files import BEST, MAX_FOREIGN_SIZE, REVISIONS_FILE, read_trace
from labelgap.training.run_folder import check_links, find_training_images, read_predictions
from labelgap.training.settings import PROTOCOLS

_MIN_SCORE: Final = 1e-6  # stored scores have a finite logit: one of 0 counts as this
_NO_ACCURACY: Final = "the known labels support no accuracy"


class Run:
    """A training and its result: returned by ``fit``, or by ``open_run`` for a folder.

    Attributes:
        path: the folder.
        config: the effective settings.
        history: one dictionary per epoch; in linear-init the first is of epoch 0, the linear head, where val is scored.
        metrics: best epoch, measures on val and test, thresholds; empty until the run is finished.
    """

    def __init__(self, path: str | os.PathLike[str], *, backbone: nn.Module | None = None) -> None:
        self.path = Path(path)
        self.config: RunConfig = read_config(self.path)
        check_links(self.path)
        check_files(self.path, [CONFIG_FILE, METRICS_FILE])
        self.history, self.metrics = read_history(self.path, self.config.classes)
        self._backbone = backbone

    @property
    def finished(self) -> bool:
        """Whether training ended, by itself or by a Ctrl-C after at least one complete epoch."""
        return bool(self.metrics)

    @property
    def thresholds(self) -> Thresholds:
        """The threshold of the scores per class, and how it was chosen."""
        stored = self._summary()["thresholds"]
        return Thresholds(np.asarray(stored["values"], dtype=np.float64), tuple(stored["marks"]))

    @property
    def calibration(self) -> PlattCalibration | None:
        """The calibration of scores to probabilities; None where the labels of val support none."""
        return read_calibration(self._summary())

    @cached_property
    def model(self) -> Classifier:
        """The network with the weights of the best epoch, in eval mode."""
        weights = read_weights(self.path)
        frozen, backbone, width = not has_backbone(weights), self._copy_backbone(), None
        if self.config.backbone == FEATURES:
            width = stored_feature_width(weights, len(self.config.classes))
            if width is None:
                raise damaged(self.path / BEST, "it has no head of the classes in config.json")
        stored = weights, self.path / BEST, ("backbone.",) if frozen else ()
        network = self._build(self.config, width, stored, pretrained=frozen, backbone=backbone)
        set_weights(network, weights, self.path / BEST, frozen=frozen)
        return network.eval()

    def initial_backbone(self) -> Backbone:
        """Return the backbone with the weights that training started from."""
        stored, backbone = self.path / INITIAL_WEIGHTS, self._copy_backbone()
        if backbone is not None or stored.exists():
            check_files(self.path, [INITIAL_WEIGHTS])
            tensors, _ = read_tensors(stored)
        if backbone is not None:
            set_weights(backbone, tensors, stored)
            return backbone
        if not stored.exists():
            return self._build(self.config).backbone
        named = {f"backbone.{name}": value for name, value in tensors.items()}
        config = self.config.model_copy(update={"weights": str(stored)})
        return self._build(config, stored=(named, stored, ("head.",))).backbone

    def _build(
        self,
        config: RunConfig,
        width: int | None = None,
        stored: tuple[Mapping[str, Tensor], Path, tuple[str, ...]] | None = None,
        *,
        pretrained: bool = True,
        backbone: Backbone | None = None,
    ) -> Classifier:
        """Build the network of a configuration, if this user made the run or trusts what it names for that."""
        try:
            if backbone is None:
                require_trust(self.path / CONFIG_FILE, self._named(config, pretrained))
                if stored is not None:
                    check_weights(config, width, *stored)
            return build_classifier(config, width, pretrained=pretrained, backbone=backbone)
        except InputError as error:
            raise RunError(f"{self.path / CONFIG_FILE}: {error}") from error

    def _named(self, config: RunConfig, pretrained: bool) -> list[str]:
        """Return the code, file, address and size of images that a network would be made from or for."""
        weights, named = config.weights if pretrained and config.weights != NO_WEIGHTS else None, list[str]()
        if is_class_path(config.backbone):
            named.append(f"the class {config.backbone}")
        elif pretrained and config.weights is None and config.backbone != FEATURES and names_address(config.backbone):
            named.append(f"weights to download, those of {config.backbone}")
        elif pretrained and config.weights == NO_WEIGHTS and names_address(config.backbone):
            named.append(f"the network {config.backbone} without its weights")
        if weights is not None and not Path(os.path.realpath(weights)).is_relative_to(self.path.resolve()):
            named.append(f"the weights {weights}")
        if config.largest_size > MAX_FOREIGN_SIZE:
            named.append(f"images of {config.largest_size:,} pixels a side, for which memory may not suffice")
        return named

    def _copy_backbone(self) -> Backbone | None:
        backbone = None if self._backbone is None else as_backbone(deepcopy(self._backbone))
        if backbone is not None and backbone.name != self.config.backbone:
            raise RunError(f"{self.path} was trained with {self.config.backbone}, not with {backbone.name}.")
        return backbone

    @cached_property
    def revisions(self) -> Revisions:
        """The labels that the method revised."""
        path = self.path / REVISIONS_FILE
        check_files(self.path, [REVISIONS_FILE])
        return Revisions.from_parquet(path) if os.path.lexists(path) else Revisions()

    @cached_property
    def trace(self) -> dict[str, NDArray[Any]]:
        """Loss, logit and modified flag of the recorded training entries per epoch; empty if none were recorded."""
        return read_trace(self.path)

    def logits(
        self,
        images: ImageSource,
        *,
        device: str = "auto",
        workers: int | None = 0,
        cached: bool = False,
        average_sizes: Sequence[int] | None = None,
        reporter: Reporter | None = None,
    ) -> NDArray[np.float32]:
        """Return the ``(N, K)`` logits of images or features; with ``cached`` features from and into the cache."""
        torch_device = choose_device(device)
        network = copy(self.model.to(torch_device))
        if average_sizes is not None:
            network.average_sizes = tuple(average_sizes)
        if not len(images):
            return np.zeros((0, len(self.config.classes)), dtype=np.float32)
        inputs: Inputs | None = feature_inputs(images, network, torch_device)
        workers, transform = choose_workers(workers, torch_device), self.config.transform
        if inputs is not None:
            return predict_logits(network, inputs, batch_size=64)
        if not cached or not network.reads_features:
            inputs = ImageInputs(images, network.backbone, torch_device, workers=workers, transform=transform)
            scorer = inference_network(network, torch_device, self.config.feature_precision)
            return predict_logits(scorer, inputs, batch_size=bounded_batch(64, network.backbone, network.average_sizes))
        (features,) = extract_features(
            [images],
            network.backbone,
            device=torch_device,
            transform=transform,
            workers=workers,
            reporter=reporter or Reporter(quiet=True),
            average_flips=self.config.average_flips,
            precision=self.config.feature_precision,
        )
        return predict_logits(network.head, FeatureInputs(torch.from_numpy(features).to(torch_device)))

    def predict(self, images: Any, *, device: str = "auto", workers: int = 0) -> NDArray[np.float32]:
        """Return the ``(N, K)`` scores of images, from 0 to 1: the sigmoid of the logits.

        Args:
            images: one image or many: paths, Pillow images, arrays ``(H, W, 3)``, tensors ``(C, H, W)`` or
                ``(N, C, H, W)`` of uint8 or of floats from 0 to 1, a split or an image source; or ``(N, D)`` features
                where the run was trained on features. See ``as_image_source``.
            device: "auto", "cpu", "cuda", "mps".
            workers: processes that decode images.

        For many images ``predict_to_file`` and ``labelgap predict`` write a file.
        """
        scores: NDArray[np.float32] = expit(self.logits(as_image_source(images), device=device, workers=workers))
        return scores

    def evaluate(
        self,
        data: Dataset,
        split: str | None = None,
        *,
        average_sizes: Sequence[int] | None = None,
        device: str = "auto",
        workers: int | None = None,
        resamples: int = 1000,
        quiet: bool = True,
    ) -> dict[str, Any]:
        """Measure the run on a split of a data set, against the truth where it is known, else the known labels.

        Images that a cross-fitted run was trained on, under whatever name, are scored by the models of the folds that
        have not seen them, as ``predictions.parquet`` has it.

        Args:
            data: its classes are matched by name. Those that it lacks are unknown, those that the run lacks are left
                out; ``classes_missing`` and ``classes_extra`` of the result name them.
            split: "train", "val", "test", or "all" of them; test by default, all where there is none.
            average_sizes: sizes of the images over which logits are averaged; by default those of the run.
            device: the same as in ``fit``, like ``workers`` and ``quiet``.
            workers: processes that decode images.
            resamples: the number of bootstrap samples of an interval; 0 for none.
            quiet: print nothing.

        Returns:
            The measures of ``evaluate_in_full``; ``trained_images``, how many were scored by a model that was trained
            on them (None where the run does not know), and ``out_of_fold_images``, by a model of another fold.
        """
        split = split or ("all" if data.test is None else "test")
        chosen = data.splits if split == "all" else (data.split(split),)
        labels, missing, extra = match_classes([each.evaluation_labels for each in chosen], self.config.classes)
        thresholds, reporter = self.thresholds, Reporter(quiet)
        options: dict[str, Any] = {"device": device, "workers": workers, "cached": True, "reporter": reporter}
        options["average_sizes"] = average_sizes
        trained = find_training_images(self.path, data, split, reporter)
        logits = np.concatenate([self.logits(each.images, **options) for each in chosen])
        names = {row: name for row, name in enumerate(trained or ()) if name is not None}
        unseen = read_predictions(self.path, "train", [*names.values()], self.config.classes) if names else None
        if unseen is not None:
            logits[list(names)] = logit(np.clip(unseen, _MIN_SCORE, 1 - _MIN_SCORE))
        groups, out_of_fold = self.metrics.get("class_groups"), 0 if unseen is None else len(unseen)
        return {
            **evaluate_in_full(logits, labels, thresholds, resamples=resamples, groups=groups),
            "classes_missing": list(missing),
            "classes_extra": list(extra),
            "trained_images": None if trained is None else len(names) - out_of_fold,
            "out_of_fold_images": out_of_fold,
            "average_sizes": list(self.config.average_sizes if average_sizes is None else average_sizes),
        }

    def load_data(self) -> Dataset:
        """Load the data set that the run was trained on again, and hide the same labels; a foreign run is trusted."""
        return self.with_val(load_stored(self.path / CONFIG_FILE, self.config.data))

    def with_val(self, data: Dataset) -> Dataset:
        """Return its data as it was trained on them: a network holds out a val where there is none."""
        return data if self.config.protocol == "linear" else hold_out_val(data)

    def count_training_images(self, data: Dataset, split: str = "test") -> int | None:
        """Return how many images of a split the run was trained on, by content; None where it does not know."""
        found = find_training_images(self.path, data, split)
        return None if found is None else sum(name is not None for name in found)

    def _summary(self) -> dict[str, Any]:
        if not self.metrics:
            raise RunError(f"{self.path} is not finished: resume it with --resume.")
        return self.metrics

    def _repr_html_(self) -> str:
        """Show the run in a notebook: only numbers that the known labels support, all text escaped."""
        config, metrics = self.config, self.metrics
        source = [format_value(config.data[key]) for key in ("name", "path") if config.data.get(key)]
        commands = run_review_commands(self.path, config) if metrics and not has_accuracy(metrics) else ()
        epochs = f"{trained_epochs(self.history)} of {config.epochs} so far, not finished"
        if metrics:
            epochs = describe_kept_epoch(metrics)
            epochs += f"; stopped before {config.epochs}" if metrics.get("interrupted") else ""
        rows = [
            ("method", config.method if config.why is None else f"{config.method}: {config.why}"),
            ("data", f"{' '.join(source) or 'made by hand'}, {pluralize(len(config.classes), 'class')}"),
            ("trained", f"{PROTOCOLS[config.protocol]}, {config.backbone}"),
            ("epochs", epochs),
            *((heading, _measured(metrics[split])) for split, heading in reversed(unseen_splits(metrics).items())),
            *(("to measure it", command) for command in commands),
            ("folder", str(self.path)),
        ]
        return html_facts("run", rows)

    def __repr__(self) -> str:
        test = self.metrics.get("test") or {}
        score = f", test mAP {100 * test['map']:.2f}" if test.get("map") is not None else ""
        epochs = f"{trained_epochs(self.history)} of {self.config.epochs} epochs"
        return f"Run({str(self.path)!r}: {self.config.method}, {epochs}{score})"


def open_run(path: str | os.PathLike[str], *, backbone: nn.Module | None = None) -> Run:
    """Open a run folder, or one of the hub, ``hf://owner/name[@revision]``; some classes need their ``backbone``."""
    return Run(local_folder(path), backbone=backbone)


def _measured(measured: Mapping[str, Any]) -> str:
    estimated = describe_estimated(measured)
    if measured["map"] is None:
        return _NO_ACCURACY if estimated is None else f"{_NO_ACCURACY}; estimated mAP {estimated}"
    counted = f"{measured['classes_counted']:,} of {measured['classes']:,} classes"
    f1 = ", ".join(
        f"F1 {average} {100 * value:.1f}"
        for average in ("micro", "macro")
        if (value := measured[f"f1_{average}"]) is not None
    )
    return f"mAP {100 * measured['map']:.1f} over {counted}; {f1}"
