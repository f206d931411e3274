"""``labelgap datasets``: list the formats of data."""

from __future__ import annotations

__all__ = ["datasets"]


def datasets() -> None:
    """List the data that can be read."""
    from labelgap.cli.printing import print_table
    from labelgap.data import describe_datasets

    rows = [(row.name, row.path_to or "–", row.summary) for row in describe_datasets()]
    print_table(("data set", "path to", "summary"), rows)
