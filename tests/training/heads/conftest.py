"""What the tests of the linear engine share."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest


@pytest.fixture
def quiet() -> Iterator[None]:
    """Leave out the warnings of thresholds and rounds, which other tests are about."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield
