"""Readers: a module per format, each with a function from a path and options to a ``Dataset``."""

__all__: list[str] = []
