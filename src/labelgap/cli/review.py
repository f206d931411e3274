"""``labelgap review``: the page where a person confirms or rejects candidates."""

from __future__ import annotations

import getpass
import re
import shlex
import sys
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from labelgap.cli.options import DataOptions, RunData, with_options
from labelgap.cli.printing import print_json
from labelgap.core.errors import InputError
from labelgap.core.text import pluralize

if TYPE_CHECKING:
    from labelgap.review import Review, ReviewFolder

_exchange_option = partial(typer.Option, rich_help_panel="Other annotation tools")
_MAX_BUDGET: Final = 7 * 86400


@dataclass(frozen=True)
class ExchangeOptions:
    """Exchange with other annotation tools."""

    export_to: Annotated[
        str | None, _exchange_option(help="Write undecided candidates for labelstudio or fiftyone.")
    ] = None
    import_from: Annotated[str | None, _exchange_option(help="Import decisions from labelstudio or fiftyone.")] = None
    file: Annotated[Path | None, _exchange_option("--in", help="File of --import-from.")] = None
    prefix: Annotated[str | None, _exchange_option(help="Put before every image name by --export-to.")] = None
    force: Annotated[bool, _exchange_option("--force", help="Let --export-to replace a file.")] = False


_page_option = partial(typer.Option, rich_help_panel="The page")


@dataclass(frozen=True)
class PageOptions:
    """The page and its server."""

    budget: Annotated[
        str | None, _page_option(help="Time that you want to spend, e.g. 15m; the page tells you when it is over.")
    ] = None
    port: Annotated[int | None, _page_option(help="Port.", show_default="the first free one from 8765 on")] = None
    host: Annotated[str, _page_option(help="Address to listen on; other machines need a token.")] = "127.0.0.1"
    double: Annotated[
        str, _page_option(help="Ask a second person about this share of the labels, e.g. 5%, to measure agreement.")
    ] = "0%"
    fixed_order: Annotated[
        bool, _page_option("--fixed-order", help="Keep the order of the audit; by default it learns from your answers.")
    ] = False
    no_browser: Annotated[bool, _page_option("--no-browser", help="Do not open a browser.")] = False


@with_options(exchange=ExchangeOptions, data_options=DataOptions, page=PageOptions)
def review(
    source: Annotated[str, typer.Argument(metavar="RUN|DATA", help="An audited run, or an audit; DATA with --random.")],
    data_options: DataOptions,
    exchange: ExchangeOptions,
    page: PageOptions,
    data: RunData = None,
    split: Annotated[str | None, typer.Option(help="Only this split.", show_default="all that was audited")] = None,
    random: Annotated[
        int | None, typer.Option(help="Review every class of this many random images: a true accuracy.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of --random.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder of --random, or file of --export-to.", show_default="RUN-review")
    ] = None,
    reviewer: Annotated[
        str | None, typer.Option(help="Your name, stored with every decision.", show_default="login name")
    ] = None,
    summary: Annotated[
        bool, typer.Option("--summary", help="Print the progress; start no server. --random draws before.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the progress as JSON.")] = False,
) -> None:
    """Open a page on which you confirm or reject labels that are probably missing."""
    from labelgap.cli.parsing import parse_share
    from labelgap.review import Review
    from labelgap.review.server import serve

    seconds, double = _parse_budget(page.budget), parse_share(page.double, "--double")
    author = _check_name(reviewer or user_name())
    folder = _open_folder(source, data, data_options, split, random, seed, out)
    reads = exchange.export_to is not None or (exchange.import_from is None and (summary or as_json))
    opened = Review(folder, None if folder.random or split == "all" else split, read_only=reads)
    try:
        if exchange.export_to is not None:
            _export(opened, exchange.export_to, out, exchange.prefix, exchange.force)
        elif exchange.import_from is not None:
            _import(opened, exchange.import_from, exchange.file, author)
        elif summary or as_json:
            _print_summary(opened, as_json)
        else:
            _check_images(folder)
            serve(
                opened,
                host=page.host,
                port=page.port,
                browser=not page.no_browser,
                reviewer=author,
                budget=seconds,
                double=double,
                live=not page.fixed_order,
                on_start=lambda address: _print_start(opened, address),
            )
            _print_end(opened)
    finally:
        opened.close()


def _parse_budget(budget: str | None) -> int | None:
    from labelgap.cli.parsing import parse_duration

    seconds = None if budget is None else parse_duration(budget, "--budget")
    if seconds is not None and not 1 <= seconds <= _MAX_BUDGET:
        raise InputError(f"--budget {budget}: a budget is between one second and one week, e.g. 15m or 1h30m.")
    return None if seconds is None else round(seconds)


def _check_images(folder: ReviewFolder) -> None:
    """Load the data, so that its errors are reported before the server starts."""
    from labelgap.data.feature_vectors import FeatureVectors

    if isinstance(folder.data.train.images, FeatureVectors):
        raise InputError(f"{folder.data.name} has feature vectors and no images: there is nothing to look at.")


