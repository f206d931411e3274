"""Priors that are made from the truth: teachers of any quality."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

import labelgap as lg
from labelgap.data.prior import Prior


def teach(data: lg.Dataset, noise: float = 1.0, seed: int = 0) -> NDArray[np.float64]:
    """Probabilities for the training images, with log-odds of ±2 and noise."""
    truth = data.train.evaluation_labels.to_dense() == lg.PRESENT
    return np.asarray(expit(4.0 * truth - 2 + noise * np.random.default_rng(seed).normal(size=truth.shape)))


def with_prior(data: lg.Dataset, **sources: NDArray[np.float64]) -> lg.Dataset:
    """The data with what some sources say of the training images; NaN where they say nothing."""
    labels, said = data.train.labels, np.stack(list(sources.values()))
    source, image, column = np.nonzero(~np.isnan(said))
    images = {name: row for row, name in enumerate(labels.images)}
    values = said[source, image, column].astype(np.float32)
    return replace(data, prior=Prior(tuple(sources), images, data.classes, source, image, column, values))
