"""Config."""

__all__: list[str] = []
