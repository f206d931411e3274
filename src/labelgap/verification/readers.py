"""How each file of a folder is read to verify it: no class or file that it names is loaded, nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Literal

import pyarrow as pa

from labelgap.audit.candidates import FILE as CANDIDATES
from labelgap.audit.candidates import REVIEW_FILE, read_candidates, read_metadata
from labelgap.core.class_path import is_class_path
from labelgap.core.errors import InputError, RunError
from labelgap.core.stored import damaged, read_table
from labelgap.core.tensors import read_tensors
from labelgap.data.feature_vectors import FEATURES
from labelgap.labels import Revisions
from labelgap.review.database import FILE as DECISIONS
from labelgap.review.folder import open_review_folder
from labelgap.review.store import read_decisions
from labelgap.studies import open_study
from labelgap.studies.compare import Comparison
from labelgap.studies.compare.heads import check_head
from labelgap.studies.compare.results import FILE as COMPARISON
from labelgap.studies.compare.results import HEADS_FOLDER
from labelgap.studies.linear_eval import FILES as LINEAR_EVAL
from labelgap.studies.linear_eval import LinearEvaluation
from labelgap.studies.reproduce import Reproduction
from labelgap.studies.reproduce.results import FILE as REPRODUCTION
from labelgap.studies.shares import FILES as SHARES
from labelgap.studies.shares import ShareComparison
from labelgap.studies.study import FILE as STUDY
from labelgap.studies.sweep import Sweep
from labelgap.studies.sweep.results import FILES as SWEEP
from labelgap.training.checkpoint import BEST, has_backbone, read_weights, set_weights
from labelgap.training.config import CONFIG_FILE, INITIAL_WEIGHTS, RunConfig, read_config
from labelgap.training.history import METRICS_FILE, read_history
from labelgap.training.loop.trace import TRACE_FILE, read_trace
from labelgap.training.loop.trainer import REVISIONS_FILE
from labelgap.training.network import build_classifier, stored_feature_width
from labelgap.training.run_folder import DATA_FILE, PREDICTIONS_FILE, read_data_identity

Kind = Literal["run", "study", "comparison", "linear evaluation", "reproduction", "sweep", "training shares", "review"]
Reader = tuple[str, Callable[[], object]]


def read_functions(folder: Path, kind: Kind) -> Iterator[Reader]:
    """Yield the files that a folder has, and the functions that read them."""
    if kind == "run":
        yield from _run_readers(folder)
    elif kind == "study":
        yield STUDY, partial(open_study, folder)
    elif kind == "sweep":
        yield SWEEP[0], partial(Sweep.open, folder)
    elif kind == "reproduction":
        yield REPRODUCTION, partial(Reproduction.open, folder)
    elif kind == "comparison":
        yield COMPARISON, partial(Comparison.open, folder)
        for name in head_files(folder):
            yield name, partial(check_head, folder / name)
    elif kind == "training shares":
        yield SHARES[0], partial(ShareComparison.open, folder)
    elif kind == "linear evaluation":
        yield LINEAR_EVAL[0], partial(LinearEvaluation.open, folder)
        yield LINEAR_EVAL[2], partial(read_tensors, folder / LINEAR_EVAL[2])
    else:
        yield REVIEW_FILE, partial(open_review_folder, folder)
    if (folder / CANDIDATES).exists():
        yield CANDIDATES, partial(_read_candidates, folder / CANDIDATES)
    if (folder / DECISIONS).exists():
        yield DECISIONS, partial(read_decisions, folder)


def _run_readers(folder: Path) -> Iterator[Reader]:
    yield CONFIG_FILE, partial(read_config, folder)
    try:
        config = read_config(folder)
    except RunError:
        return  # the other files are read by what it says
    readers: dict[str, Callable[[], object]] = {
        METRICS_FILE: partial(read_history, folder, config.classes),
        BEST: partial(_check_weights, folder, config),
        INITIAL_WEIGHTS: partial(read_tensors, folder / INITIAL_WEIGHTS),
        TRACE_FILE: partial(read_trace, folder),
        REVISIONS_FILE: partial(Revisions.from_parquet, folder / REVISIONS_FILE),
        PREDICTIONS_FILE: partial(_check_predictions, folder, config),
        DATA_FILE: partial(read_data_identity, folder),
    }
    for name, read in readers.items():
        if (folder / name).exists():
            yield name, read


def _check_weights(folder: Path, config: RunConfig) -> None:
    """Load the weights into an untrained network of the run; without its class or package only read them."""
    weights = read_weights(folder)
    if is_class_path(config.backbone):
        return
    width = stored_feature_width(weights, len(config.classes)) if config.backbone == FEATURES else None
    if config.backbone == FEATURES and width is None:
        raise damaged(folder / BEST, f"it has no head of the {len(config.classes):,} classes of {CONFIG_FILE}")
    with suppress(InputError):  # a package that is not installed here
        network = build_classifier(config, width, pretrained=False)
        set_weights(network, weights, folder / BEST, frozen=not has_backbone(weights))


def _check_predictions(folder: Path, config: RunConfig) -> None:
    scores = {f"score.{name}": pa.float32() for name in config.classes}
    read_table(folder / PREDICTIONS_FILE, {"image": pa.string(), "split": pa.string(), **scores})


def _read_candidates(path: Path) -> None:
    read_metadata(path)
    read_candidates(path)


def head_files(folder: Path) -> list[str]:
    """Return the names of the heads that a comparison has."""
    return [f"{HEADS_FOLDER}/{path.name}" for path in sorted((folder / HEADS_FOLDER).glob("*.safetensors"))]
