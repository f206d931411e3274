"""timm for the tests, imported as a backbone imports it, and only when it is used: not by collecting tests."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from labelgap.models.timm import import_timm


class _Timm:
    def __getattr__(self, name: str) -> Any:
        return getattr(import_timm(), name)


def timm_or_skip() -> Any:
    """Return timm, which is imported by its first use; skip the test, or the module, where it is not installed."""
    if importlib.util.find_spec("timm") is None:
        pytest.skip("timm is not installed", allow_module_level=True)
    return _Timm()
