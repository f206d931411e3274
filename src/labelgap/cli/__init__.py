"""The commands, thin: parse, call, print. What only the running of a command needs is imported inside its function."""

__all__: list[str] = []
