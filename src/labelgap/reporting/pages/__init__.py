"""Pages."""

__all__: list[str] = []
