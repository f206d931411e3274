r"""What to ask next: feeds of open candidates, the aims of a review, and a plan of the next minutes.

A random slot at an unpredictable place among every ten of a class's feed holds the first label of the class's random
draw that is still open. So each random answer is about a label that was drawn uniformly from those that were open,
whatever was decided before and in whatever order.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelgap.audit.live import Aim, learning_value
from labelgap.core.text import pluralize
from labelgap.labels.codes import PRESENT
from labelgap.metrics.label_model import round_to_sum, to_log_odds
from labelgap.review.acceptance import AcceptedLabels, measure_machine
from labelgap.review.additions import FEWEST_EXAMPLES
from labelgap.review.candidates import MISSING, RANDOM_INTERVAL, WRONG
from labelgap.review.estimates import NEXT
from labelgap.review.session import Review
from labelgap.review.store import ASKED, DecisionEvent
from labelgap.review.team import answer_seconds
from labelgap.training.auto import FEW_TAGGED

PageAim = Aim | Literal["machine"]
# The aims in words, in the order in which they are offered, and what is asked for each.
AIM_TEXT: Final[dict[PageAim, tuple[str, str]]] = {
    "missing": ("find the missing labels", "the most probable first, one class at a time"),
    "classifier": ("make the classifier better", "what the model is least sure of, every class in turn"),
    "random": ("measure", "at random: how many are still missing"),
    "machine": ("let the machine finish", "the most certain, at random: until the others can be accepted unseen"),
}
USUAL_SECONDS: Final = 2.0  # seconds of an answer of a person of whom nothing is known
PRIOR_ANSWERS: Final = 20.0  # the weight of what is known otherwise: that of so many answers
STEP: Final = 20  # a plan changes the class after so many answers at the earliest
MINUTES: Final = 10
_SHOWN: Final = 5
_LIMIT: Final = 200  # candidates for the classifier before there is a ranking for that aim
_LITTLE: Final = 0.5  # labels that are still missing where the estimate is rounded to 0

Array = NDArray[np.float64]
Indices = NDArray[np.integer[Any]]
Numbers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Feed:
    """Open candidates in order."""

    numbers: Numbers  # (n,) of the candidates
    asked: NDArray[np.int8]  # (n,) as what each is asked, an index into `ASKED`
    ranking: int  # number of the ranking that they are in the order of

    @classmethod
    def of(cls, numbers: Numbers, kind: str, ranking: int) -> Feed:
        """Return a feed of candidates that are all asked as the same."""
        return cls(numbers, np.full(len(numbers), ASKED.index(kind), dtype=np.int8), ranking)

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, part: slice | NDArray[np.bool_] | Numbers) -> Feed:
        return Feed(self.numbers[part], self.asked[part], self.ranking)


@dataclass(frozen=True, eq=False)
class FeedPage:
    """A page of a feed."""

    feed: Feed  # what the page shows
    skip: int  # how many are left out before it
    total: int  # how many there are
    held: int = 0  # how many open candidates are left out because others look at them


def paginate(feed: Feed, skip: int, size: int) -> FeedPage:
    """Return the page of a feed that leaves out so many, the first one where there are no more."""
    skip = skip if skip < len(feed) else 0
    return FeedPage(feed[skip : skip + size], skip, len(feed))


def mix(feed: Feed, others: Feed, ids: NDArray[np.uint64]) -> Feed:
    """Return a feed with other candidates in slots of their own, one in ten, by their ``ids``; what is in both comes
    once.

    Example:
        >>> ranked, drawn = Feed.of(np.arange(12), "missing", 0), Feed.of(np.array([12, 13]), "random", 0)
        >>> mix(ranked, drawn, np.array([0] * 12 + [1, 0], dtype=np.uint64)).numbers.tolist()
        [0, 12, 1, 2, 3, 4, 5, 6, 7, 8, 13, 9, 10, 11]
    """
    offset = (ids[others.numbers] % np.uint64(RANDOM_INTERVAL)).astype(np.int64)
    slots = 2 * (RANDOM_INTERVAL * np.arange(len(others)) + offset)
    order = np.argsort(np.concatenate([2 * np.arange(len(feed)) + 1, slots]), kind="stable")
    numbers = np.concatenate([feed.numbers, others.numbers])[order]
    first = np.sort(np.unique(numbers, return_index=True)[1])
    return Feed(numbers, np.concatenate([feed.asked, others.asked])[order], feed.ranking)[first]


def has_aims(review: Review) -> bool:
    """Return whether there is something to choose: a model has ranked candidates."""
    columns = review.candidates.columns
    return bool(((columns.kind == MISSING) & ~np.isnan(columns.score)).any())


def few_tagged(review: Review) -> float | None:
    """Return the share of images with a known present if it is so small that the aim "classifier" teaches more."""
    about = review.candidates.metadata
    share = None if about.get("tagged_images") is None else about["tagged_images"] / max(about["images"], 1)
    return share if share is not None and share < FEW_TAGGED and has_aims(review) else None


def class_feed(review: Review, class_number: int, wrong: bool = False, near: Numbers | None = None) -> Feed:
    """Return the open candidates of a class, one for all copies, as they are asked or by places of the M images."""
    rows, columns = review.listed(class_number, wrong), review.candidates.columns
    with review.current.lock:
        rows = rows[~review.current.decided[rows]]
    ranking = None if lacks_examples(review, class_number) else review.ranking()
    number = review.audit_ranking if ranking is None else ranking.number
    if near is not None:
        return Feed.of(rows[np.argsort(near[columns.image[rows]], kind="stable")], "other", number)
    if wrong:
        return Feed.of(rows, "wrong", review.audit_ranking)
    position = columns.class_rank if ranking is None else ranking.position
    ranked, drawn = rows[columns.kind[rows] == MISSING], rows[columns.random_rank[rows] > 0]
    ranked = ranked[np.lexsort((columns.class_rank[ranked], position[ranked]))]
    drawn = drawn[np.argsort(columns.random_rank[drawn], kind="stable")]
    return mix(Feed.of(ranked, "missing", number), Feed.of(drawn, "random", number), columns.ids)


def lacks_examples(review: Review, class_number: int) -> bool:
    """Return whether too few examples of an added class are known to rank it: its order is random until then."""
    return class_number >= len(review.folder.classes) and count_present(review, class_number) < FEWEST_EXAMPLES


def count_present(review: Review, class_number: int) -> int:
    """Return how many candidates of a class are decided to be present."""
    rows = review.listed(class_number)
    with review.current.lock:
        return int((review.current.decided[rows] & (review.current.value[rows] == PRESENT)).sum())


def decided_rows(review: Review, class_number: int, wrong: bool = False) -> Numbers:
    """Return the decided candidates of a class, the newest decision first."""
    rows = review.listed(class_number, wrong)
    with review.current.lock:
        rows = rows[review.current.decided[rows]]
        return rows[np.argsort(-review.current.version[rows], kind="stable")]


def aim_feed(review: Review, aim: PageAim, class_number: int | None = None) -> Feed:
    """Return the open candidates for an aim other than "missing" in their order, of all classes or of one."""
    if aim == "machine":
        asked = np.concatenate([each.asked for each in measured_machine(review)])
        if class_number is not None:
            asked = asked[review.candidates.columns.class_number[asked] == class_number]
        return Feed.of(asked, "missing", review.audit_ranking)
    columns = review.candidates.columns
    is_open = review.is_open() & (columns.kind != WRONG)
    if class_number is not None:
        is_open &= columns.class_number == class_number
    rows = np.flatnonzero(is_open)
    if aim == "random":
        drawn = rows[columns.random_rank[rows] > 0]
        return Feed.of(drawn[_random_order(review, drawn)], "random", review.audit_ranking)
    rows = rows[(columns.kind[rows] == MISSING) & ~np.isnan(columns.score[rows])]
    ranking = review.ranking("classifier")
    if ranking is None:
        return Feed.of(rows[_uncertain_order(review, rows)][:_LIMIT], "classifier", review.audit_ranking)
    ranked = rows[~np.isnan(ranking.probability[rows])]
    return Feed.of(ranked[np.argsort(ranking.position[ranked], kind="stable")], "classifier", ranking.number)


def measured_machine(review: Review) -> list[AcceptedLabels]:
    """Return what may be accepted of the machine's labels by now, and what is asked for more."""
    found: list[AcceptedLabels] = review.cached("machine", partial(measure_machine, review))
    return found


