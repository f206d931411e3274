"""Estimator."""

__all__: list[str] = []
