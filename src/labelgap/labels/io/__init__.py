"""Io."""

__all__: list[str] = []
