"""The commands, thin: parse, call, print."""

__all__: list[str] = []
