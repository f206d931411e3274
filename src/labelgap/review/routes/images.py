"""Images, heat maps and static files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fastapi import APIRouter, HTTPException, Response

from labelgap.core.errors import LabelGapError
from labelgap.reporting.formatting import single_line
from labelgap.review.routes.context import Context, find_candidate, find_image
from labelgap.review.schemas import CandidateId
from labelgap.review.thumbnails import LARGE_SIZE, THUMBNAIL_SIZE
from labelgap.review.views import static_files

_CACHEABLE: Final = {"cache-control": "private, max-age=3600"}
"""For images and static files; the address of a static file changes with its content."""

router = APIRouter()


@router.get("/thumbnail/{identity}")
def thumbnail(context: Context, identity: CandidateId) -> Response:
    """Return an image, small."""
    return _image_response(lambda: context.thumbnails.get(find_image(context, identity), THUMBNAIL_SIZE), "webp")


@router.get("/large/{identity}")
def large(context: Context, identity: CandidateId) -> Response:
    """Return an image, large."""
    return _image_response(lambda: context.thumbnails.get(find_image(context, identity), LARGE_SIZE), "webp")


@router.get("/heat/{identity}")
def heat(context: Context, identity: CandidateId) -> Response:
    """Return the class activation map of a candidate."""
    number, columns = find_candidate(context, identity), context.review.candidates.columns
    arguments = int(columns.image[number]), int(columns.class_number[number])
    return _image_response(lambda: context.heat_maps.get(*arguments), "png")


@router.get("/static/{version}/{name}")
def static(version: str, name: str) -> Response:
    """Return a script or a style sheet by its name; the version only keeps addresses of old files apart."""
    if name not in static_files():
        raise HTTPException(404, "there is no such file.")
    data, media_type = static_files()[name]
    return Response(data, media_type=media_type, headers=_CACHEABLE)


def _image_response(make: Callable[[], bytes], image_format: str) -> Response:
    try:
        data = make()
    except (LabelGapError, OSError, RuntimeError, ImportError) as error:
        raise HTTPException(404, single_line(str(error))) from None
    return Response(data, media_type=f"image/{image_format}", headers=_CACHEABLE)
