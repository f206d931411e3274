"""The scenes of digits that most trainings here learn from."""

from __future__ import annotations

import pytest

import labelgap as lg


@pytest.fixture(scope="session")
def digits() -> lg.Dataset:
    return lg.load("digits", train=40, val=20, test=20)