def user_name() -> str:
    """Return the login name of the user."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return "reviewer"


def _check_name(name: str) -> str:
    compact = " ".join(name.split())
    if not compact or len(compact) > 80 or not compact.isprintable():
        raise InputError(f"--reviewer {name!r}: a name has 1 to 80 printable characters.")
    return compact


def _open_folder(
    source: str,
    data_of_run: str | None,
    options: DataOptions,
    split: str | None,
    random: int | None,
    seed: int,
    out: Path | None,
) -> ReviewFolder:
    """Return the run, an existing review, or a new review of random images."""
    from labelgap.cli.options import open_dataset
    from labelgap.review import create_random_review, default_split, is_review_folder, open_review_folder

    if is_review_folder(Path(source)) or (
        random is None and Path(source).is_dir() and not any(Path(source).glob("*.csv"))
    ):
        for name in options.given() if data_of_run is None else ():
            raise InputError(
                f"--{name.replace('_', '-')} applies to DATA; {source} names its own: leave it out, or say with --data "
                "where the data are now."
            )
        folder = open_review_folder(source, data_of_run, **options.given())
        if random is None:
            return folder
        if folder.random:
            raise InputError(f"--random draws images of a run or of DATA; {source} is an existing review.")
        data, name = folder.data, str(Path(source))
    elif data_of_run is not None:
        raise InputError(f"--data is for a run or an existing review; {source} is neither.")
    elif random is None:
        raise InputError(
            f"{source} is not a run. To review random images without a run: labelgap review {source} --random 300"
        )
    else:
        data = open_dataset(source, options)
        name = re.sub(r"[^\w.-]+", "-", Path(data.name).stem).strip("-.") or "data"
    chosen = split or default_split(data)
    if random > (count := len(data.split(chosen))):
        print(f"{'random':<10}all {pluralize(count, 'image')} of {chosen}: there are no {random:,}", file=sys.stderr)
    return create_random_review(data, chosen, random, seed, out or Path(f"{name}-review"))


def _print_start(opened: Review, address: str) -> None:
    progress = opened.progress()
    classes = len(opened.classes())
    print(f"{opened.path}: {progress.total:,} candidates of {classes:,} classes, {progress.decided:,} decided")
    if copies := int((~opened.copies.shown).sum()):
        print(f"{'copies':<10}{copies:,} of these are of copies of an image: asked once, answered for all copies")
    if not opened.folder.random and "test" in opened.splits():
        command = f"labelgap review {shlex.quote(str(opened.path))} --split test --random 300"
        print(f"{'test':<10}the model chose which labels of test it asks about. Deciding them mends the table;")
        print(f"{'':<10}an accuracy needs random images: {command}")
    print(f"{'open':<10}{address}")
    print(f"{'stop':<10}Ctrl-C; every decision is saved in {opened.store.path}", flush=True)


def _print_end(opened: Review) -> None:
    from labelgap.review.estimates import describe_estimate

    progress = opened.progress()
    print(f"{progress.decided:,} of {progress.total:,} decided, {progress.found:,} missing labels found")
    print(f"{'missing':<10}{describe_estimate(opened.estimate())}")
    _print_next(opened)


def _print_next(opened: Review) -> None:
    folder = shlex.quote(str(opened.path))
    if opened.folder.random:
        print(f"{'next':<10}labelgap evaluate RUN {folder}    what a run is worth on these images")
    print(f"{'' if opened.folder.random else 'next':<10}labelgap apply {folder} --out better.csv", flush=True)


def _print_summary(opened: Review, as_json: bool) -> None:
    from labelgap.review.estimates import describe_estimate
    from labelgap.review.team.summary import summarize_team

    progress, estimate = opened.progress(), opened.estimate()
    team = summarize_team(opened.store)
    if as_json:
        summary: dict[str, Any] = {
            "format": 1,
            "progress": asdict(progress),
            "reviewers": {person.name: person.decided for person in team.people if person.decided},
            **team.to_json(),
            "estimate": None
            if estimate is None
            else {**asdict(estimate), "missing": estimate.missing, "remaining": estimate.remaining},
            "classes": [asdict(row) for row in opened.classes()],
        }
        print_json(summary)
        return
    print(f"{'review':<10}{opened.path}")
    print(f'{"decided":<10}{progress.decided:,} of {progress.total:,}; {progress.unsure:,} answered "can\'t tell"')
    print(f"{'found':<10}{progress.found:,} missing labels")
    if progress.wrong:
        print(
            f"{'wrong':<10}{progress.wrong_decided:,} of {progress.wrong:,} suspicious labels decided, "
            f"{progress.corrected:,} corrected"
        )
    for keyword, line in team.lines():
        print(f"{keyword:<10}{line}")
    print(f"{'missing':<10}{describe_estimate(estimate)}")
    if progress.decided or progress.wrong_decided:
        _print_next(opened)


def _export(opened: Review, to: str, out: Path | None, prefix: str | None, force: bool) -> None:
    from labelgap.review.external_tools import export_candidates

    if out is None:
        raise InputError("--export-to needs a file: --out candidates.json")
    written = export_candidates(opened, to, out, prefix=prefix, force=force)
    print(f"{'wrote':<10}{' and '.join(map(str, written.paths))}")
    print(f"{'open':<10}{written.hint}")
    print(f"{'import':<10}labelgap review {opened.path} --import-from {to} --in FILE")


def _import(opened: Review, source: str, file: Path | None, author: str) -> None:
    from labelgap.review.external_tools import import_decisions

    if file is None:
        raise InputError("--import-from needs a file: --in decisions.json")
    result = import_decisions(opened, source, file, author)
    print(f"{'read':<10}{file}: {result.images:,} images, {result.same:,} labels agree with what is known")
    print(f"{'decided':<10}{result.decided:,} labels, by {author}")
    if result.withdrawn:
        print(f"{'ignored':<10}{result.withdrawn:,} labels that are known here and missing from the file")
