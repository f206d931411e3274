"""Tables."""

__all__: list[str] = []
