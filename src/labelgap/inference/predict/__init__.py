"""Predict."""

__all__: list[str] = []