def _random_order(review: Review, rows: Numbers) -> Numbers:
    """Return the order of the random draw: each class in its own order, all classes equally far at any time."""
    columns = review.candidates.columns
    size = np.bincount(columns.class_number[columns.random_rank > 0], minlength=len(review.candidates.classes))
    share = (columns.random_rank[rows] - 0.5) / size[columns.class_number[rows]]
    return np.lexsort((columns.ids[rows], share))


def _uncertain_order(review: Review, rows: Numbers) -> Numbers:
    """Return the order without a ranking: one candidate of every class in turn, the most uncertain first."""
    columns = review.candidates.columns
    value = learning_value(to_log_odds(columns.score[rows].astype(np.float64)))
    group = columns.class_number[rows]
    order = np.lexsort((columns.ids[rows], -value, group))
    turn = np.empty(len(rows), dtype=np.int64)
    turn[order] = np.arange(len(rows)) - np.searchsorted(group[order], group[order])
    return np.lexsort((-value, turn))


class AnswerSpeed(NamedTuple):
    """How fast a person answers."""

    answers: int  # how many answers were timed
    seconds: float  # how long an answer takes
    by_class: Array  # (K,) seconds of an answer of each class


class PlanStep(NamedTuple):
    """Answers to give in a row."""

    class_number: int
    answers: int  # how many
    finds: float  # how many missing labels they probably find
    minutes: float  # how long they take


