"""Adding a class that nobody labeled."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from labelgap.core.errors import InputError
from labelgap.reporting.formatting import single_line
from labelgap.review.routes.context import Context
from labelgap.review.schemas import ClassMessage

router = APIRouter()


@router.post("/api/classes")
def add_class(context: Context, message: ClassMessage) -> JSONResponse:
    """Add a class; 422 with the reason for a name that cannot be used."""
    review = context.review
    if message.store != review.store.id:
        return JSONResponse({"problem": "store", "detail": f"this is {review.name}, another review."}, 409)
    try:
        name = review.added.add(message.name, message.reviewer, review.candidates)
    except InputError as error:
        return JSONResponse({"problem": "name", "detail": single_line(str(error))}, 422)
    review.refresh_classes(now=True)
    review.similar.prepare()
    return JSONResponse({"number": review.candidates.classes.index(name), "name": name})
