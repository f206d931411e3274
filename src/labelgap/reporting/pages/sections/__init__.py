"""The sections of pages, each with the values of its template."""

__all__: list[str] = []
