"""The pages of results, each with its tables, figures and template."""

__all__: list[str] = []
