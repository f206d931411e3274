"""Figures, from arrays and results to matplotlib; they keep no state and open no window."""

__all__: list[str] = []
