"""Timm."""

__all__: list[str] = []
