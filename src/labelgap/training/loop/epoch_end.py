"""The end of an epoch: selection of the best one, revisions, trace, checkpoint, history."""

from __future__ import annotations

from typing import Any

from labelgap.core.distributed import is_main_process
from labelgap.core.files import remove_file
from labelgap.labels import Revisions
from labelgap.metrics import revision_quality
from labelgap.training.checkpoint import TrainingState, save_checkpoint
from labelgap.training.history import write_history
from labelgap.training.loop.processes import barrier
from labelgap.training.loop.trainer import REVISIONS_FILE, Trainer
from labelgap.training.selection import EpochScore
from labelgap.training.signals import defer_interrupt


def record_start(trainer: Trainer, state: TrainingState, score: EpochScore, seconds: float) -> None:
    """Add epoch 0 to the state as the best one so far, and write its weights and its score.

    There is no checkpoint of it: a run that is killed before the next one scores epoch 0 again.
    """
    with defer_interrupt():
        state.history.append({"epoch": 0, "loss": None, "seconds": seconds, **_score_fields(trainer, score)})
        state.best_epoch, state.best_score = 0, score.value
        trainer.keep_best()
        if is_main_process():
            trainer.save_best(0)
            write_history(trainer.context.folder, state.history)
        barrier()


def finish_epoch(
    trainer: Trainer, state: TrainingState, record: dict[str, Any], score: EpochScore | None, revisions: Revisions
) -> None:
    """Add an epoch to the state and write its files; a Ctrl-C waits until all are written.

    The checkpoint decides what counts: a resumed run repeats or truncates what was written before it, and writes again
    what comes after it. Only the first process writes. An epoch that diverged (``restarted``) is never the best one;
    revisions after the best epoch are removed then.
    """
    if score is not None:
        record |= _score_fields(trainer, score)
    record |= _revision_measures(trainer, revisions)
    with defer_interrupt():
        restarted = bool(record.get("restarted"))
        best = not restarted and (score is None or state.best_score is None or score.value > state.best_score)
        if score is not None and score.value == state.best_score and trainer.config.optimizer == "newton":
            best = True  # of equal epochs the one that has converged further
        state.epoch += 1
        state.history.append(record)
        trainer.revisions = trainer.revisions.until(state.best_epoch) if restarted else trainer.revisions + revisions
        if best:
            state.best_epoch, state.best_score = state.epoch, score.value if score is not None else None
            trainer.keep_best()
        if is_main_process():
            _write(trainer, state, best, restarted or bool(len(revisions)))
        barrier()


def _write(trainer: Trainer, state: TrainingState, best: bool, revised: bool) -> None:
    folder = trainer.context.folder
    if revised and len(trainer.revisions):
        trainer.revisions.to_parquet(folder / REVISIONS_FILE)
    elif revised:
        remove_file(folder / REVISIONS_FILE)
    trainer.trace.write(folder)
    save_checkpoint(folder, state, trainer.parts, fingerprint=trainer.config.fingerprint())
    if best:
        trainer.save_best(state.epoch)
    write_history(folder, state.history)


def _score_fields(trainer: Trainer, score: EpochScore) -> dict[str, Any]:
    return {"select": trainer.context.selection.rule, "score": score.value, "classes_counted": score.counted}


def _revision_measures(trainer: Trainer, revisions: Revisions) -> dict[str, Any]:
    """Return the number of revisions of an epoch and, where the truth is known, their precision."""
    truth = trainer.context.data.train.truth
    if not len(revisions) or truth is None:
        return {"revisions": len(revisions)} if len(revisions) else {}
    measured = revision_quality(trainer.table, truth, revisions)
    return {"revisions": len(revisions), "revisions_precision": measured.precision}
