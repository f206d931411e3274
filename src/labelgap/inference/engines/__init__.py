"""Thin adapters: what runs a ``Predictor`` on many machines. ``labelgap.ray`` and ``labelgap.spark`` are these."""

__all__: list[str] = []
