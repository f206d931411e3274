"""timm for the tests, imported as a backbone imports it."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from labelgap.models.timm.library import import_timm

__all__ = ["timm_or_skip"]


def timm_or_skip() -> Any:
    """Return timm; skip the test, or the module, where it is not installed."""
    if importlib.util.find_spec("timm") is None:
        pytest.skip("timm is not installed", allow_module_level=True)
    return import_timm()
