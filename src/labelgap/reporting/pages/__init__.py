"""The values that the templates of the HTML pages take, and the page of methods in Markdown."""

__all__: list[str] = []
