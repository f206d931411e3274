"""The pages: templates, static files, and the values that each template shows."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from numpy.typing import NDArray

import labelgap.reporting
from labelgap.core.text import indefinite_article, pluralize
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.reporting.formatting import single_line
from labelgap.review import queues
from labelgap.review.additions import FEWEST_EXAMPLES
from labelgap.review.candidates import WRONG
from labelgap.review.estimates import MIN_RANDOM, SampleEstimate, describe_estimate, describe_next
from labelgap.review.progress import ClassProgress
from labelgap.review.queues import Feed, FeedPage, paginate
from labelgap.review.session import Review
from labelgap.review.store import ASKED, SECOND
from labelgap.review.team import describe_agreement, describe_kappa, measure_agreement
from labelgap.review.wrong_labels import wrong_queue

PAGE_SIZES: Final = (60, 240, 2000)
MOST_EXAMPLES: Final = 20  # how many examples of an added class a person is asked for at most
_MAX_ABSENT: Final = 12
_CHART_POINTS: Final = 160
_DISAGREEMENTS: Final = 60  # on a page
_FOLDER: Final = Path(__file__).parent
_MEDIA_TYPES: Final = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


@lru_cache(maxsize=1)
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"single_line": single_line, "pluralize": pluralize, "rounded": _round}
    environment.filters["article"] = indefinite_article
    environment.filters["thousands"] = lambda number: f"{number:,}"
    return environment


def render(template: str, **context: Any) -> str:
    """Render a template; every value is escaped."""
    return _environment().get_template(template).render(static=static_version(), **context)


@lru_cache(maxsize=1)
def static_files() -> dict[str, tuple[bytes, str]]:
    """Return the scripts and style sheets by name, with their media types; the style is that of the reports."""
    paths = [*(_FOLDER / "static").iterdir(), Path(labelgap.reporting.__path__[0]) / "templates" / "style.css"]
    return {path.name: (path.read_bytes(), _MEDIA_TYPES[path.suffix]) for path in paths if path.suffix in _MEDIA_TYPES}


@lru_cache(maxsize=1)
def static_version() -> str:
    """Return a hash of the static files; it is part of their addresses, so that browsers can cache them."""
    digest = hashlib.blake2b(digest_size=6)
    for name, (data, _) in sorted(static_files().items()):
        digest.update(name.encode() + data)
    return digest.hexdigest()


def make_tile(review: Review, number: int, asked: str = "other") -> dict[str, Any]:
    """Return a candidate as a page shows it; value, who, score and observed are empty where there is none."""
    columns, current = review.candidates.columns, review.current
    key, image = review.candidates.key(number), int(columns.image[number])
    decided = bool(current.decided[number]) and asked != SECOND
    return {
        **key._asdict(),
        "id": review.candidates.id(number),
        "image_id": _image_id(review, image),
        "value": str(int(current.value[number])) if decided else "",
        "version": int(current.version[number]) if decided else 0,
        "who": current.reviewers[current.reviewer[number]] if decided else "",
        "score": _format_percent(float(columns.score[number])),
        "said": _format_prior(review, key.image, key.class_name),
        "observed": str(int(columns.observed[number])) if columns.kind[number] == WRONG else "",
        "copies": [copy.image for copy in review.copies_of(number)],
        "asked": asked,
    }


def overview_context(review: Review, reviewer: str) -> dict[str, Any]:
    """Return the list of classes, those first where the next minutes of a person bring most."""
    rates = queues.class_rates(review, reviewer)
    classes = _order_classes(review, rates)
    return {
        "classes": [row for row in classes if row.total],
        "wrong": sorted((row for row in classes if row.wrong), key=lambda row: -row.wrong),
        "rates": rates.tolist() if rates.any() else [],
        "estimates": _estimates(review),
        "copies": int((~review.copies.shown).sum()),
        "first_image": _image_id(review, _first_open(review, review.image_order)),
        "next": _next_class(classes, None),
    }


def _estimates(review: Review) -> tuple[SampleEstimate | None, ...]:
    estimates, own = review.estimates(), len(review.folder.classes)
    rows = [row for row in review.classes() if row.total and row.number < own]
    if estimates.total is None or not all(estimates.by_class[row.number] for row in rows):
        return ()
    return estimates.by_class


def grid_context(
    review: Review,
    class_number: int,
    reviewer: str,
    *,
    wrong: bool,
    decided: bool,
    skip: int,
    size: int,
    select: Callable[[Feed, int, int], FeedPage] = paginate,
    near: NDArray[np.int64] | None = None,
) -> dict[str, Any]:
    """Return one page of a class: open or decided candidates of missing or wrong labels, which ``select`` chooses."""
    review.current.refresh()
    feed = queues.class_feed(review, class_number, wrong, near)
    if decided:
        feed = Feed.of(queues.decided_rows(review, class_number, wrong), "other", feed.ranking)
    rates = queues.class_rates(review, reviewer)
    classes = _order_classes(review, rates)
    return {
        **feed_context(review, feed, skip, size, select),
        "class_number": class_number,
        "class_name": review.candidates.classes[class_number],
        "counts": next((row for row in classes if row.number == class_number), None),
        "wrong": wrong,
        "decided": decided,
        "total": len(review.listed(class_number, wrong)),
        "next": _next_class(classes, class_number, wrong),
        "better": None if wrong else _better_class(classes, class_number, rates),
    }


def feed_context(
    review: Review, feed: Feed, skip: int, size: int, select: Callable[[Feed, int, int], FeedPage] = paginate
) -> dict[str, Any]:
    """Return one page of a feed, after as many as to ``skip``; ``select`` chooses what is on it."""
    selected = select(feed, skip, size)
    shown = zip(selected.feed.numbers.tolist(), selected.feed.asked.tolist(), strict=True)
    return {
        "skip": selected.skip,
        "more": selected.total > selected.skip + len(selected.feed),
        "number": selected.skip // size + 1,
        "pages": max(1, -(-selected.total // size)),
        "held": selected.held,
        "size": size,
        "sizes": PAGE_SIZES,
        "ranking": feed.ranking,
        "tiles": [make_tile(review, number, ASKED[asked]) for number, asked in shown],
    }


def image_context(review: Review, image: int, held: Sequence[int] | NDArray[np.int64] = ()) -> dict[str, Any]:
    """Return an image with all its candidates, the one before, and the next with something open and not ``held``."""
    review.current.refresh()
    columns, order = review.candidates.columns, review.image_order
    position = int(np.flatnonzero(order == image)[0])
    split, name = columns.images[image]
    asked = "random" if review.folder.random else "other"
    return {
        "image_id": _image_id(review, image),
        "image": name,
        "split": split,
        "known": known_labels(review, image),
        "tiles": [make_tile(review, int(number), asked) for number in review.of_image(image)],
        "number": position + 1,
        "images": len(order),
        "previous": _image_id(review, int(order[position - 1]) if position else None),
        "next": _image_id(review, _first_open(review, order[position + 1 :], held)),
    }


def _first_open(review: Review, images: NDArray[np.int64], held: Sequence[int] | NDArray[np.int64] = ()) -> int | None:
    """Return the first of some images of which a candidate is open and not held, else the first; None of no images."""
    is_open = review.is_open()
    is_open[np.asarray(held, dtype=np.int64)] = False
    chosen = images[np.isin(images, review.candidates.columns.image[is_open])]
    return int(chosen[0]) if len(chosen) else int(images[0]) if len(images) else None


def known_labels(review: Review, image: int) -> dict[str, Any]:
    """Return the observed labels of an image: present classes, some absent ones, the number of unknown ones."""
    location = review.locate(image)
    if location is None:
        return {"present": [], "absent": [], "more_absent": 0, "unknown": 0}
    split, row = location
    codes, names = split.labels.batch([row]).numpy()[0], np.array(split.labels.classes)
    present, absent = (names[codes == state].tolist() for state in (PRESENT, ABSENT))
    more, unknown = max(len(absent) - _MAX_ABSENT, 0), int((codes == UNKNOWN).sum())
    return {"present": present, "absent": absent[:_MAX_ABSENT], "more_absent": more, "unknown": unknown}


def _format_prior(review: Review, image: str, class_name: str) -> str:
    """Return what the sources of a prior say of a label; "" where that is nothing. Pages show it on request only."""
    if not {**review.folder.recipe.get("options", {}), **review.folder.options}.get("prior"):
        return ""
    prior = review.folder.data.prior
    said = {} if prior is None else prior.of_label(image, class_name)
    return ", ".join(f"{source} {_format_percent(value)}" for source, value in said.items())


def _format_percent(score: float) -> str:
    if math.isnan(score):
        return ""
    return f"{int(100 * score)} %" if score >= 0.01 else "< 1 %"


def _round(number: float) -> str:
    """Return an estimated number as text; one that is not 0 does not read as 0."""
    return f"{number:,.0f}" if number >= 0.95 else "< 1" if number >= 0.05 else "0"


def _image_id(review: Review, image: int | None) -> str:
    return "" if image is None else f"{int(review.candidates.columns.image_ids[image]):016x}"


def _order_classes(review: Review, rates: NDArray[np.float64]) -> list[ClassProgress]:
    """Return the classes, decided ones last; those with the most finds per minute, then most candidates, first."""
    left = [(row.total - row.decided, row) for row in review.classes()]
    return [row for _, row in sorted(left, key=lambda pair: (pair[0] == 0, -rates[pair[1].number], -pair[0]))]


def _next_class(classes: list[ClassProgress], current: int | None, wrong: bool = False) -> ClassProgress | None:
    """Return the class to continue with: the first that is not finished."""
    if wrong:
        left = [row for row in classes if row.wrong > row.wrong_decided and row.number != current]
        return max(left, key=lambda row: row.wrong - row.wrong_decided, default=None)
    return next((row for row in classes if row.total > row.decided and row.number != current), None)


def _better_class(classes: list[ClassProgress], current: int, rates: NDArray[np.float64]) -> dict[str, Any] | None:
    """Return the class to change to where the current one disappoints: twice as many finds are likely there."""
    here = next((row for row in classes if row.number == current), None)
    other = _next_class(classes, current)
    if here is None or other is None or here.decided < MIN_RANDOM:
        return None
    here_rate, rate = float(rates[current]), float(rates[other.number])
    if rate < 2 * max(here_rate, 0.5):
        return None
    return {"number": other.number, "name": other.name, "rate": rate, "here": here_rate}


def counters_context(review: Review, class_number: int | None, reviewer: str) -> dict[str, Any]:
    """Return what the head of every page shows, made anew for every decision."""
    progress, speed = review.progress(), review.current.per_minute(reviewer)
    return {
        "progress": progress,
        "share": progress.decided / max(progress.total, 1),
        "speed": None if speed is None else round(speed),
        "examples": added_context(review, class_number),
    }


def panel_context(review: Review, class_number: int | None) -> dict[str, Any]:
    """Return what the side panel of every page shows: labels found, estimate of missing labels, people."""
    found: dict[str, Any] = review.cached(f"panel {class_number}", lambda: _panel(review, class_number))
    return found


def _panel(review: Review, class_number: int | None) -> dict[str, Any]:
    estimate, queue = review.estimate(), wrong_queue(review)
    compared = estimate is not None and estimate.has_interval and not review.folder.random
    share = estimate.missing[0] / estimate.unknown if estimate is not None and compared else None
    return {
        "chart": chart_context(review.current.found_curve(), share),
        "estimates": _estimate_sentences(review, estimate, class_number),
        "wrong_labels": queue.summary if class_number is None and queue and queue.total.answered else "",
        "ranking_problem": "" if review.rankings is None else review.rankings.problem,
        **review.cached("team", lambda: _team(review)),
    }


def _team(review: Review) -> dict[str, Any]:
    """Return who decided how many and how fast, how well people agree, and how many disagreements are open."""
    pairs, current = review.opinions.pairs(), review.current
    return {
        "people": [(name, count, current.per_minute(name)) for name, count in current.count_by_reviewer()],
        "agreement": describe_agreement(measure_agreement(pairs).total) if pairs else "",
        "disagreements": sum(pair.is_open for pair in pairs),
    }


def _estimate_sentences(review: Review, estimate: SampleEstimate | None, class_number: int | None) -> list[str]:
    """Return the estimates of missing labels as sentences: of the class that is shown, and of all classes."""
    if class_number is None:
        return [describe_estimate(estimate)]
    name, own = review.candidates.classes[class_number], review.estimate(class_number)
    if own is None:
        waiting = [f"{name}: how many show it is estimated after {MIN_RANDOM} random answers."]
        return [*(waiting if class_number >= len(review.folder.classes) else ()), describe_estimate(estimate)]
    sentences = [describe_estimate(own, name), describe_next(*queues.expected_next(review, class_number))]
    if estimate is not None and estimate.classes > 1:
        sentences.append(describe_estimate(estimate))
    return [sentence for sentence in sentences if sentence]


def chart_context(found: NDArray[np.int64], share: float | None = None) -> dict[str, Any] | None:
    """Return the chart of found against reviewed labels, in units of its axes; None before the first decision."""
    if not len(found):
        return None
    reviewed, most = len(found), int(found[-1])
    at = np.unique(np.linspace(0, reviewed, min(reviewed, _CHART_POINTS) + 1).astype(np.int64))
    values = np.concatenate([[0], found])[at]
    return {
        "reviewed": reviewed,
        "found": most,
        "right": _axis_end(reviewed),
        "top": _axis_end(max(most, 1)),
        "points": list(zip(at.tolist(), values.tolist(), strict=True)),
        "random": None if share is None else share * reviewed,
    }


def _axis_end(value: int) -> int:
    step = int(10 ** int(math.log10(max(value, 2))))
    return next(factor * step for factor in (1, 2, 3, 4, 6, 8, 10) if factor * step >= max(value, 2))


def added_context(review: Review, class_number: int | None) -> dict[str, Any] | None:
    """Return how many examples of an added class there are, and how many are wanted; None for other classes."""
    if class_number is None or class_number < len(review.folder.classes):
        return None
    return {"examples": queues.count_present(review, class_number), "fewest": FEWEST_EXAMPLES, "most": MOST_EXAMPLES}


def near_context(review: Review, image: int | None) -> tuple[NDArray[np.int64] | None, dict[str, Any] | None]:
    """Return the places of images by similarity to one, and what the page says of them."""
    if image is None:
        return None, None
    positions, name = review.similar.positions(image), _image_id(review, image)
    return positions, {"image_id": name, "ready": positions is not None, "problem": review.similar.problem}


def settle_context(review: Review, skip: int) -> dict[str, Any]:
    """Return the open disagreements, a page of them, and the agreement by class and by people; any answer settles."""
    pairs = review.opinions.pairs()
    tiles = []
    for pair in (pair for pair in pairs if pair.is_open):
        number = review.candidates.number_of(pair.first.key)
        if number is not None:
            answers = [(each.reviewer, each.answer) for each in (pair.first, pair.second)]
            tiles.append({**make_tile(review, number), "value": "", "who": "", "answers": answers})
    agreement = measure_agreement(pairs)
    named = [*agreement.by_class.items(), *((" and ".join(each), found) for each, found in agreement.by_people.items())]
    return {
        "tiles": tiles[skip : skip + _DISAGREEMENTS],
        "skip": skip,
        "more": len(tiles) > skip + _DISAGREEMENTS,
        "agreement": describe_agreement(agreement.total),
        "rows": [(name, found.pairs, found.agreed, found.unsure, describe_kappa(found)) for name, found in named],
    }
