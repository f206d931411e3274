"""``fit``: from a data set to a finished run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labelgap.core.machine import in_words
from labelgap.core.processes import is_main
from labelgap.core.seeds import derive, seed_everything
from labelgap.data.dataset import Dataset
from labelgap.metrics import Thresholds, revision_quality, thresholds
from labelgap.models import Classifier
from labelgap.objectives import Objective
from labelgap.training.card import write_card
from labelgap.training.checkpoint import State, load_weights
from labelgap.training.config import RunConfig, write_config
from labelgap.training.devices import choose_device
from labelgap.training.evaluation import evaluate_scores, probabilities
from labelgap.training.features import compute_features
from labelgap.training.history import write_history
from labelgap.training.inputs import FeatureInputs, ImageInputs, Inputs
from labelgap.training.loop import Job, score_all, train
from labelgap.training.parallel import join, local_device, parallel, wait
from labelgap.training.progress import Reporter
from labelgap.training.run import Run, write_predictions
from labelgap.training.selection import Selection
from labelgap.training.settings import Wishes, decide, open_folder
from labelgap.training.traces import Trace
from labelgap.training.vectors import build_network, vector_inputs, vector_width

__all__ = ["Probe", "fit"]


def fit(
    data: Dataset,
    method: str = "auto",
    options: Mapping[str, Any] | None = None,
    backbone: str | None = None,
    protocol: str | None = None,
    out: str | os.PathLike[str] = "runs/latest",
    *,
    head: str = "linear",
    epochs: int | None = None,
    lr: float | None = None,
    backbone_lr: float | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    select: str = "auto",
    trace: str | int = "auto",
    device: str = "auto",
    workers: int = 0,
    resume: bool = False,
    quiet: bool = False,
) -> Run:
    """Train a classifier on a data set and write a run folder.

    Args:
        data: what to learn from.
        method: one of ``methods()``, or "auto" to have it chosen from the labels' states; said at the start.
        options: of the method.
        backbone: name of the network; the one that suits the data when not given.
        protocol: "linear" or "end-to-end"; the one that suits the data when not given.
        out: the run's folder; it must not hold a run yet, unless ``resume``.
        head: "linear", or "boostlu", which amplifies what a class activation map is sure of and needs end-to-end.
        epochs: how many; like the next three, what suits the protocol when not given.
        lr: learning rate of the head.
        backbone_lr: learning rate of the backbone.
        batch_size: images per step.
        seed: of initialisation, order and augmentation.
        select: "auto", "clean", "known", "observed" or "last": how the epoch is chosen.
        trace: "auto", "all", "off" or how many training labels to record per epoch.
        device: "auto", "cpu", "cuda", "mps".
        workers: processes that decode images.
        resume: go on where the run in ``out`` was stopped; it ends with the numbers of an unbroken run.
        quiet: say nothing.

    Returns:
        The run; finished, unless a Ctrl-C came before the first epoch was done.
    """
    wishes = Wishes(
        method, dict(options or {}), backbone, protocol, head, epochs, lr, backbone_lr, batch_size, seed, select, trace
    )
    where = local_device(choose_device(device))
    join(where)
    return _fit(data, wishes, Path(out), where, workers, resume, Reporter(quiet or not is_main()))


def _fit(
    data: Dataset, wishes: Wishes, folder: Path, device: torch.device, workers: int, resume: bool, reporter: Reporter
) -> Run:
    config, selection, objective = decide(data, wishes)
    objective.to(device).prepare(data.train.labels, epochs=config.epochs, seed=config.seed)
    open_folder(folder, config, resume)
    wait()
    if resume and (done := Run(folder)).finished and not done.metrics["interrupted"]:
        reporter.say(f"{folder} is finished already")
        return done
    reporter.say(f"{config.method}: {config.why}; {config.protocol}, {config.backbone}, {config.epochs} epochs")
    reporter.say(selection.why)
    if is_main():
        write_config(folder, config)
    seed_everything(derive(config.seed, "initialisation"))
    network = build_network(config, vector_width(data)).to(device)
    inputs = _inputs(data, network, config, device, workers, reporter)
    job = _job(folder, data, config, network, objective, inputs, selection, reporter)
    state = train(job, device)
    if state.epoch:
        _finish(job, state, data, config, inputs)
    wait()
    return Run(folder)


def _inputs(
    data: Dataset, network: Classifier, config: RunConfig, device: torch.device, workers: int, reporter: Reporter
) -> dict[str, Inputs]:
    """Return the inputs of every split: images, or for the linear protocol their features."""
    if config.protocol == "end-to-end":
        return {
            split.name: ImageInputs(split.images, network.backbone, device, config.flip, config.seed, workers)
            for split in data.splits
        }
    made: dict[str, Inputs] = {
        split.name: given
        for split in data.splits
        if (given := vector_inputs(split.images, network, device)) is not None
    }
    if made:
        return made
    if not is_main():
        wait()  # the first process computes the features, the others find them in the cache
    with reporter.bar("features", sum(len(split) for split in data.splits)):
        for split in data.splits:
            features = compute_features(
                split.images, network.backbone, device=device, workers=workers, advance=reporter.advance
            )
            made[split.name] = FeatureInputs(torch.from_numpy(features).to(device))
    if is_main():
        wait()
    return made


def _job(
    folder: Path,
    data: Dataset,
    config: RunConfig,
    network: Classifier,
    objective: Objective,
    inputs: dict[str, Inputs],
    selection: Selection,
    reporter: Reporter,
) -> Job:
    table = data.train.labels
    linear = config.protocol == "linear"
    trained: nn.Module = Probe(network.head) if linear else network
    device = next(network.parameters()).device
    if objective.state_bytes:
        reporter.say(f"{objective.name} keeps {in_words(objective.state_bytes)} for the training images")
    objective.to(device)
    groups: list[dict[str, Any]] = [{"params": list(network.head.parameters()), "lr": config.lr}]
    if not linear:
        groups.append({"params": list(network.backbone.parameters()), "lr": config.backbone_lr})
    return Job(
        folder=folder,
        network=trained,
        step=parallel(trained),
        objective=objective,
        table=table,
        truth=data.train.truth,
        inputs=inputs["train"],
        val_inputs=inputs.get("val"),
        selection=selection,
        optimiser=torch.optim.Adam([*groups, *objective.parameter_groups(config.lr)]),
        epochs=config.epochs,
        batch_size=config.batch_size,
        seed=config.seed,
        trace=Trace(table, data.train.truth, config.trace, config.seed),
        reporter=reporter,
    )


class Probe(nn.Module):
    """The head alone, over features that were computed before."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head

    def forward(self, features: Tensor, *, return_features: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """Return logits, and with ``return_features`` the features as well."""
        logits: Tensor = self.head(features)
        return (logits, features) if return_features else logits


def _finish(job: Job, state: State, data: Dataset, config: RunConfig, inputs: dict[str, Inputs]) -> None:
    """Go back to the best epoch, measure it, and write what the run came to."""
    load_weights(job.folder, job.network)
    logits = {split.name: score_all(job.network, inputs[split.name]) for split in data.splits}
    chosen = _thresholds(data, logits)
    summary: dict[str, Any] = {
        "best_epoch": state.best_epoch,
        "epochs": state.epoch,
        "interrupted": state.epoch < config.epochs,
        "seconds": sum(record["seconds"] for record in state.history),
        "select": config.select,
        "score": state.best_score,
        "thresholds": {"values": chosen.values.tolist(), "marks": list(chosen.marks)},
    }
    for split in data.splits:
        if split.name != "train" or split.truth is not None:
            summary[split.name] = evaluate_scores(logits[split.name], split.best_labels, chosen)
    if len(job.revisions) and job.truth is not None:
        summary["revisions"] = asdict(revision_quality(job.table, job.truth, job.revisions))
    if not is_main():
        return
    held_out = {split.name: (split.labels.images, logits[split.name]) for split in data.splits if split.name != "train"}
    write_predictions(job.folder, held_out, config.classes)
    write_history(job.folder, state, summary)
    write_card(Run(job.folder), data)


def _thresholds(data: Dataset, logits: dict[str, NDArray[np.float32]]) -> Thresholds:
    """Choose a threshold per class on val; without one, 0.5 for all."""
    if data.val is None:
        return Thresholds.default(len(data.classes))
    return thresholds(probabilities(logits["val"]), data.val.labels.to_dense())
