"""``labelgap review``: the page where a person confirms or rejects labels that are probably missing."""

from __future__ import annotations

import getpass
import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from labelgap.cli.options import DataOptions, with_data_options
from labelgap.core.errors import InputError

if TYPE_CHECKING:
    from labelgap.review import Review, ReviewFolder

__all__ = ["review", "user_name"]


@with_data_options
def review(
    what: Annotated[str, typer.Argument(metavar="RUN|DATA", help="A run that was audited; or DATA, with --random.")],
    data_options: DataOptions,
    split: Annotated[str | None, typer.Option(help="Only this split. [default: all; val with --random]")] = None,
    random: Annotated[
        int | None, typer.Option(help="Without a run: so many random images, asked for every class.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of --random.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder of --random [default: NAME-review], or file of --export-to.")
    ] = None,
    reviewer: Annotated[str | None, typer.Option(help="Your name, kept with every decision. [default: user]")] = None,
    budget: Annotated[str | None, typer.Option(help="How long you want to take, e.g. 15m; the page says when.")] = None,
    port: Annotated[int | None, typer.Option(help="[default: the first free one from 8765 on]")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; other machines need a token.")] = "127.0.0.1",
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Do not open a browser.")] = False,
    summary: Annotated[bool, typer.Option("--summary", help="Say how far the review is, and serve nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The summary for machines.")] = False,
    export_to: Annotated[
        str | None, typer.Option(help="Write undecided candidates for labelstudio or fiftyone.")
    ] = None,
    import_from: Annotated[str | None, typer.Option(help="Take decisions from labelstudio or fiftyone.")] = None,
    file: Annotated[Path | None, typer.Option("--in", help="File of --import-from.")] = None,
    prefix: Annotated[str | None, typer.Option(help="Before every image's name, for --export-to.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Let --export-to replace a file.")] = False,
) -> None:
    """Open the page where you confirm or reject labels that are probably missing."""
    from labelgap.review import Review
    from labelgap.review.formatting import parse_duration
    from labelgap.review.server import serve

    seconds = None if budget is None else parse_duration(budget)
    person = _checked_name(reviewer or user_name())
    folder = _folder(what, data_options, split, random, seed, out)
    opened = Review(folder, split if folder.run is not None else None)
    try:
        if export_to is not None:
            _export(opened, export_to, out, prefix, force)
        elif import_from is not None:
            _import(opened, import_from, file, person)
        elif summary or as_json:
            _summarise(opened, as_json)
        else:
            _check_pictures(folder)
            serve(
                opened,
                host=host,
                port=port,
                browser=not no_browser,
                reviewer=person,
                budget=seconds,
                told=lambda address: _greet(opened, address),
            )
            _leave(opened)
    finally:
        opened.close()


def _check_pictures(folder: ReviewFolder) -> None:
    """Open the data, so that what is wrong with them is told before anything is served."""
    from labelgap.data.readers.features import FeatureVectors

    if isinstance(folder.data.train.images, FeatureVectors):
        raise InputError(
            f"{folder.data.name} has feature vectors and no pictures: there is nothing that one could see."
        )


def user_name() -> str:
    """Return the name of whoever runs the command, as the system knows it."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return "reviewer"


def _checked_name(name: str) -> str:
    plain = " ".join(name.split())
    if not plain or len(plain) > 80 or not plain.isprintable():
        raise InputError(f"--reviewer {name!r}: a name of 1 to 80 letters.")
    return plain


def _folder(
    what: str, options: DataOptions, split: str | None, random: int | None, seed: int, out: Path | None
) -> ReviewFolder:
    """Return the run, the review that is there, or a new one of random images."""
    from labelgap.cli.options import open_dataset
    from labelgap.review import create_random_review, is_review_folder, open_review_folder

    if is_review_folder(Path(what)) or (random is None and Path(what).is_dir() and not any(Path(what).glob("*.csv"))):
        if random is not None:
            raise InputError(f"--random draws images of DATA; {what} is a run, or a review already.")
        for name in options.given():
            raise InputError(f"--{name.replace('_', '-')} says how DATA are read; {what} knows that: leave it out.")
        return open_review_folder(what)
    if random is None:
        raise InputError(
            f"{what} is not a run. To review random images of data without one: "
            f"labelgap review {what} --split val --random 300"
        )
    data = open_dataset(what, options)
    name = re.sub(r"[^\w.-]+", "-", Path(data.name).stem).strip("-.") or "data"
    return create_random_review(data, split or "val", random, seed, out or Path(f"{name}-review"))


def _greet(opened: Review, address: str) -> None:
    progress = opened.progress()
    names = {row.number for row in opened.classes()}
    print(f"{opened.path}: {progress.total:,} candidates of {len(names):,} classes, {progress.decided:,} decided")
    print(f"{'open':<10}{address}")
    print(f"{'stop':<10}Ctrl-C; every decision is kept in {opened.store.path}", flush=True)


def _leave(opened: Review) -> None:
    progress = opened.progress()
    print(f"{progress.decided:,} of {progress.total:,} decided, {progress.found:,} missing labels found")
    print(f"{'next':<10}labelgap apply {opened.path} --out better.csv", flush=True)


def _summarise(opened: Review, as_json: bool) -> None:
    from labelgap.review.formatting import format_estimate

    progress, made = opened.progress(), opened.estimate()
    people: dict[str, int] = {}
    for event in opened.store.standing():
        people[event.reviewer] = people.get(event.reviewer, 0) + 1
    if as_json:
        found: dict[str, Any] = {
            "format": 1,
            "progress": asdict(progress),
            "reviewers": people,
            "estimate": None if made is None else {**asdict(made), "missing": made.missing},
            "classes": [asdict(row) for row in opened.classes()],
        }
        print(json.dumps(found, ensure_ascii=False))
        return
    print(f"{'decided':<10}{progress.decided:,} of {progress.total:,}; {progress.unsure:,} where nobody could tell")
    print(f"{'found':<10}{progress.found:,} missing labels")
    if progress.wrong:
        print(
            f"{'wrong':<10}{progress.wrong_decided:,} of {progress.wrong:,} labels that look wrong were decided, "
            f"{progress.corrected:,} of them corrected"
        )
    if people:
        names = ", ".join(f"{name} {count:,}" for name, count in sorted(people.items(), key=lambda pair: -pair[1]))
        print(f"{'by':<10}{names}")
    print(f"{'missing':<10}{format_estimate(made, before=opened.candidates.about.get('estimate'))}")
    if progress.decided or progress.wrong_decided:
        print(f"{'next':<10}labelgap apply {opened.path} --out better.csv")


def _export(opened: Review, to: str, out: Path | None, prefix: str | None, force: bool) -> None:
    from labelgap.review.external_tools import export_candidates

    if out is None:
        raise InputError("--export-to needs a file: --out candidates.json")
    written = export_candidates(opened, to, out, prefix=prefix, force=force)
    print(f"{'wrote':<10}{' and '.join(map(str, written.paths))}")
    print(f"{'open':<10}{written.hint}")
    print(f"{'back':<10}labelgap review {opened.path} --import-from {to} --in FILE")


def _import(opened: Review, source: str, file: Path | None, person: str) -> None:
    from labelgap.review.external_tools import import_decisions

    if file is None:
        raise InputError("--import-from needs a file: --in decisions.json")
    came = import_decisions(opened, source, file, person)
    print(f"{'read':<10}{file}: {came.images:,} images, {came.same:,} labels as they were known")
    print(f"{'decided':<10}{came.decided:,} labels, by {person}")
    if came.withdrawn:
        print(f"{'left':<10}{came.withdrawn:,} labels are known here and ticked nowhere there; nothing is made of that")
