"""``labelgap review``: the page where a person confirms or rejects candidates."""

from __future__ import annotations

import getpass
import math
import shlex
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Annotated, Any, Final

from typer import Argument

from labelgap.cli.options import RunDataOptions, open_dataset, option, parse_duration, with_options
from labelgap.cli.printing import Field, print_fields, print_json
from labelgap.core.errors import InputError
from labelgap.core.files import file_stem
from labelgap.core.text import pluralize

if TYPE_CHECKING:
    from labelgap.review import Review, ReviewFolder

_SILENT_SECONDS: Final = 2.0
_tool = partial(option, rich_help_panel="Other annotation tools")
_page = partial(option, rich_help_panel="The page")


@dataclass(frozen=True)
class ReviewOptions:
    """Which images to review, exchange with other annotation tools, and the page."""

    split: Annotated[str | None, option("Only this split.", "all that was audited")] = None
    random: Annotated[int | None, option("Review every class of this many random images: a true accuracy.")] = None
    seed: Annotated[int, option("Seed of --random.")] = 0
    out: Annotated[Path | None, option("Folder of --random, or file of --export-to.", "RUN-review")] = None
    reviewer: Annotated[str | None, option("Your name, stored with every decision.", "login name")] = None
    summary: Annotated[bool, option("Print the progress; start no server. --random draws before.")] = False
    as_json: Annotated[bool, option("Print the progress as JSON.", name="--json")] = False
    export_to: Annotated[str | None, _tool("Write undecided candidates for labelstudio or fiftyone.")] = None
    import_from: Annotated[str | None, _tool("Import decisions from labelstudio or fiftyone.")] = None
    file: Annotated[Path | None, _tool("File of --import-from.", name="--in")] = None
    prefix: Annotated[str | None, _tool("Put before every image name by --export-to.")] = None
    force: Annotated[bool, _tool("Let --export-to replace a file.")] = False
    budget: Annotated[str | None, _page("Time to spend, e.g. 15m; the page tells you when it is over.")] = None
    port: Annotated[int | None, _page("Port.", "the first free one from 8765 on")] = None
    host: Annotated[str, _page("Address to listen on, e.g. 0.0.0.0 for other machines.")] = "127.0.0.1"
    double: Annotated[str, _page("Share of the labels to ask a second person too, for agreement, e.g. 5%.")] = "0%"
    precision: Annotated[float, _page("Share of labels that must be right for `apply --accept-machine`.")] = 0.95
    fixed_order: Annotated[bool, _page("Keep the order of the audit; by default it learns from your answers.")] = False
    no_browser: Annotated[bool, _page("Do not open a browser.")] = False


@with_options(options=ReviewOptions, run_data=RunDataOptions)
def review(
    source: Annotated[str, Argument(metavar="RUN|DATA", help="An audited run, or an audit; DATA with --random.")],
    options: ReviewOptions,
    run_data: RunDataOptions,
) -> None:
    """Open a page on which you confirm or reject labels that are probably missing."""
    budget = None if options.budget is None else round(parse_duration(options.budget, "--budget"))
    if budget is not None and not 1 <= budget <= 7 * 86400:
        raise InputError(f"--budget {options.budget}: a budget is between one second and one week, e.g. 15m or 1h30m.")
    double, author = _parse_share(options.double), " ".join((options.reviewer or user_name()).split())
    if not 0 < len(author) <= 80 or not author.isprintable():
        raise InputError(f"--reviewer {options.reviewer!r}: a name has 1 to 80 printable characters.")
    with _announced(source) as announcement:
        from labelgap.data.images import FeatureVectors
        from labelgap.review import Review
        from labelgap.review.server import serve

        folder = _open_folder(source, run_data, options)
        shows = options.summary or options.as_json
        reads = options.export_to is not None or (options.import_from is None and shows)
        split = None if folder.random or options.split == "all" else options.split
        with closing(Review(folder, split, read_only=reads, precision=options.precision)) as opened:
            if options.export_to is not None:
                return _export(opened, options.export_to, options)
            if options.import_from is not None:
                return _import(opened, options.import_from, options.file, author)
            if shows:
                return _print_summary(opened, options.as_json)
            # This loads the data, so that its errors are reported before the server starts.
            if isinstance(folder.data.train.images, FeatureVectors):
                raise InputError(f"{folder.data.name} has feature vectors and no images: there is nothing to look at.")
            announcement.cancel()
            where: dict[str, Any] = {"host": options.host, "port": options.port, "browser": not options.no_browser}
            asked: dict[str, Any] = {"budget": budget, "double": double, "live": not options.fixed_order}
            with closing(
                serve(opened, reviewer=author, on_start=partial(_print_start, opened), **where, **asked)
            ) as last:
                _print_end(last)


@contextmanager
def _announced(source: str) -> Iterator[Timer]:
    """Say what is being opened where that takes long, as it does on a busy machine; yield what can be cancelled."""
    line = "opening", f"{source}: its data, its candidates and the decisions"
    timer = Timer(_SILENT_SECONDS, print_fields, [line], {"stderr": True})
    timer.daemon = True
    timer.start()
    try:
        yield timer
    finally:
        timer.cancel()


