"""The page on which disagreements are settled: labels with two different answers, both shown."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from labelgap.review.routes.context import Context, render_page
from labelgap.review.session import Review
from labelgap.review.store.events import ANSWER_TEXT, DecisionEvent
from labelgap.review.team import describe_agreement, measure_agreement
from labelgap.review.team.agreement import describe_kappa
from labelgap.review.views import make_tile

_PAGE_SIZE: Final = 60

router = APIRouter()


@router.get("/settle", response_class=HTMLResponse)
def settle(context: Context) -> str:
    """Show the labels that two people answered differently, and how well people agree."""
    return render_page(context, "settle.html", None, lambda: settle_context(context.review))


def settle_context(review: Review) -> dict[str, Any]:
    """Return the open disagreements, a page of them, and the agreement by class and by people.

    A tile is shown without the decision in force, and with the version of it: any answer settles.
    """
    pairs = review.opinions.pairs()
    tiles = []
    for pair in (pair for pair in pairs if pair.is_open):
        number = review.candidates.number_of(pair.first.key)
        if number is not None:
            answers = [_answer(pair.first), _answer(pair.second)]
            tiles.append({**make_tile(review, number), "value": "", "who": "", "answers": answers})
    agreement = measure_agreement(pairs)
    named = [*agreement.by_class.items(), *((" and ".join(each), found) for each, found in agreement.by_people.items())]
    return {
        "tiles": tiles[:_PAGE_SIZE],
        "total": len(tiles),
        "agreement": describe_agreement(agreement.total),
        "rows": [(name, found.pairs, found.agreed, found.unsure, describe_kappa(found)) for name, found in named],
    }


def _answer(event: DecisionEvent) -> tuple[str, str]:
    assert event.value is not None
    return event.reviewer, ANSWER_TEXT[event.value]
