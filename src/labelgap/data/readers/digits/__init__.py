"""Digits."""

__all__: list[str] = []
