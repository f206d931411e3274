"""The routes of the review page, one module for each part of it."""

from __future__ import annotations

__all__: list[str] = []
