"""Readers."""

__all__: list[str] = []
