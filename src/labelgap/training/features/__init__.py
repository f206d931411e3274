"""Features."""

__all__: list[str] = []
