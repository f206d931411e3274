"""Inference."""

__all__: list[str] = []
