"""Exports of a run for other tools: one file for each, which the command ``export`` calls."""

__all__: list[str] = []
