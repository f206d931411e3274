"""``labelgap methods``, ``datasets`` and ``backbones``: what there is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

import typer

__all__ = ["backbones", "datasets", "methods"]


def methods(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Tell all of one method.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="As the page docs/methods.md.")] = False,
) -> None:
    """List every method, or tell all of one."""
    from labelgap.objectives import describe
    from labelgap.objectives import methods as names
    from labelgap.reporting import methods_page

    if markdown:
        print(methods_page(), end="")
    elif name is not None:
        _one_method(name)
    else:
        entries = [describe(known) for known in names()]
        _print(("method", "paper", "what it does"), [(e.name, e.reference, e.summary) for e in entries])
        print("\nlabelgap methods NAME    its equation, options and defaults")


def _one_method(name: str) -> None:
    import inspect

    from labelgap.objectives import describe, option_names, published
    from labelgap.objectives.published import DATASETS

    entry = describe(name)
    print(f"{name} ({entry.reference}): {entry.summary}\n\n{inspect.getdoc(entry.value)}\n")
    for option, default in option_names(name).items():
        print(f"  --option {option}={'…' if default is None else default}")
    for dataset in DATASETS:
        if settings := published(name, dataset):
            told = ", ".join(f"{option}={value:g}" for option, value in settings.items())
            print(f"  on {dataset}, as its paper has it: {told}")


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
