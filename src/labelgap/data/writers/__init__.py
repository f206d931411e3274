"""Writers: ``formats.convert`` writes the labels of a ``Dataset`` for other tools. There is a module per tool.

``exchange`` holds what they share: one table of all splits, and the split of every row.
"""

__all__: list[str] = []
