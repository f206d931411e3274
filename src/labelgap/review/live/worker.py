"""The process that ranks the open candidates again: it has one thread, and never keeps the page from answering.

It gets the candidates and the decisions from the server and returns orders; it neither reads nor writes the store. It
ends when the server does, also when that is killed.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from labelgap.audit.candidates import CandidateList
from labelgap.audit.live import Aim, Decisions, FeatureScale, rank_open
from labelgap.core.errors import LabelGapError
from labelgap.review.candidates import MISSING, Candidates
from labelgap.review.folder import ReviewFolder, open_review_folder
from labelgap.review.live.features import image_features

NICENESS: Final = 10

Numbers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class RankingJob:
    """What the worker is for: a review and its candidates, C of them.

    Attributes:
        path: of the review's folder.
        source: where the user says that its data are.
        options: with which to read them.
        images: split and name of each image.
        image: ``(C,)`` number of the image.
        class_number: ``(C,)``
        score: ``(C,)`` of the audit; NaN without a model.
        ranked: ``(C,)`` whether the candidate is one that may be missing, not only random.
        classes: K.
    """

    path: str
    source: str | None
    options: Mapping[str, Any]
    images: tuple[tuple[str, str], ...]
    image: NDArray[np.int32]
    class_number: NDArray[np.int32]
    score: NDArray[np.float32]
    ranked: NDArray[np.bool_]
    classes: int

    @classmethod
    def of(cls, folder: ReviewFolder, candidates: Candidates) -> RankingJob:
        """Return the job for the candidates of a folder."""
        columns = candidates.columns
        return cls(
            path=str(folder.path),
            source=folder.source,
            options=dict(folder.options),
            images=columns.images,
            image=columns.image,
            class_number=columns.class_number,
            score=columns.score,
            ranked=columns.kind == MISSING,
            classes=len(candidates.classes),
        )


@dataclass(frozen=True, eq=False)
class RankingRequest:
    """Decisions to learn from.

    Attributes:
        aims: the orders that are wanted.
        decided: ``(M,)`` numbers of candidates.
        values: ``(M,)`` codes.
        last_event: id of the last event that is taken into account.
    """

    aims: tuple[Aim, ...]
    decided: Numbers
    values: NDArray[np.int8]
    last_event: int


@dataclass(frozen=True, eq=False)
class RankingResult:
    """An order of open candidates.

    Attributes:
        aim: of the order.
        model: digest of the heads.
        decisions: how many they have learned from.
        last_event: of the request.
        numbers: ``(R,)`` candidates, the first to be decided first.
        probability: ``(R,)`` that they are present.
    """

    aim: Aim
    model: str
    decisions: int
    last_event: int
    numbers: Numbers
    probability: NDArray[np.float32]


@dataclass(frozen=True)
class WorkerFailure:
    """Why there will be no ranking: one that another attempt would not change."""

    reason: str


def run_worker(connection: Connection, job: RankingJob) -> None:
    """Load the features, then answer requests until the connection is closed; of several only the newest."""
    _follow_parent()
    torch.set_num_threads(1)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        folder = None
        while True:
            try:
                folder = folder or open_review_folder(job.path, job.source, **job.options)
                scale = FeatureScale.of(image_features(folder, job.images))
            except (LabelGapError, OSError, RuntimeError, ImportError) as error:
                connection.send(WorkerFailure(str(error)))
                return
            job = _answer(connection, job, scale)


def _answer(connection: Connection, job: RankingJob, scale: FeatureScale) -> RankingJob:
    """Answer requests until there is a job with other images, which is returned."""
    images = job.images
    while job.images == images:
        pool, message = np.flatnonzero(job.ranked & ~np.isnan(job.score)), connection.recv()
        while isinstance(message, RankingRequest) and connection.poll():
            message = connection.recv()
        if isinstance(message, RankingJob):
            job = message
        else:
            for aim in message.aims:
                connection.send(rank(job, scale, pool, message, aim))
    return job


def rank(job: RankingJob, scale: FeatureScale, pool: Numbers, request: RankingRequest, aim: Aim) -> RankingResult:
    """Return the order of the candidates in ``pool`` that are open."""
    scored = ~np.isnan(job.score[request.decided])
    decisions = Decisions(_select(job, request.decided[scored]), request.values[scored])
    made = rank_open(scale, _select(job, pool), decisions, job.classes, aim)
    found = made.candidates
    place = np.argsort(key := job.image[pool].astype(np.int64) * job.classes + job.class_number[pool])
    at = place[np.searchsorted(key[place], found.rows * job.classes + found.columns)]
    return RankingResult(aim, made.model, made.decisions, request.last_event, pool[at], found.scores)


def _select(job: RankingJob, numbers: Numbers) -> CandidateList:
    columns = (job.image[numbers].astype(np.int64), job.class_number[numbers].astype(np.int64), job.score[numbers])
    return CandidateList.of_unknown(*columns)


def _follow_parent() -> None:
    """Give way to other processes, ignore Ctrl-C (the server ends this process), and end when the server is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(os, "nice"):
        os.nice(NICENESS)
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            wait([parent.sentinel])
            os._exit(0)

    threading.Thread(target=watch, daemon=True).start()
