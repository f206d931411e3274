"""The web application of the review page: its routes, and its answers to errors."""

from __future__ import annotations

import sys

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.exceptions import HTTPException as StarletteHTTPException

from labelgap.core.errors import LabelGapError
from labelgap.core.files import DiskError
from labelgap.reporting.formatting import single_line
from labelgap.review.context import AppContext
from labelgap.review.routes import router
from labelgap.review.views import render


def create_app(context: AppContext) -> FastAPI:
    """Create the application; ``SecurityMiddleware`` goes in front of it."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.state.context = context
    app.include_router(router)
    for kind in (RequestValidationError, StarletteHTTPException, LabelGapError, Exception):
        app.add_exception_handler(kind, _answer_error)
    return app


async def _answer_error(request: Request, error: Exception) -> Response:
    """Return an error as a page to a person and as JSON to the script; what is wrong here is printed, too."""
    if isinstance(error, RequestValidationError):  # without returning the input
        problems = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()[:5]]
        return _error_response(request, 422, "invalid", single_line("; ".join(problems))[:500])
    if isinstance(error, StarletteHTTPException):
        return _error_response(request, error.status_code, "refused", error.detail)
    if not isinstance(error, LabelGapError):
        detail = f"labelgap has a bug ({type(error).__name__}): see its terminal."
        return _error_response(request, 500, "unsaved", detail)
    context: AppContext = request.app.state.context
    message = single_line(str(error))
    if message != context.reported:  # e.g. a full disk or a damaged file
        context.reported = message
        print(f"labelgap: {message}", file=sys.stderr, flush=True)
    status = 507 if isinstance(error, DiskError) and error.full else 503
    return _error_response(request, status, "unsaved", message)


def _error_response(request: Request, status: int, problem: str, detail: str) -> Response:
    if "text/html" in request.headers.get("accept", ""):
        return HTMLResponse(render("error.html", message=detail, status=status), status)
    return JSONResponse({"problem": problem, "detail": detail}, status)
