"""The configuration of a run: its schema, defaults and presets, and how what the user leaves open is resolved."""

__all__: list[str] = []
