"""The commands, thin: parse, call, print. What is imported ``if TYPE_CHECKING`` is imported when the command runs."""

__all__: list[str] = []