def user_name() -> str:
    """Return the login name of the user."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return "reviewer"


def _parse_share(text: str) -> float:
    """Parse a share: percent with the sign, or a number from 0 to 1."""
    try:
        share = float(text.strip().removesuffix("%")) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        share = math.nan
    if not 0 <= share <= 1:
        raise InputError(f"--double {text}: write a share from 0% to 100%, e.g. --double 5%")
    return share


def _open_folder(source: str, run_data: RunDataOptions, options: ReviewOptions) -> ReviewFolder:
    """Return the run, an existing review, or a new review of random images."""
    from labelgap.review import create_random_review, default_split, is_review_folder, open_review_folder

    place, random = Path(source), options.random
    if is_review_folder(place) or (random is None and place.is_dir() and not any(place.glob("*.csv"))):
        folder = open_review_folder(source, run_data.data, **run_data.given())
        if random is None:
            return folder
        if folder.random:
            raise InputError(f"--random draws images of a run or of DATA; {source} is an existing review.")
        data, name = folder.data, str(place)
    elif run_data.data is not None:
        raise InputError(f"--data is for a run or an existing review; {source} is neither.")
    elif random is None:
        raise InputError(f"{source} is not a run. Random images without one: labelgap review {source} --random 300")
    else:
        data = open_dataset(source, run_data)
        name = file_stem(data.name)
    split = options.split or default_split(data)
    if random > (count := len(data.split(split))):
        print_fields(("random", f"all {pluralize(count, 'image')} of {split}: there are no {random:,}"), stderr=True)
    return create_random_review(data, split, random, options.seed, options.out or Path(f"{name}-review"))


def _print_start(opened: Review, address: str) -> None:
    progress, classes = opened.progress(), len(opened.classes())
    print(f"{opened.path}: {progress.total:,} candidates of {classes:,} classes, {progress.decided:,} decided")
    if copies := int((~opened.copies.shown).sum()):
        print_fields(("copies", f"{copies:,} of these are of copies of an image: asked once, answered for all copies"))
    if not opened.folder.random and "test" in opened.splits():
        chose = "the model chose which labels of test it asks about. Deciding them mends the table;"
        command = f"labelgap review {shlex.quote(str(opened.path))} --split test --random 300"
        print_fields(("test", [chose, f"an accuracy needs random images: {command}"]))
    print_fields(("open", address), ("stop", f"Ctrl-C; every decision is saved in {opened.store.path}"))


def _print_end(opened: Review) -> None:
    from labelgap.review.estimates import describe_estimate

    progress = opened.progress()
    print(f"{progress.decided:,} of {progress.total:,} decided, {progress.found:,} missing labels found")
    print_fields(("missing", describe_estimate(opened.estimate())), _next(opened))


def _next(opened: Review) -> Field:
    folder = shlex.quote(str(opened.path))
    evaluate = f"labelgap evaluate RUN {folder}    what a run is worth on these images"
    return "next", [*([evaluate] if opened.folder.random else []), f"labelgap apply {folder} --out better.csv"]


def _print_summary(opened: Review, as_json: bool) -> None:
    from labelgap.review.estimates import describe_estimate
    from labelgap.review.team import summarize_team

    progress, estimate, team = opened.progress(), opened.estimate(), summarize_team(opened.store)
    if as_json:
        reviewers = {person.name: person.decided for person in team.people if person.decided}
        found = estimate and {**asdict(estimate), "missing": estimate.missing, "remaining": estimate.remaining}
        classes = [asdict(row) for row in opened.classes()]
        summary = {"format": 1, "progress": asdict(progress), "reviewers": reviewers, **team.to_json()}
        return print_json({**summary, "estimate": found, "classes": classes})
    suspicious = f"{progress.wrong_decided:,} of {progress.wrong:,} suspicious labels decided"
    print_fields(
        ("review", opened.path),
        ("decided", f'{progress.decided:,} of {progress.total:,}; {progress.unsure:,} answered "can\'t tell"'),
        ("found", f"{progress.found:,} missing labels"),
        ("wrong", f"{suspicious}, {progress.corrected:,} corrected" if progress.wrong else None),
        *team.lines(),
        ("missing", describe_estimate(estimate)),
        _next(opened) if progress.decided or progress.wrong_decided else ("", None),
    )


def _export(opened: Review, to: str, options: ReviewOptions) -> None:
    from labelgap.review.external_tools import export_candidates

    if options.out is None:
        raise InputError("--export-to needs a file: --out candidates.json")
    written = export_candidates(opened, to, options.out, prefix=options.prefix, force=options.force)
    print_fields(
        ("wrote", " and ".join(map(str, written.paths))),
        ("open", written.hint),
        ("import", f"labelgap review {opened.path} --import-from {to} --in FILE"),
    )


def _import(opened: Review, source: str, file: Path | None, author: str) -> None:
    from labelgap.review.external_tools import import_decisions

    if file is None:
        raise InputError("--import-from needs a file: --in decisions.json")
    result = import_decisions(opened, source, file, author)
    ignored = f"{result.withdrawn:,} labels that are known here and missing from the file"
    print_fields(
        ("read", f"{file}: {result.images:,} images, {result.same:,} labels agree with what is known"),
        ("decided", f"{result.decided:,} labels, by {author}"),
        ("ignored", ignored if result.withdrawn else None),
    )
