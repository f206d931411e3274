"""What an open page says about its lease: that it needs one again, or that it was left."""

from __future__ import annotations

import numpy as np
from fastapi import APIRouter

from labelgap.review.routes.context import Browser, Context
from labelgap.review.schemas import LeaseMessage
from labelgap.review.team import Holder

router = APIRouter()


@router.post("/api/leases")
def lease(context: Context, browser: Browser, message: LeaseMessage) -> dict[str, list[str]]:
    """Lease what a page shows, after a restart or a long sleep; return what somebody else looks at by now.

    A page that shows nothing any more holds nothing.
    """
    holder, found = Holder(browser, message.lease), {}
    for identity in message.ids if message.store == context.review.store.id else ():
        number = context.review.candidates.index(identity)
        if number is not None:
            found[number] = identity
    if not found:
        context.leases.release(holder)
        return {"refused": []}
    granted = context.leases.take(holder, np.array(list(found), dtype=np.int64), place=message.class_number)
    context.leases.renew(holder, message.reviewer)
    return {"refused": [found[number] for number in found.keys() - set(granted.tolist())]}
