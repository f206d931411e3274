"""``labelgap apply``: write the labels with the decisions of reviews."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from typer import Argument

from labelgap.cli.options import AsJson, Force, RunDataPaths, option, parse_names, with_options
from labelgap.cli.printing import Field, print_fields, print_json, print_table
from labelgap.core.errors import InputError
from labelgap.core.files import display_path
from labelgap.core.text import pluralize, truncate_text

if TYPE_CHECKING:
    from labelgap.review.acceptance import AcceptedLabels
    from labelgap.review.apply import ApplyResult

_COLUMNS: Final = ("class", "accepted", "of", "answers", "wrong", "at least", "more answers", "for labels")


@with_options(run_data=RunDataPaths)
def apply(
    runs: Annotated[list[Path], Argument(metavar="RUN…", help="Runs and reviews; the table is that of the first.")],
    run_data: RunDataPaths,
    out: Annotated[Path, option("The table to write: .csv or .parquet.")],
    source: Annotated[list[str] | None, option("Apply revisions of this method too, e.g. ll-cp; repeatable.")] = None,
    accept_machine: Annotated[bool, option("Accept the model's labels of classes where answers show enough.")] = False,
    precision: Annotated[float, option("Share of these that must be right, with 95 % confidence.")] = 0.95,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write the labels with people's decisions applied, in the table's own format; the data are never changed."""
    from labelgap.review import open_review_folder
    from labelgap.review.acceptance import accept_labels
    from labelgap.review.apply import apply_decisions
    from labelgap.review.store import read_decisions

    folders = [open_review_folder(runs[0], run_data.data, **run_data.given()), *map(open_review_folder, runs[1:])]
    decided = [read_decisions(folder.path) for folder in folders]
    ask = f"labelgap review {shlex.quote(str(runs[0]))}" + (f" --precision {precision}" if accept_machine else "")
    if not source and not any(decided):
        raise InputError(f"{runs[0]} has no decisions yet: {ask}. Nothing was written.")
    machine, accepted = accept_labels(folders[0], precision) if accept_machine else ([], [])
    methods = parse_names(source, "--source")
    result = apply_decisions(folders, out, methods, force=force, decided=decided, accepted=accepted)
    counts = [split.labels.counts().total for split in result.data.splits]
    present, absent, unknown = map(sum, zip(*counts, strict=True))
    if as_json:
        about = {"path": result.path, "provenance": result.provenance, "changed": result.changed}
        about |= {"decided": result.decided, "present": present, "absent": absent, "unknown": unknown}
        lengths = ({"accepted": len(each.accepted), "asked": len(each.asked)} for each in machine)
        told = [{**each._asdict(), **counts} for each, counts in zip(machine, lengths, strict=True)]
        return print_json({"format": 1, **about, "machine": told})
    changed = ", ".join(f"{count:,} by {name}" for name, count in result.changed.items()) or "none"
    print_fields(
        ("wrote", f"{', '.join(map(str, (result.path, *result.others.values())))} and {result.provenance}"),
        ("labels", f"{present:,} present, {absent:,} absent, {unknown:,} unknown"),
        ("changed", f"{changed}; {result.decided:,} decisions of people"),
        *_notes(result),
        ("machine", _describe_accepted(machine, precision) if machine else None),
    )
    if shown := [_cells(each) for each in machine if each.size]:
        print_table(_COLUMNS, shown, right=_COLUMNS[1:])
    asks = [f"{ask}    asks these, what brings most first"] if any(each.gain for each in machine) else []
    print_fields(("next", [*asks, _next_command(result)]))


def _cells(found: AcceptedLabels) -> list[str]:
    more = [f"{len(found.asked):,}", f"{found.gain:,}"] if found.gain else ["–", "–"]
    answers = [f"{number:,}" for number in (found.size, found.answers, found.wrong)]
    return [found.class_name, f"{len(found.accepted):,}", *answers, f"{100 * found.bound:.1f} %", *more]


def _describe_accepted(machine: Sequence[AcceptedLabels], precision: float) -> list[str]:
    """Return what was accepted of the machine's labels, and where there are too few for any guarantee."""
    count, few = sum(len(each.accepted) for each in machine), [each for each in machine if each.likely > each.size == 0]
    sure = f"{pluralize(count, 'label')} accepted: of each class {100 * precision:g} % or more are right, 95 % sure"
    names = truncate_text(", ".join(each.class_name for each in few), 60)
    left = f"too few likely labels for a guarantee, decide all {sum(each.likely for each in few):,}: {names}"
    return [sure if count else "accepted none", *([left] if few else [])]


def _notes(result: ApplyResult) -> Iterator[Field]:
    own, added, lists = (
        result.own_format,
        result.added,
        result.data.recipe.get("options", {}).get("unlisted") == "absent",
    )
    if added:
        yield "classes", f"{len(added):,} added: {truncate_text(', '.join(added), 200)}; unknown where nobody decided"
    if added and own is None and lists:
        yield "format", "a column per class: lists where an unlisted class is absent cannot say unknown"
    if result.contradicted:
        labels = pluralize(result.contradicted, "label was", "labels were")
        yield "merged", f"{labels} decided differently in two reviews: the newer decision counts"
    if result.kept:
        yield "kept", f'{result.kept:,} answered "can\'t tell": these lists cannot say unknown'
    if own is not None and own.absent_added:
        yield "added", "a column 'absent', for the labels that were found to be absent"
    if own is not None and own.zeros_cleared:
        yield "zeros", "0 meant unknown; it is blank now, and 0 means absent: leave out --zeros unknown"
    if result.soft:
        yield "left out", f"{result.soft:,} soft targets, which are not labels"


def _next_command(result: ApplyResult) -> str:
    from labelgap.data.images import FileImages
    from labelgap.training.rerun import data_arguments

    images, options = result.data.train.images, dict(result.data.recipe.get("options", {}))
    if not isinstance(images, FileImages):
        return ""
    folder = display_path(options.get("images") or images.root)
    words = ["--images", folder, *(["--allow-leaks"] if options.get("allow_leaks") else [])]
    if result.own_format is not None:
        options = {"images": str(images.root), **options, **{name: str(at) for name, at in result.others.items()}}
        options.pop("zeros", None)
        if options.get("classes") and result.added:
            options["classes"] = [*options["classes"], *result.added]
        words = (data_arguments({"name": "", "path": "", "options": options, "steps": []}) or ["", *words])[1:]
    return shlex.join(["labelgap", "train", str(result.path), *words, "--out", "runs/better"])
