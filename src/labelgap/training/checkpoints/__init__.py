"""Checkpoints."""

__all__: list[str] = []