def answer_speed(events: Iterable[DecisionEvent], reviewer: str, classes: Mapping[str, int]) -> AnswerSpeed:
    r"""Measure how fast a person answers.

    A person who has answered little is taken to be as fast as ``USUAL_SECONDS``, and a class as fast as its person
    elsewhere: with :math:`n` answers in :math:`T` seconds, of which :math:`n_k` in :math:`T_k` seconds are of class
    :math:`k`,

    .. math:: t = \frac{T + m t_0}{n + m}, \qquad t_k = \frac{T_k + m t}{n_k + m}
    """
    own = [event for event in events if event.reviewer == reviewer and event.is_answer]
    counts, seconds = np.zeros(len(classes)), np.zeros(len(classes))
    for event, step in zip(own[1:], answer_seconds([event.time for event in own]), strict=True):
        number = classes.get(event.key.class_name)
        if number is not None and step is not None:
            counts[number] += 1
            seconds[number] += step
    mean = float((seconds.sum() + PRIOR_ANSWERS * USUAL_SECONDS) / (counts.sum() + PRIOR_ANSWERS))
    return AnswerSpeed(int(counts.sum()), mean, (seconds + PRIOR_ANSWERS * mean) / (counts + PRIOR_ANSWERS))


def finds_per_minute(class_number: Indices, probability: Array, seconds: Array, minutes: float = 1.0) -> Array:
    """Return how many finds per minute each class promises over the next minutes, ``(K,)``.

    ``class_number`` and ``probability`` are of the open candidates in the order shown, ``seconds`` of an answer of each
    class.
    """
    order = np.argsort(class_number, kind="stable")
    group = np.asarray(class_number)[order]
    turn = np.arange(len(group)) - np.searchsorted(group, np.arange(len(seconds)))[group]
    share = np.clip(60 * minutes / seconds[group] - turn, 0, 1)  # of the last candidate only a part fits
    sums = np.bincount(group, weights=share * probability[order], minlength=len(seconds))
    return np.asarray(sums / minutes, dtype=np.float64)


