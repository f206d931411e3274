r"""What can be said of a run where the known labels support no accuracy, and what a review of random images would give.

With :math:`n` random images labeled in full, a class with prevalence :math:`\pi` has about :math:`n \pi` presents, and
its average precision a variance of at most about :math:`1 / (4 n \pi)`: that of a share, at its worst. The half-width
of the 95 % interval of the mean over :math:`k` classes is then about

.. math:: \frac{1.96}{k} \sqrt{\sum_{j=1}^k \frac{1}{4\, n\, \pi_j}}

It is an upper estimate. The prevalence is the estimated one where there is an
estimate, else the known presents alone, which is the least that it can be.

Reference: Boyd, Eng & Page, "Area under the precision-recall curve: point estimates and confidence intervals", ECML
PKDD 2013, for the variance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from labelgap.audit.candidates import FILE as CANDIDATES_FILE
from labelgap.audit.candidates import read_metadata
from labelgap.data.dataset import Dataset
from labelgap.metrics.validation import MIN_KNOWN_LABELS, expected_random_precision
from labelgap.reporting.analysis.class_table import ClassTable, class_table
from labelgap.training import Run
from labelgap.training.history import has_estimate, unseen_splits
from labelgap.training.rerun import RANDOM_IMAGES, review_split

_NORMAL: Final = 1.959964


@dataclass(frozen=True)
class ObservedRanking:
    """How high the known presents of val rank if every unknown label counts as absent, 0 to 1. It is no accuracy.

    Attributes:
        first: in the first epoch.
        kept: in the epoch that was kept.
        random: what random scores reach on the average; None without the data set.
    """

    first: float
    kept: float
    random: float | None


@dataclass(frozen=True, eq=False)
class PartialEvidence:
    """What can be said without an accuracy; None where something is not known.

    Attributes:
        estimate: the measures of the split whose mAP is estimated, as ``evaluate_scores`` returns them.
        split: the name of that split.
        ranking: where epochs were ordered by the observed labels.
        known: present, absent and unknown labels of train.
        missing: how many labels the audit in the run's folder expects to be missing.
        missing_range: how few and how many they may be.
        review_images: how many random images a review should take: 300, or all.
        available_images: how many there are in the split that a review draws from.
        half_width: of the 95 % interval of the mAP after such a review, 0 to 1.
        review_classes: of so many classes at least five presents are expected in it; the mAP would be over those.
        images_for_point: how many images would give ±1 point over these classes.
    """

    estimate: dict[str, Any] | None
    split: str
    ranking: ObservedRanking | None
    known: tuple[int, int, int] | None
    missing: int | None
    missing_range: tuple[int, int] | None
    review_images: int
    available_images: int | None
    half_width: float | None
    review_classes: int
    images_for_point: int | None


def partial_evidence(run: Run, data: Dataset | None = None, table: ClassTable | None = None) -> PartialEvidence:
    """Return what can be said of a finished run, whatever its labels support.

    Args:
        run: finished.
        data: that it was trained on; without it, labels are not counted.
        table: its classes, where they are computed already.
    """
    table = class_table(run, data) if table is None else table
    splits = [name for name in unseen_splits(run.metrics) if has_estimate(run.metrics[name])]
    drawn = None if data is None else review_split(data)
    images = RANDOM_IMAGES if drawn is None else min(RANDOM_IMAGES, len(drawn))
    prevalence = table.prevalence
    if np.isnan(prevalence).all() and drawn is not None:
        prevalence = drawn.labels.counts().present / max(len(drawn), 1)
    counted = prevalence[np.nan_to_num(prevalence) * images >= MIN_KNOWN_LABELS]
    audit = run.path / CANDIDATES_FILE
    missing = read_metadata(audit)["estimate"] if audit.is_file() else None
    return PartialEvidence(
        estimate=run.metrics[splits[0]] if splits else None,
        split=splits[0] if splits else "",
        ranking=_observed_ranking(run, data),
        known=None if data is None else data.train.labels.counts().total,
        missing=None if missing is None else int(missing["missing"]),
        missing_range=None if missing is None or missing["range"] is None else tuple(missing["range"]),
        review_images=images,
        available_images=None if drawn is None else len(drawn),
        half_width=expected_half_width(counted, images) if len(counted) else None,
        review_classes=len(counted),
        images_for_point=images_for_half_width(counted, 0.01) if len(counted) else None,
    )


def expected_half_width(prevalence: NDArray[np.float64], images: int) -> float:
    """Return the half-width of the interval of the mAP that random images labeled in full would give, at its worst.

    Example:
        >>> round(expected_half_width(np.full(10, 0.25), 400), 3)
        0.031
    """
    return _NORMAL / len(prevalence) * float(np.sqrt((1 / (4 * images * prevalence)).sum()))


def images_for_half_width(prevalence: NDArray[np.float64], half_width: float) -> int:
    """Return how many random images give such an interval, rounded up to two digits.

    Example:
        >>> images_for_half_width(np.full(10, 0.25), 0.031)
        400
    """
    exact = (expected_half_width(prevalence, 1) / half_width) ** 2
    unit: int = 10 ** max(len(str(int(exact))) - 2, 0)
    return math.ceil(exact / unit) * unit


def _observed_ranking(run: Run, data: Dataset | None) -> ObservedRanking | None:
    scores = [record["score"] for record in run.history if record.get("score") is not None]
    kept = run.metrics.get("score")
    if run.config.select != "observed" or not scores or kept is None:
        return None
    random = None
    if data is not None and data.val is not None:
        present = data.val.labels.counts().present
        ranked = present[(present > 0) & (present < len(data.val))]
        random = float(expected_random_precision(ranked, len(data.val) - ranked).mean()) if len(ranked) else None
    return ObservedRanking(float(scores[0]), float(kept), random)
