"""The score of val after each epoch, of several trainings (Zhou et al. 2022, figure 3).

Test is not measured per epoch, so that nobody chooses by it: it is measured once, in the epoch that val chose.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labelgap.reporting.analysis.parameter_effects import val_score_name
from labelgap.studies import Study
from labelgap.studies.compare.results import Comparison
from labelgap.training import Run


@dataclass(frozen=True, eq=False)
class EpochScores:
    """The score of val after each epoch of a method, with one or several seeds.

    Attributes:
        scores: ``(S, E)`` from 0 to 1; NaN after the end of a training that stopped early.
        best: ``(S,)`` the epoch that was kept.
        test: ``(S,)`` test mAP of that epoch; NaN where it was not measured.
        name: what the score is.
        first: number of the first epoch; 0 where it is the linear head before the training of a network.
    """

    scores: NDArray[np.float64]
    best: NDArray[np.int64]
    test: NDArray[np.float64]
    name: str
    first: int = 1

    @property
    def epochs(self) -> NDArray[np.int64]:
        """``(E,)`` the numbers of the epochs."""
        return np.arange(self.first, self.first + self.scores.shape[1])

    @property
    def mean(self) -> NDArray[np.float64]:
        """``(E,)`` the mean over the seeds that have trained so far."""
        return np.asarray(np.nanmean(self.scores, axis=0), dtype=np.float64)


def epoch_scores(what: Comparison | Study | Mapping[str, Run]) -> dict[str, EpochScores]:
    """Return the score of val after each epoch, by label; trainings that were not scored by val are left out.

    Args:
        what: a comparison (every method at its selected setting), a study, or runs by label.
    """
    found: dict[str, EpochScores | None] = {}
    if isinstance(what, Comparison):
        name = val_score_name(what.rule)
        for row in what.methods:
            tests = [(seed.test or {}).get("map") for seed in row.seeds]
            best = [seed.epoch for seed in row.seeds]
            found[row.name] = scores_of_seeds([seed.scores for seed in row.seeds], best, tests, name)
    else:
        runs = {member.label: run for member, run in what.runs} if isinstance(what, Study) else what
        found = {label: _run_scores(run) for label, run in runs.items()}
    return {label: scores for label, scores in found.items() if scores is not None}


def scores_of_seeds(
    scores: Sequence[Sequence[float]],
    best: Sequence[int],
    test: Sequence[float | None],
    name: str,
    first: int = 1,
) -> EpochScores | None:
    """Put the scores of several seeds into a table; None where no epoch was scored."""
    epochs = max(map(len, scores), default=0)
    if not epochs or not all(map(len, scores)):
        return None
    table = np.full((len(scores), epochs), np.nan)
    for seed, values in enumerate(scores):
        table[seed, : len(values)] = values
    tests = np.array([np.nan if value is None else value for value in test], dtype=np.float64)
    return EpochScores(table, np.array(best, dtype=np.int64), tests, name, first)


def _run_scores(run: Run) -> EpochScores | None:
    records = [record for record in run.history if record.get("score") is not None]
    if not records or not run.finished:
        return None
    test = (run.metrics.get("test") or {}).get("map")
    name = val_score_name(run.config.select)
    scores = [record["score"] for record in records]
    return scores_of_seeds([scores], [run.metrics["best_epoch"]], [test], name, records[0]["epoch"])