def next_minutes(
    minutes: float, class_number: Indices, probability: Array, seconds: Array, step: int = STEP
) -> list[PlanStep]:
    """Plan the next minutes: always ``step`` candidates of the class that promises the most finds per minute."""
    by_class = {number: probability[class_number == number] for number in np.unique(class_number).tolist()}

    def block(number: int, start: int) -> tuple[float, int, int]:  # the finds per second, to be taken most first
        return -float(by_class[number][start : start + step].mean() / seconds[number]), number, start

    heap = [block(number, 0) for number in by_class]
    heapq.heapify(heap)
    left, taken = 60.0 * minutes, dict[int, int]()
    while heap and left > 0:
        rate, number, start = heapq.heappop(heap)
        count = min(step, len(by_class[number]) - start, int(left // seconds[number]))
        if rate >= 0 or count == 0:
            continue
        left -= count * float(seconds[number])
        taken[number] = start + count
        if start + step < len(by_class[number]):
            heapq.heappush(heap, block(number, start + step))
    steps = [
        PlanStep(number, count, float(by_class[number][:count].sum()), count * float(seconds[number]) / 60)
        for number, count in taken.items()
    ]
    return sorted(steps, key=lambda each: (-each.finds / each.minutes, each.class_number))


def aims_context(review: Review, aim: PageAim) -> list[dict[str, Any]]:
    """Return the aims to choose from, the chosen one marked, with what each has brought; empty without a choice."""
    if not has_aims(review):
        return []
    current, estimate = review.current, review.estimate()
    with current.lock:
        rows = current.decided & review.copies.shown & (review.candidates.columns.kind != WRONG)
        asked, present = current.asked[rows], current.value[rows] == PRESENT
    asked[asked == ASKED.index("other")] = ASKED.index("missing")  # e.g. image by image
    width = "no interval yet"
    if estimate is not None and estimate.has_interval:
        width = f"± {pluralize(math.ceil((estimate.high - estimate.low) / 2), 'label')}"
    aims = list[dict[str, Any]]()
    machine = measured_machine(review)
    accepted, needed = sum(len(each.accepted) for each in machine), sum(len(each.asked) for each in machine)
    more = f"about {pluralize(needed, 'answer')} for more" if needed else "no class has enough labels left for more"
    for each, (name, way) in AIM_TEXT.items():
        own = asked == (-1 if each == "machine" else ASKED.index(each))
        answers, found = int(own.sum()), int((own & present).sum())
        brought = {
            "missing": f"{pluralize(answers, 'answer')}, {found:,} found",
            "classifier": f"{pluralize(answers, 'answer')} for the classifier, {found:,} found",
            "random": f"{pluralize(answers, 'random answer')}: {width}",
            "machine": f"{pluralize(accepted, 'label')} to accept; {more}",
        }
        told = brought[each] if answers or each == "machine" else "no answers yet"
        aims.append({"aim": each, "name": name, "way": way, "brought": told, "chosen": each == aim})
    return aims


def plan_context(review: Review, reviewer: str) -> dict[str, Any]:
    """Return a plan of the next minutes of a person."""
    classes, speed = review.candidates.classes, _speed(review, reviewer)
    steps = next_minutes(MINUTES, *_open_candidates(review), speed.by_class)
    rates = class_rates(review, reviewer)
    steps.sort(key=lambda step: -rates[step.class_number])  # as the list of classes
    finds = round_to_sum(np.array([step.finds for step in steps])).tolist()
    rows = [
        {"number": step.class_number, "name": classes[step.class_number], "answers": step.answers, "finds": found}
        for step, found in zip(steps, finds, strict=True)
    ]
    return {
        "minutes": MINUTES,
        "per_minute": round(60 / speed.seconds),
        "is_own": speed.answers > 0,
        "steps": rows[:_SHOWN],
        "more": rows[_SHOWN:],
        "answers": sum(step.answers for step in steps),
        "finds": sum(finds),
    }


def class_rates(review: Review, reviewer: str) -> NDArray[np.float64]:
    """Return how many finds per minute each class promises a person, ``(K,)``, as far as a step of the plan goes."""
    speed = _speed(review, reviewer)
    return finds_per_minute(*_open_candidates(review), speed.by_class, STEP * speed.seconds / 60)


def expected_next(review: Review, class_number: int, count: int = NEXT) -> tuple[int, float | None]:
    """Return how many candidates of a class come next, and how many of them are present; None without a model."""
    first = class_feed(review, class_number).numbers[:count]
    expected = float(_probability(review)[first].astype(np.float64).sum())
    return len(first), None if np.isnan(expected) else expected


def _probability(review: Review) -> NDArray[np.float64]:
    """Return ``(C,)`` how probable the candidates are, NaN without a model; in sum what a class still misses."""
    estimates, columns, ranking = review.estimates(), review.candidates.columns, review.ranking()
    if ranking is None:
        return estimates.probability
    by_class = estimates.by_class
    probability = np.where(np.isnan(ranking.probability), estimates.probability, ranking.probability)
    with review.current.lock:
        is_open = ~review.current.decided & (columns.kind != WRONG)
    promised = np.bincount(columns.class_number[is_open], np.nan_to_num(probability[is_open]), len(by_class))
    most = np.array([np.inf if each is None else max(each.still_missing, _LITTLE) for each in by_class])
    return probability * np.minimum(1, most / np.maximum(promised, _LITTLE))[columns.class_number]


def _speed(review: Review, reviewer: str) -> AnswerSpeed:
    numbers = {name: number for number, name in enumerate(review.candidates.classes)}
    review.current.refresh()
    return answer_speed(list(review.current.recent), reviewer, numbers)


def _open_candidates(review: Review) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Return class numbers and probabilities of the open candidates, in the order in which they are asked."""
    columns, ranking, probability = review.candidates.columns, review.ranking(), _probability(review)
    probability = np.where(np.isnan(probability), columns.score, probability)
    is_open = review.is_open() & (columns.kind == MISSING)
    if ranking is None:
        rows = review.candidates.order[0]
        rows = rows[is_open[rows]]
    else:
        rows = np.flatnonzero(is_open)
        rows = rows[np.lexsort((ranking.position[rows], columns.class_number[rows]))]
    return columns.class_number[rows], np.nan_to_num(probability[rows])
