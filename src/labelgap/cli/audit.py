"""``labelgap audit``: rank the labels that are probably missing."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument

import labelgap as lg
from labelgap.cli import options
from labelgap.cli.options import RunDataOptions, joined_processes, option, parse_names, with_options
from labelgap.cli.printing import print_fields, print_json
from labelgap.core.errors import InputError

if TYPE_CHECKING:
    from labelgap.audit import Audit

_PREDICTIONS = "Folder or URL of what `predict` wrote in parts: audit these images."
_ZERO_SHOT = "Model whose scores of the class names join as a prior."


@dataclass(frozen=True)
class AuditOptions:
    """Arguments of ``labelgap.find_missing``."""

    folds: Annotated[int, option("Folds; every image is scored by a model trained on the other folds.")] = 5
    per_class: Annotated[int, option("Maximum number of candidates of a class.")] = 2000
    limit: Annotated[int, option("Maximum number of candidates.")] = 100_000
    seed: Annotated[int, option("Seed of folds, order and random candidates.")] = 0
    out: Annotated[Path | None, option("Folder, or .parquet file.", "folder of the first run")] = None
    zero_shot: Annotated[str | None, option(_ZERO_SHOT, metavar="open_clip:MODEL/TAG")] = None
    zero_shot_weights: Annotated[Path | None, option("Weights of that model.", "those of TAG", metavar="FILE")] = None
    device: options.Device = "auto"
    workers: options.Workers = None


@with_options(run_data=RunDataOptions, search=AuditOptions)
def audit(
    runs: Annotated[list[Path], Argument(metavar="RUN…", help="Folders of runs on the same data.")],
    run_data: RunDataOptions,
    search: AuditOptions,
    predictions: Annotated[str | None, option(_PREDICTIONS, metavar="URI")] = None,
    split: Annotated[list[str] | None, option("train, val, test, several, or all.", "train")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Rank the unknown labels that are probably present, and the known ones that look wrong."""
    from labelgap.audit.candidates import FILE
    from labelgap.data import load_moved

    started = time.perf_counter()
    with joined_processes(search.device):
        given, data = run_data.given(), run_data.data
        opened = None if data is None else load_moved(lg.open_run(runs[0]).config.data, data, **given)
    splits = parse_names(split, "--split") or "train"
    if predictions is None:
        found = lg.find_missing(runs, splits=splits, data=opened, quiet=as_json, **vars(search))
    else:
        found = _audit_parts(runs, predictions, opened, search, quiet=as_json)
    if as_json:
        return print_json({"path": found.path, **found.metadata})
    following = f"labelgap review {shlex.quote(str(found.path.parent))}"
    if found.metadata["backbone"] == "features":
        following = "see that file; features have no images to review"
    elif found.path.name != FILE:
        following = "see that file; a review needs a folder (--out FOLDER)"
    written = f"{found.path}        {time.perf_counter() - started:.0f} s in all"
    print_fields(*found.facts(), ("written", written), ("next", following), width=13)


def _audit_parts(
    runs: Sequence[Path], predictions: str, data: lg.Dataset | None, search: AuditOptions, *, quiet: bool
) -> Audit:
    from labelgap.audit.parts import find_missing_in_parts

    options = dict(vars(search))
    zero_shot = [options.pop("zero_shot"), options.pop("zero_shot_weights")]
    if len(runs) > 1 or any(zero_shot):
        raise InputError("--predictions takes one run, and no zero-shot scores.")
    return find_missing_in_parts(runs[0], predictions, data=data, quiet=quiet, **options)
