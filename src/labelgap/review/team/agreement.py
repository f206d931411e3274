r"""How well people agree who answered the same question, each without seeing the other's answer.

A share of the labels is asked of two people. Cohen's :math:`\kappa` compares how often they agree, :math:`p_o`, with
how often they would if each answered at random with his own share of yes, :math:`p_e`:

.. math:: \kappa = \frac{p_o - p_e}{1 - p_e}

1 is perfect agreement, 0 is that of chance. It is undefined where nobody ever answers differently, e.g. always no.

Reference: J. Cohen, "A coefficient of agreement for nominal scales", Educational and Psychological Measurement, 1960.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from labelgap.labels.codes import PRESENT, UNKNOWN
from labelgap.review.store.events import SECOND, DecisionEvent

MIN_PAIRS: Final = 20
"""Pairs from which an interval is given."""
_DRAWS: Final = 4000
_PRIOR: Final = 0.5
_Key = TypeVar("_Key", str, tuple[str, str])


@dataclass(frozen=True)
class OpinionPair:
    """A label that two people answered independently.

    Attributes:
        first: the decision that was in force when the second person was asked.
        second: the second opinion.
        settled: the decision on the label that was made after both; None as long as there is none.
    """

    first: DecisionEvent
    second: DecisionEvent
    settled: DecisionEvent | None

    @property
    def agrees(self) -> bool:
        """Whether both gave the same answer."""
        return self.first.value == self.second.value

    @property
    def is_open(self) -> bool:
        """Whether the two answers differ and nobody has decided since."""
        return not self.agrees and self.settled is None

    @property
    def people(self) -> tuple[str, str]:
        """The two names, sorted."""
        low, high = sorted((self.first.reviewer, self.second.reviewer))
        return low, high


def opinion_pairs(events: Iterable[DecisionEvent]) -> list[OpinionPair]:
    """Return the pairs of answers to one label.

    Args:
        events: all events about the label, in order. What was undone does not count, nobody is his own second, and of
            several second opinions of one person only the newest counts: the person changed the answer.
    """
    events = list(events)
    undone = {event.undoes for event in events}
    valid = [event for event in events if event.undoes is None and event.id not in undone]
    decisions = [event for event in valid if event.accepted and event.kind != SECOND]
    newest = {event.reviewer: event for event in valid if event.kind == SECOND}
    pairs = []
    for second in sorted(newest.values(), key=lambda event: event.id):
        first = next((event for event in reversed(decisions) if event.id < second.id), None)
        settled = next((event for event in reversed(decisions) if event.id > second.id), None)
        if first is not None and first.reviewer != second.reviewer:
            pairs.append(OpinionPair(first, second, settled))
    return pairs


@dataclass(frozen=True)
class Agreement:
    """How well two answers to the same question agree.

    Attributes:
        pairs: questions that both answered with yes or no.
        agreed: of these, with the same answer.
        unsure: further questions to which one or both answered "can't tell".
        kappa: Cohen's κ; None where it is undefined.
        interval: of κ, 95 %; None with fewer than 20 pairs, and where κ is undefined.
    """

    pairs: int
    agreed: int
    unsure: int
    kappa: float | None
    interval: tuple[float, float] | None


@dataclass(frozen=True)
class TeamAgreement:
    """The agreement of a team.

    Attributes:
        total: of first and second answers, over all labels.
        by_class: of the classes that two people answered.
        by_people: of every two people that answered the same labels; their names are sorted.
    """

    total: Agreement
    by_class: Mapping[str, Agreement]
    by_people: Mapping[tuple[str, str], Agreement]


def measure_agreement(pairs: Iterable[OpinionPair]) -> TeamAgreement:
    """Measure the agreement over all labels, by class, and by two people."""
    everything: list[tuple[int, int]] = []
    classes: dict[str, list[tuple[int, int]]] = defaultdict(list)
    people: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for pair in pairs:
        assert pair.first.value is not None and pair.second.value is not None
        values = pair.first.value, pair.second.value
        everything.append(values)
        classes[pair.first.key.class_name].append(values)
        people[pair.people].append(values if pair.first.reviewer == pair.people[0] else values[::-1])
    return TeamAgreement(_agreement(everything), _each(classes), _each(people))


def _each(groups: Mapping[_Key, Sequence[tuple[int, int]]]) -> dict[_Key, Agreement]:
    return {key: _agreement(groups[key]) for key in sorted(groups)}


def _agreement(answers: Sequence[tuple[int, int]]) -> Agreement:
    known = [pair for pair in answers if UNKNOWN not in pair]
    counts = np.zeros((2, 2), dtype=np.int64)
    for first, second in known:
        counts[int(first == PRESENT), int(second == PRESENT)] += 1
    kappa = cohen_kappa(counts)
    interval = None if kappa is None or len(known) < MIN_PAIRS else kappa_interval(counts)
    return Agreement(len(known), int(np.trace(counts)), len(answers) - len(known), kappa, interval)


def cohen_kappa(counts: NDArray[np.int64]) -> float | None:
    """Return κ of a table of counts, first answers by second answers; None where it is undefined.

    Example:
        >>> cohen_kappa(np.array([[20, 5], [10, 15]])), cohen_kappa(np.array([[9, 0], [0, 0]]))
        (0.4, None)
    """
    total = int(counts.sum())
    chance = int(counts.sum(0) @ counts.sum(1))  # p_e and p_o, multiplied by the square of the total
    if not total or chance == total**2:
        return None
    return float((int(np.trace(counts)) * total - chance) / (total**2 - chance))


def kappa_interval(counts: NDArray[np.int64]) -> tuple[float, float]:
    """Return the 95 % interval of κ, given a table of counts.

    It is that of the posterior under Jeffreys' prior for four shares, a Dirichlet distribution with ½ each, drawn 4,000
    times with a fixed seed; unlike the normal interval it has a width where everybody agreed. In simulations with 1 to
    15 % of errors and 5 to 50 % yes it held in 93 to 99 % of cases with 20, 50 and 200 pairs (600 repetitions each).

    Example:
        >>> low, high = kappa_interval(np.array([[15, 0], [0, 15]]))
        >>> (round(low, 1), round(high, 1))
        (0.8, 1.0)
    """
    drawn = np.random.default_rng(0).standard_gamma(counts.ravel() + _PRIOR, size=(_DRAWS, 4))
    share = drawn / drawn.sum(1, keepdims=True)
    agreed = share[:, 0] + share[:, 3]
    first, second = share[:, 2] + share[:, 3], share[:, 1] + share[:, 3]
    chance = first * second + (1 - first) * (1 - second)
    low, high = np.quantile((agreed - chance) / (1 - chance), [0.025, 0.975])
    return float(low), float(high)


def describe_agreement(agreement: Agreement) -> str:
    """Return an agreement in words.

    Example:
        >>> describe_agreement(Agreement(30, 29, 2, 0.913, (0.71, 0.98)))
        '29 of 30 the same, κ 0.91 (0.71–0.98); 2 more with "can\\'t tell"'
        >>> describe_agreement(Agreement(8, 8, 0, None, None))
        '8 of 8 the same; κ is undefined, since every answer is the same'
    """
    if not agreement.pairs:
        text = "no label has two answers of yes or no yet"
    else:
        text = f"{agreement.agreed:,} of {agreement.pairs:,} the same"
        if agreement.kappa is None:
            text += "; κ is undefined, since every answer is the same"
        else:
            text += f", {describe_kappa(agreement)}"
            text += " (too few for an interval)" if agreement.interval is None else ""
    return text + (f'; {agreement.unsure:,} more with "can\'t tell"' if agreement.unsure else "")


def describe_kappa(agreement: Agreement) -> str:
    """Return κ with its interval, shortly.

    Example:
        >>> describe_kappa(Agreement(30, 29, 2, 0.913, (0.71, 0.98))), describe_kappa(Agreement(8, 8, 0, None, None))
        ('κ 0.91 (0.71–0.98)', 'κ undefined from 8')
    """
    if agreement.kappa is None:
        return f"κ undefined from {agreement.pairs:,}"
    interval = "" if agreement.interval is None else " ({:.2f}–{:.2f})".format(*agreement.interval)
    return f"κ {agreement.kappa:.2f}{interval}"
