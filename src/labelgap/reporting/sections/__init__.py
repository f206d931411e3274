"""The sections of pages: each file computes, draws and renders one, with its template beside it."""

__all__: list[str] = []
