"""Writers: from a ``Dataset`` to the formats of other tools, and back."""

__all__: list[str] = []
