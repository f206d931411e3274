"""Readers: from files of one format to a ``Dataset``."""

__all__: list[str] = []
