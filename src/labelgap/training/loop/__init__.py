"""Loop."""

__all__: list[str] = []
