"""Cross-validation of linear heads: every image is scored by a head that has not seen its labels.

Where a data set has no val, its settings are chosen so: nothing is held out, and thresholds, calibration and, where the
labels support one, an accuracy come from the out-of-fold scores of all images. The final head is trained on all of
them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from labelgap.core.errors import RunError
from labelgap.core.seeds import derive_seed, numpy_generator
from labelgap.core.stored import damaged, parse_json, reading, validate
from labelgap.core.tensors import read_tensors, write_tensors
from labelgap.labels import LabelTable
from labelgap.metrics import average_precision
from labelgap.training.checkpoints.history import finite
from labelgap.training.config.schema import Name, Options, Rate, RunConfig
from labelgap.training.heads.basis import FeatureBasis
from labelgap.training.heads.configs import HeadConfig, group_configs, train_group
from labelgap.training.selection import Selection, choose_selection

__all__ = ["CROSS_VALIDATION_FILE", "CrossValidation", "cross_validate", "out_of_fold_logits", "selection_score"]

CROSS_VALIDATION_FILE: Final = "cross_validation.safetensors"
CHOSEN: Final = ("method", "options", "weight_decay", "lr", "backbone_lr")
"""The settings that cross-validation chooses."""
MAX_SEARCH_IMAGES: Final = 2000
"""Settings are compared on so many images at most; the penalty that is best hardly depends on their number."""
_REMEDY: Final = "Train into a new folder."


class _StoredSettings(BaseModel):
    """The settings that cross-validation chooses, as a file has them."""

    model_config = ConfigDict(extra="forbid")

    method: Name
    options: Options
    lr: Rate
    backbone_lr: Rate
    weight_decay: float = Field(ge=0, allow_inf_nan=False)


class _StoredCandidate(_StoredSettings):
    score: float | None = Field(ge=0, le=1)


class _StoredComparison(BaseModel):
    settings: _StoredSettings
    compared: list[_StoredCandidate] = Field(min_length=1)


@dataclass(frozen=True, eq=False)
class CrossValidation:
    """The out-of-fold scores of all training images.

    Attributes:
        settings: those of the candidate with the highest score that were chosen by it.
        compared: a line for each candidate: its method, weight decay, learning rate and score (None where nothing can
            be ranked).
        logits: ``(N, K)`` out-of-fold logits of the chosen candidate.
        fold: ``(N,)`` the fold of every image.
    """

    settings: Mapping[str, Any]
    compared: Sequence[Mapping[str, Any]]
    logits: NDArray[np.float32]
    fold: NDArray[np.int64]

    @property
    def reason(self) -> str | None:
        """What was chosen among how many settings, and by which scores; None where nothing was open."""
        if len(self.compared) == 1:
            return None
        best: dict[str, float] = {}
        for line in self.compared:
            if line["score"] is not None:
                best[line["method"]] = max(best.get(line["method"], 0.0), line["score"])
        scores = ", ".join(f"{method} {100 * score:.1f}" for method, score in best.items())
        best_of = f"it was the best of {len(self.compared)} settings by cross-validation on the known labels"
        return f"with weight decay {self.settings['weight_decay']:.3g} {best_of} ({scores})"

    def save(self, folder: Path, fingerprint: str) -> None:
        """Write it to the folder of a run."""
        tensors = {"logits": torch.from_numpy(self.logits), "fold": torch.from_numpy(self.fold)}
        about = {"settings": dict(self.settings), "compared": [dict(each) for each in self.compared]}
        metadata = {"fingerprint": fingerprint, **{name: json.dumps(value) for name, value in about.items()}}
        write_tensors(folder / CROSS_VALIDATION_FILE, tensors, metadata)

    @classmethod
    def load(
        cls, folder: Path, fingerprint: str, labels: LabelTable, methods: Collection[str]
    ) -> CrossValidation | None:
        """Read that of some labels and methods; None where there is none, or one of other settings.

        The folder may be somebody else's: a method can name code, so only one of ``methods`` is taken from it.
        """
        path = folder / CROSS_VALIDATION_FILE
        if not path.exists():
            return None
        tensors, metadata = read_tensors(path, remedy=_REMEDY)
        if metadata.get("fingerprint") != fingerprint:
            return None
        with reading(path, _REMEDY):
            about = {name: parse_json(metadata[name].encode()) for name in ("settings", "compared")}
            logits, fold = tensors["logits"].numpy(), tensors["fold"].numpy()
        stored = validate(about, _StoredComparison, path, _REMEDY)
        shapes = (len(labels), len(labels.classes)), (len(labels),)
        if stored.settings.method not in methods or (logits.shape, fold.shape) != shapes:
            raise damaged(path, "it is of other images, classes or methods", _REMEDY)
        lines = [each.model_dump() for each in (stored.settings, *stored.compared)]
        return cls(lines[0], lines[1:], logits, fold)


def cross_validate(
    features: Tensor,
    labels: LabelTable,
    candidates: Sequence[RunConfig],
    fold: NDArray[np.int64],
    *,
    device: torch.device,
    advance: Callable[[int], None] = lambda count: None,
) -> CrossValidation:
    """Score candidates out of fold, and return the scores of the best one on all images.

    Args:
        features: ``(N, D)`` of the training images.
        labels: their observed labels.
        candidates: the settings to compare; of equal scores the first one is chosen.
        fold: ``(N,)`` of every image.
        device: where to train.
        advance: called with the number of trained folds.
    """
    rows = np.arange(len(labels))
    if len(rows) > MAX_SEARCH_IMAGES and len(candidates) > 1:
        random = numpy_generator(candidates[0].seed, "cross-validation")
        rows = np.sort(random.permutation(len(rows))[:MAX_SEARCH_IMAGES])
    searched = labels.select(rows)
    found = out_of_fold_logits(
        _rows(features, rows), searched, candidates, fold[rows], device, advance, images=len(labels)
    )
    selection = choose_selection(searched, None)
    scores = np.array([selection_score(selection, logits) for logits in found])
    usable = [number for number, logits in enumerate(found) if np.isfinite(logits).all()]
    if not usable:
        raise RunError("training has diverged in every fold: give a lower --lr, or a higher --weight-decay.")
    chosen = usable[0] if np.isnan(scores).all() else int(np.nanargmax(scores))
    logits = found[chosen]
    if len(rows) < len(labels):
        (logits,) = out_of_fold_logits(features, labels, [candidates[chosen]], fold, device, advance)
    lines = [config.model_dump(include=set(CHOSEN)) for config in candidates]
    compared = [{**line, "score": finite(float(score))} for line, score in zip(lines, scores, strict=True)]
    return CrossValidation(lines[chosen], compared, logits, fold)


def selection_score(selection: Selection, logits: NDArray[np.float32]) -> float:
    """Return the average precision by a selection rule, each class weighted by its known presents.

    With few images the average precision of a rare class is mostly chance; the weights keep it from deciding.
    """
    if selection.labels is None or not np.isfinite(logits).all():
        return float("nan")
    unknown: Literal["absent", "ignore"] = "absent" if selection.rule == "observed" else "ignore"
    values = average_precision(logits, selection.labels.to_dense(), average=None, unknown=unknown)
    counted = np.isfinite(values)
    weights = selection.labels.counts().present[counted]
    return float(np.average(values[counted], weights=weights)) if weights.sum() else float("nan")


def out_of_fold_logits(
    features: Tensor,
    labels: LabelTable,
    candidates: Sequence[RunConfig],
    fold: NDArray[np.int64],
    device: torch.device,
    advance: Callable[[int], None] = lambda count: None,
    *,
    images: int | None = None,
) -> list[NDArray[np.float32]]:
    """Return the ``(N, K)`` out-of-fold logits of every candidate; NaN where its loss was not finite.

    The penalty of the weights is the same for a fold as for all images: with fewer images the weight decay, which is
    relative to the mean loss, is higher. All are N, or ``images`` where these are a part of more. Standardization uses
    the features of all N images, and no labels.
    """
    heads = [HeadConfig.from_run(config, images or len(labels)) for config in candidates]
    found = [np.full((len(labels), len(labels.classes)), np.nan, dtype=np.float32) for _ in candidates]
    for members in group_configs(heads):
        group = [heads[member] for member in members]
        basis = _fit_basis(features, candidates[members[0]])
        for number in range(int(fold.max()) + 1):
            seen, held_out = (np.flatnonzero(rows) for rows in (fold != number, fold == number))
            part, order_seed = {"train": _rows(features, seen)}, derive_seed(candidates[0].seed, "fold", number)
            results = train_group(part, labels.select(seen), group, order_seed=order_seed, device=device, basis=basis)
            vectors = _rows(features, held_out).float().cpu().numpy()
            for member, result in zip(members, results, strict=True):
                if result.failed is None:
                    found[member][held_out] = vectors @ result.weight.T + result.bias
            advance(1)
    return found


def _fit_basis(features: Tensor, config: RunConfig) -> FeatureBasis | None:
    """Return the basis of all features, where the engine would otherwise fit one on those of a fold."""
    newton = config.optimizer == "newton"
    if not newton and not config.standardize:
        return None
    return FeatureBasis.fit(features, standardize=config.standardize, rotate=newton)


def _rows(features: Tensor, rows: NDArray[np.int64]) -> Tensor:
    return features.index_select(0, torch.from_numpy(rows).to(features.device))
