"""Figures."""

__all__: list[str] = []
