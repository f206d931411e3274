"""``labelgap audit``: which labels are probably missing."""

from __future__ import annotations

import json
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from labelgap.cli.options import Device

if TYPE_CHECKING:
    from labelgap.audit import Audit

__all__ = ["audit"]

_SHOWN = 6
FEATURES = "features"


def audit(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN…", help="Folders of runs on the same data.")],
    split: Annotated[list[str] | None, typer.Option(help="train, val or train,val. [default: train]")] = None,
    folds: Annotated[int, typer.Option(help="Every image is scored by a model that learned from the others.")] = 5,
    per_class: Annotated[int, typer.Option(help="Candidates of a class that are kept.")] = 2000,
    limit: Annotated[int, typer.Option(help="Candidates that are kept in all.")] = 100_000,
    seed: Annotated[int, typer.Option(help="Of folds, order and random candidates.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder, or .parquet file. [default: the first run's folder]")
    ] = None,
    device: Device = "auto",
    workers: Annotated[int | None, typer.Option(help="Processes that decode images. [default: what is of use]")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Rank the labels that are probably present but were never given, and known ones that look wrong."""
    from labelgap.audit import find_missing
    from labelgap.cli.parsing import parse_names

    started = time.perf_counter()
    found = find_missing(
        runs,
        splits=parse_names(split, "--split") or "train",
        folds=folds,
        per_class=per_class,
        limit=limit,
        seed=seed,
        out=out,
        device=device,
        workers=workers,
        quiet=as_json,
    )
    if as_json:
        print(json.dumps({"path": str(found.path), **found.about}, ensure_ascii=False))
    else:
        print("\n".join(_screen(found, runs[0], time.perf_counter() - started)))


def _screen(found: Audit, run: Path, seconds: float) -> list[str]:
    about = found.about
    what = f"{about['unknown_total']:,} unknown labels of {about['images']:,} images ({', '.join(about['splits'])})"
    lines = [_line("looked at", f"{what}, {about['folds']} folds, {about['method']}; {seconds:.0f} s")]
    lines += _missing(about)
    if about["missing"]:
        likely = f"{about['likely']:,} of them more likely there than not"
        lines.append(_line("candidates", f"{about['missing']:,} in order, {likely}"))
        lines.append(_line("", f"{about['random']:,} random ones among them, from which a review gets an interval"))
    if about["wrong"]:
        lines.append(_line("look wrong", f"{about['wrong']:,} labels that are known"))
    lines.append(_line("written", str(found.path)))
    if about["backbone"] == FEATURES:
        return [*lines, _line("next", "see that file; features have no pictures to review")]
    return [*lines, _line("next", f"labelgap review {shlex.quote(str(run))}")]


def _missing(about: dict[str, Any]) -> list[str]:
    estimate = about["estimate"]
    if not about["unknown_total"]:
        return [_line("missing", "nothing: every label is known")]
    if estimate is None:
        return [_line("missing", "no class has five known tags: too few to estimate how many are missing")]
    lines = [
        _line("missing", f"about {estimate['missing']:,} labels, if {estimate['assumption']}:"),
        _line("", f"{estimate['unknown_above_cut']:,} score as high as the surest quarter of the known ones."),
        _line("", f"Up to about {estimate['upper']:,}, if the obvious tags were given first. A review"),
        _line("", "of random candidates will tell; before that there is no interval."),
    ]
    most = sorted(estimate["missing_per_class"].items(), key=lambda pair: -pair[1])[:_SHOWN]
    shown = [f"{name} {round(count):,}" for name, count in most if round(count)]
    return [*lines, _line("most in", " · ".join(shown))] if shown else lines


def _line(label: str, text: str) -> str:
    return f"{label:<13}{text}".rstrip()
