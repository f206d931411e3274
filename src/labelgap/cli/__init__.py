"""The commands, thin: parse, call, print. What is imported ``if TYPE_CHECKING`` is imported when a command runs, too."""

__all__: list[str] = []
