"""Everything that reads a stored file: name → function of the folder, or of a file that stands alone."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any, Final
from unittest import mock

import numpy as np
import torch
from benchmarks.fuzzing import samples
from benchmarks.fuzzing.datasets import DATA_READERS, describe_splits

import labelgap as lg
from labelgap.audit.candidates import Audit
from labelgap.cli.main import main
from labelgap.core.cache import cache_limit, list_rows
from labelgap.core.errors import LabelGapError, RunError
from labelgap.data import load
from labelgap.data.parts import PartFolder, check_parts
from labelgap.inference.predict import predict_to_file
from labelgap.models import create_backbone
from labelgap.models.weight_files import read_weight_file
from labelgap.reporting.sections.examples import random_examples
from labelgap.review.apply import apply_decisions
from labelgap.review.database import FILE as STORE
from labelgap.review.folder import check_review, open_review_folder
from labelgap.review.session import Review
from labelgap.review.store import DecisionStore, decisions, read_decisions
from labelgap.studies import open_study
from labelgap.studies.compare import Comparison
from labelgap.training.checkpoint import completed_epochs

Reader = Callable[[Path], Any]


def _run(folder: Path) -> Any:
    run = lg.open_run(folder)
    shown = [repr(run), run._repr_html_()]
    return [run.config, run.history, run.metrics, run.finished, run.thresholds, run.calibration, shown]


def _opened(folder: Path) -> Any:
    run = lg.open_run(folder)
    return [run.config, run.history, run.metrics, run.finished, repr(run), run._repr_html_()]


def _initial_backbone(folder: Path) -> Any:
    torch.manual_seed(0)
    return lg.open_run(folder).initial_backbone().state_dict()


def _review(folder: Path, read_only: bool = False) -> Any:
    opened = open_review_folder(folder)
    with closing(Review(opened, read_only=read_only)) as review:
        stored = [review.store.events(), review.store.current(), review.store.last_events()]
        told = [review.progress(), review.classes(), review.estimate()]
        return [stored, told, review.candidates.columns, review.candidates.metadata]


def _store(folder: Path) -> Any:
    with closing(DecisionStore(folder / STORE)) as store:
        return [store.id, store.events(), store.recent(3), store.current(), store.accepted(), store.last_id()]


def _audit(folder: Path) -> Any:
    audit = Audit(folder / "candidates.parquet")
    return [audit.metadata, audit.estimate, repr(audit), audit.table, audit.of_kind("missing"), len(audit)]


def _apply(folder: Path, sources: Sequence[str] = ()) -> Any:
    out = folder.parent / "applied.csv"
    result = apply_decisions(open_review_folder(folder), out, sources, force=True)
    return [out.read_bytes(), result.provenance.read_bytes(), result.changed, result.decided]


def _examples(folder: Path) -> Any:
    """Read ``predictions.parquet``, as a report does that shows images."""
    run, data = lg.open_run(folder), _digits()
    return [example["predictions"] for example in random_examples(run, data)]


@cache
def _features() -> lg.Dataset:
    """The data of the runs on features, at the path that they name."""
    return lg.load("features", Path(os.environ[samples.SAMPLES_VARIABLE]) / "features.npz")


@cache
def _digits() -> lg.Dataset:
    return lg.load("digits", **samples.SIZES).observe(1, 2, seed=0)


def _resume(folder: Path) -> Any:
    features = _features()
    run = lg.fit(features, "an", out=folder, epochs=3, resume=True, quiet=True, device="cpu", batch_size=samples.BATCH)
    return [run.model.state_dict(), run.metrics["test"], run.trace, run.metrics["best_epoch"]]


def _comparison(folder: Path) -> Any:
    found = Comparison.open(folder)
    return [found, found.tied, found.winner, [(row.mean, row.deviation) for row in found.methods]]


def _compare_again(folder: Path) -> Any:
    """Compare again, which reads every stored head and trains what cannot be used."""
    features = _features()
    rows = lg.compare(features, samples.METHODS, out=folder, quiet=True, device="cpu", **samples.COMPARE).methods
    return [(row.method, row.options, [(seed.value, seed.epoch, seed.test) for seed in row.seeds]) for row in rows]


def _study(folder: Path) -> Any:
    study = open_study(folder)
    return [study.title, study.members, [(run.config, run.metrics) for _, run in study.runs]]


def _parts(folder: Path) -> Any:
    found, finished = check_parts(PartFolder(os.fspath(folder)))
    if any(found.values()):
        raise RunError(str(found))
    return found, finished


def _predict(folder: Path) -> Any:
    """Finish the prediction: damaged chunks are refused, or computed again."""
    run, out = lg.open_run(folder.parent / "run"), folder.parent / samples.PREDICTION
    settings: dict[str, Any] = {"batch_size": samples.BATCH, "device": "cpu", "workers": 0, "force": True}
    try:
        return predict_to_file(run, samples.test_images(), out, **settings).present
    finally:
        out.unlink(missing_ok=True)


def _cached(folder: Path) -> Any:
    """Return the cached features; None where some are damaged or lost, which is allowed, and the others are intact."""
    rows = np.zeros_like(samples.CACHED_ROWS)
    found = samples.feature_store(folder).read(samples.CACHED_KEYS, rows, np.arange(len(rows)))
    assert np.array_equal(rows[found], samples.CACHED_ROWS[found])
    return rows if found.all() else None


def _cache(folder: Path) -> Any:
    os.environ["LABELGAP_CACHE"] = str(folder)
    return [cache_limit(), [(entry.name, entry.size, entry.count) for entry in list_rows()]]


def _command(*words: str) -> Reader:
    """Return a reader that runs a command; FOLDER and ROOT in a word are the folder and the samples."""

    def call(folder: Path) -> Any:
        given = (word.replace("FOLDER", str(folder)).replace("ROOT", str(folder.parent)) for word in words)
        argv = ["labelgap", *given]
        out, err = io.StringIO(), io.StringIO()
        os.environ["LABELGAP_CACHE"] = str(folder.parent / "cache")
        with mock.patch.object(sys, "argv", argv), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                main()
            except SystemExit as stop:
                if stop.code not in (0, None):
                    return _failed(words[0], stop.code, err.getvalue() or out.getvalue())
        return 0

    return call


def _failed(command: str, code: Any, said: str) -> Any:
    told = said.startswith("labelgap: ") or (command == "verify" and said)
    if code == LabelGapError.exit_code and told and "Traceback" not in said:
        raise LabelGapError(said)
    raise AssertionError(f"exit {code}: {said[-500:]}")


READERS: Final[dict[str, Reader]] = {
    **DATA_READERS,
    "apply": _apply,
    "apply with": lambda folder: _apply(folder, ["ll-cp"]),
    "audit": _audit,
    "backbone": lambda path: create_backbone("small-cnn", weights=path).state_dict(),
    "cache": _cache,
    "cached features": _cached,
    "parts": _parts,
    "check review": check_review,
    "coco": lambda folder: describe_splits(lg.load("coco2017", folder)),
    "compare again": _compare_again,
    "comparison": _comparison,
    "completed epochs": completed_epochs,
    "data": lambda folder: describe_splits(open_review_folder(folder).data),
    "decisions": decisions,
    "features": lambda path: describe_splits(lg.load("features", path)),
    "examples": _examples,
    "initial backbone": _initial_backbone,
    "labelgap apply": _command("apply", "FOLDER", "--out", "ROOT/applied.csv", "--force"),
    "labelgap cache": _command("cache"),
    "labelgap evaluate": _command("evaluate", "FOLDER", "ROOT/features.npz", "--resamples", "0", "--device", "cpu"),
    "labelgap inspect": _command("inspect", "FOLDER"),
    "labelgap report": _command("report", "FOLDER", "--no-images"),
    "labelgap revisions": _command("revisions", "FOLDER", "list"),
    "labelgap verify": _command("verify", "FOLDER"),
    "model": lambda folder: lg.open_run(folder).model.state_dict(),
    "open data": lambda path: describe_splits(load(path)),
    "opened": _opened,
    "predict": _predict,
    "report": lambda folder: lg.write_report(folder, images=False).read_text(),
    "resume": _resume,
    "read decisions": read_decisions,
    "review": _review,
    "review read-only": lambda folder: _review(folder, read_only=True),
    "revisions": lambda folder: lg.open_run(folder).revisions,
    "run": _run,
    "store": _store,
    "study": _study,
    "trace": lambda folder: lg.open_run(folder).trace,
    "weights": lambda path: read_weight_file(path).tensors,
}
