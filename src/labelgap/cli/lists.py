"""``labelgap methods``, ``datasets`` and ``backbones``: what there is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["backbones", "datasets", "methods"]


def methods() -> None:
    """List every method with its paper and options."""
    from labelgap.objectives import describe, option_names
    from labelgap.objectives import methods as names

    rows = []
    for name in names():
        entry = describe(name)
        options = " ".join(key for key in option_names(name) if key not in ("eps", "reduction"))
        rows.append((name, entry.reference, entry.summary, options))
    _print(("method", "paper", "what it does", "options"), rows)


def datasets() -> None:
    """List the data that can be read."""
    from labelgap.data import describe_datasets

    rows = [(row.name, row.takes or "–", row.summary) for row in describe_datasets()]
    _print(("data set", "path to", "what it is"), rows)


def backbones() -> None:
    """List the networks, with where their weights come from."""
    from labelgap.models import describe as describe_backbones

    rows = [
        (row.name, f"{row.parameters:,}", f"{row.input_size} px", row.source, row.licence)
        for row in describe_backbones()
    ]
    _print(("backbone", "parameters", "input", "weights", "licence"), rows)


def _print(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*header, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*row)
    Console(highlight=False).print(table, markup=False)
