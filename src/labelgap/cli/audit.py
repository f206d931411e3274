"""``labelgap audit``: rank the labels that are probably missing."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from labelgap.cli.options import AsJson, DataOptions, Device, RunData, Workers, check_moved, with_options
from labelgap.cli.printing import print_json

if TYPE_CHECKING:
    from labelgap.audit import Audit
    from labelgap.data import Dataset

_SHOWN = 6
FEATURES = "features"


@with_options(data_options=DataOptions)
def audit(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN…", help="Folders of runs on the same data.")],
    data_options: DataOptions,
    data: RunData = None,
    split: Annotated[
        list[str] | None, typer.Option(help="train, val, test, several, or all.", show_default="train")
    ] = None,
    folds: Annotated[int, typer.Option(help="Folds; every image is scored by a model trained on the other folds.")] = 5,
    per_class: Annotated[int, typer.Option(help="Maximum number of candidates of a class.")] = 2000,
    limit: Annotated[int, typer.Option(help="Maximum number of candidates.")] = 100_000,
    seed: Annotated[int, typer.Option(help="Seed of folds, order and random candidates.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder, or .parquet file.", show_default="folder of the first run")
    ] = None,
    zero_shot: Annotated[
        str | None,
        typer.Option(metavar="open_clip:MODEL/TAG", help="Model whose scores of the class names join as a prior."),
    ] = None,
    zero_shot_weights: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Weights of that model.", show_default="those of TAG")
    ] = None,
    device: Device = "auto",
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Rank the unknown labels that are probably present, and the known ones that look wrong."""
    from labelgap.audit import find_missing
    from labelgap.cli.parsing import parse_names
    from labelgap.training.devices import choose_device
    from labelgap.training.loop.processes import fail_together, init_distributed

    started = time.perf_counter()
    init_distributed(choose_device(device))
    with fail_together():
        opened = _data_of(runs[0], data, data_options)
    found = find_missing(
        runs,
        splits=parse_names(split, "--split") or "train",
        folds=folds,
        per_class=per_class,
        limit=limit,
        seed=seed,
        data=opened,
        out=out,
        zero_shot=zero_shot,
        zero_shot_weights=zero_shot_weights,
        device=device,
        workers=workers,
        quiet=as_json,
    )
    if as_json:
        print_json({"path": str(found.path), **found.metadata})
    else:
        print("\n".join(_lines(found, time.perf_counter() - started)))


def _data_of(run: Path, data: str | None, options: DataOptions) -> Dataset | None:
    """Return the data that the user names; None to load those that the run names."""
    from labelgap.data import load_moved
    from labelgap.training import open_run

    given = check_moved(data, options.given())
    return None if data is None else load_moved(open_run(run).config.data, data, **given)


def _lines(found: Audit, seconds: float) -> list[str]:
    from labelgap.audit.candidates import FILE

    metadata = found.metadata
    splits = ", ".join(metadata["splits"])
    scope = f"{metadata['unknown_total']:,} unknown labels of {metadata['images']:,} images ({splits})"
    lines = [_line("audited", f"{scope}, {metadata['folds']} folds, {metadata['method']}; {seconds:.0f} s")]
    if (trained := metadata["trained_images"]) is not None:
        lines.append(_line("trained", f"the run was trained on {trained:,} of these {metadata['images']:,} images"))
    if (zero_shot := metadata["zero_shot"]) is not None:
        slope = zero_shot["slope"]
        effect = (
            f"adds {slope:.2f} log-odds per standard deviation"
            if slope
            else "is left out: the known labels do not follow it"
        )
        lines.append(_line("zero-shot", f"{zero_shot['model']} {effect}"))
    lines += _missing(metadata)
    if metadata["missing"]:
        likely = f"{metadata['likely']:,} of them more likely present than not"
        lines.append(_line("candidates", f"{metadata['missing']:,} ranked, {likely}"))
        lines.append(_line("", f"{metadata['random']:,} random ones, for an estimate with an interval after a review"))
    if metadata["wrong"]:
        lines.append(_line("look wrong", f"{metadata['wrong']:,} known labels: the model disagrees with them"))
    lines.append(_line("written", str(found.path)))
    if metadata["backbone"] == FEATURES:
        return [*lines, _line("next", "see that file; features have no images to review")]
    if found.path.name != FILE:
        return [*lines, _line("next", "see that file; a review needs a folder (--out FOLDER)")]
    return [*lines, _line("next", f"labelgap review {shlex.quote(str(found.path.parent))}")]


def _missing(metadata: dict[str, Any]) -> list[str]:
    estimate = metadata["estimate"]
    if not metadata["unknown_total"]:
        return [_line("missing", "nothing: every label is known")]
    if estimate is None:
        return [_line("missing", "fewer than five known present labels: too few for an estimate")]
    low, high = estimate["range"]
    lines = [
        _line("missing", f"about {estimate['missing']:,} labels, by the scores; {low:,} to {high:,} are possible."),
        _line("", "A review of random candidates gives an interval."),
    ]
    most = sorted(estimate["missing_per_class"].items(), key=lambda pair: -pair[1])[:_SHOWN]
    shown = [f"{name} {count:,}" for name, count in most if count]
    return [*lines, _line("most in", " · ".join(shown))] if shown else lines


def _line(label: str, text: str) -> str:
    return f"{label:<13}{text}".rstrip()
