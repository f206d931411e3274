"""Tables of a study and of a comparison, for the terminal and for the pages."""

__all__: list[str] = []
