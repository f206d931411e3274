"""``labelgap audit``: rank the labels that are probably missing."""

from __future__ import annotations

import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument

import labelgap as lg
from labelgap.cli.options import AsJson, Device, RunData, Workers, check_moved, data_arguments, with_options
from labelgap.cli.parsing import option, parse_names
from labelgap.cli.printing import Field, print_fields, print_json
from labelgap.core.data_options import DataOptions

if TYPE_CHECKING:
    from labelgap.audit import Audit


@dataclass(frozen=True)
class AuditOptions:
    """Arguments of ``labelgap.find_missing``."""

    folds: Annotated[int, option("Folds; every image is scored by a model trained on the other folds.")] = 5
    per_class: Annotated[int, option("Maximum number of candidates of a class.")] = 2000
    limit: Annotated[int, option("Maximum number of candidates.")] = 100_000
    seed: Annotated[int, option("Seed of folds, order and random candidates.")] = 0
    out: Annotated[Path | None, option("Folder, or .parquet file.", "folder of the first run")] = None
    zero_shot: Annotated[
        str | None, option("Model whose scores of the class names join as a prior.", metavar="open_clip:MODEL/TAG")
    ] = None
    zero_shot_weights: Annotated[Path | None, option("Weights of that model.", "those of TAG", metavar="FILE")] = None
    device: Device = "auto"
    workers: Workers = None


@with_options(data_options=DataOptions, search=AuditOptions)
def audit(
    runs: Annotated[list[Path], Argument(metavar="RUN…", help="Folders of runs on the same data.")],
    data_options: DataOptions,
    search: AuditOptions,
    data: RunData = None,
    split: Annotated[list[str] | None, option("train, val, test, several, or all.", "train")] = None,
    as_json: AsJson = False,
) -> None:
    """Rank the unknown labels that are probably present, and the known ones that look wrong."""
    from labelgap.data import load_moved
    from labelgap.training.devices import choose_device
    from labelgap.training.loop.processes import fail_together, init_distributed

    started = time.perf_counter()
    init_distributed(choose_device(search.device))
    with fail_together():
        given = check_moved(data, data_arguments(data_options))
        opened = None if data is None else load_moved(lg.open_run(runs[0]).config.data, data, **given)
    splits = parse_names(split, "--split") or "train"
    found = lg.find_missing(runs, splits=splits, data=opened, quiet=as_json, **vars(search))
    if as_json:
        print_json({"path": found.path, **found.metadata})
    else:
        print_fields(*_fields(found, time.perf_counter() - started), width=13)


def _fields(found: Audit, seconds: float) -> list[Field]:
    from labelgap.audit.candidates import FILE

    about, path = found.metadata, found.path
    scope = f"{about['unknown_total']:,} unknown labels of {about['images']:,} images ({', '.join(about['splits'])})"
    fields: list[Field] = [("audited", f"{scope}, {about['folds']} folds, {about['method']}; {seconds:.0f} s")]
    if (trained := about["trained_images"]) is not None:
        fields.append(("trained", f"the run was trained on {trained:,} of these {about['images']:,} images"))
    if zero_shot := about["zero_shot"]:
        adds = f"adds {zero_shot['slope']:.2f} log-odds per standard deviation"
        effect = adds if zero_shot["slope"] else "is left out: the known labels do not follow it"
        fields.append(("zero-shot", f"{zero_shot['model']} {effect}"))
    if estimate := about["estimate"]:
        low, high = estimate["range"]
        text = f"about {estimate['missing']:,} labels, by the scores; {low:,} to {high:,} are possible."
        most = sorted(estimate["missing_per_class"].items(), key=lambda pair: -pair[1])[:6]
        fields.append(("missing", [text, "A review of random candidates gives an interval."]))
        fields.append(("most in", " · ".join(f"{name} {count:,}" for name, count in most if count)))
    elif about["unknown_total"]:
        fields.append(("missing", "fewer than five known present labels: too few for an estimate"))
    else:
        fields.append(("missing", "nothing: every label is known"))
    if about["missing"]:
        ranked = f"{about['missing']:,} ranked, {about['likely']:,} of them more likely present than not"
        random = f"{about['random']:,} random ones, for an estimate with an interval after a review"
        fields.append(("candidates", [ranked, random]))
    if about["wrong"]:
        fields.append(("look wrong", f"{about['wrong']:,} known labels: the model disagrees with them"))
    following = f"labelgap review {shlex.quote(str(path.parent))}"
    if about["backbone"] == "features":
        following = "see that file; features have no images to review"
    elif path.name != FILE:
        following = "see that file; a review needs a folder (--out FOLDER)"
    return [*fields, ("written", path), ("next", following)]
