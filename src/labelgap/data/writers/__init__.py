"""Writers."""

__all__: list[str] = []
