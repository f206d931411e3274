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
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(StarletteHTTPException, _http_error)
    app.add_exception_handler(LabelGapError, _own_error)
    app.add_exception_handler(Exception, _unexpected_error)
    return app


async def _validation_error(request: Request, error: Exception) -> Response:
    """Describe what is wrong with an input, without returning the input."""
    assert isinstance(error, RequestValidationError)
    problems = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()[:5]]
    return _error_response(request, 422, "invalid", single_line("; ".join(problems))[:500])


async def _http_error(request: Request, error: Exception) -> Response:
    """Return an error as a page to a person and as JSON to the script."""
    assert isinstance(error, StarletteHTTPException)
    return _error_response(request, error.status_code, "refused", error.detail)


async def _own_error(request: Request, error: Exception) -> Response:
    """Tell the page and the terminal what is wrong on this machine, e.g. a full disk or a damaged file."""
    context: AppContext = request.app.state.context
    message = single_line(str(error))
    if message != context.reported:
        context.reported = message
        print(f"labelgap: {message}", file=sys.stderr, flush=True)
    status = 507 if isinstance(error, DiskError) and error.full else 503
    return _error_response(request, status, "unsaved", message)


async def _unexpected_error(request: Request, error: Exception) -> Response:
    return _error_response(request, 500, "unsaved", f"labelgap has a bug ({type(error).__name__}): see its terminal.")


def _error_response(request: Request, status: int, problem: str, detail: str) -> Response:
    if "text/html" in request.headers.get("accept", ""):
        return HTMLResponse(render("error.html", message=detail, status=status), status)
    return JSONResponse({"problem": problem, "detail": detail}, status)
