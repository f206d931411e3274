"""What a team has done, for ``labelgap review --summary`` and ``--json``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

from labelgap.core.text import pluralize
from labelgap.review.store import DecisionStore
from labelgap.review.store.events import ANSWER_TEXT, DecisionEvent
from labelgap.review.team.agreement import (
    OpinionPair,
    TeamAgreement,
    describe_agreement,
    describe_kappa,
    measure_agreement,
)
from labelgap.review.team.people import PersonProgress, count_people
from labelgap.review.team.second_opinions import SecondOpinions

_MAX_CLASSES: Final = 5


@dataclass(frozen=True)
class TeamSummary:
    """What a team has done.

    Attributes:
        people: who decided most labels first.
        agreement: of first and second answers.
        open: pairs of different answers that nobody has settled yet.
    """

    people: list[PersonProgress]
    agreement: TeamAgreement
    open: list[OpinionPair]

    def to_json(self) -> dict[str, Any]:
        """Return the parts of the summary as JSON."""
        found = self.agreement
        return {
            "people": [asdict(person) for person in self.people],
            "agreement": {
                "total": asdict(found.total),
                "classes": [{"class": name, **asdict(each)} for name, each in found.by_class.items()],
                "people": [{"people": list(names), **asdict(each)} for names, each in found.by_people.items()],
            },
            "disagreements": [
                {**pair.first.key._asdict(), "first": _answer(pair.first), "second": _answer(pair.second)}
                for pair in self.open
            ],
        }

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield the parts of the summary as text: a keyword and a line; the keyword is empty where a line continues."""
        if self.people:
            yield "by", ", ".join(_describe_person(person) for person in self.people)
        found = self.agreement
        if not (found.total.pairs or found.total.unsure):
            return
        yield "agreement", f"second opinions: {describe_agreement(found.total)}"
        if len(found.by_people) > 1:
            yield "", "; ".join(f"{a} and {b} {describe_kappa(each)}" for (a, b), each in found.by_people.items())
        known = [(name, each) for name, each in found.by_class.items() if each.kappa is not None]
        known.sort(key=lambda pair: (pair[1].kappa, -pair[1].pairs))
        if len(found.by_class) > 1 and known:
            rest = len(found.by_class) - len(known[:_MAX_CLASSES])
            text = "; ".join(f"{name} {describe_kappa(each)}" for name, each in known[:_MAX_CLASSES])
            yield "", f"least: {text}" + (f"; --json has {rest:,} more" if rest else "")
        if self.open:
            text = pluralize(len(self.open), "label")
            yield "settle", f"{text} with two different answers: the page /settle of the review asks about them"


def summarize_team(store: DecisionStore) -> TeamSummary:
    """Return what the team of a review has done."""
    pairs = SecondOpinions(store).pairs()
    people = count_people(store.events(), store.current())
    return TeamSummary(people, measure_agreement(pairs), [pair for pair in pairs if pair.is_open])


def _describe_person(person: PersonProgress) -> str:
    parts = [] if person.per_minute is None else [f"{person.per_minute:.0f} a minute"]
    parts += [pluralize(person.second, "second opinion")] if person.second else []
    return f"{person.name} {person.decided:,}" + (f" ({', '.join(parts)})" if parts else "")


def _answer(event: DecisionEvent) -> dict[str, str]:
    assert event.value is not None
    return {"reviewer": event.reviewer, "answer": ANSWER_TEXT[event.value]}
