"""``labelgap methods``: list the methods, or describe one."""

from __future__ import annotations

import re
import textwrap
from typing import Annotated

import typer


def methods(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Describe this method.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the page docs/methods.md.")] = False,
) -> None:
    """List every method, or describe one."""
    from labelgap.cli.printing import print_table
    from labelgap.losses import describe_method
    from labelgap.losses import methods as method_names
    from labelgap.reporting import methods_markdown

    if markdown:
        print(methods_markdown(), end="")
    elif name is not None:
        _print_method(name)
    else:
        rows = [describe_method(known) for known in method_names()]
        print_table(("method", "paper", "summary"), [(row.name, row.reference, row.summary) for row in rows])
        print("\nlabelgap methods NAME    equation, options and defaults")


def _print_method(name: str) -> None:
    import inspect

    from labelgap.losses import describe_method, method_options, published_options
    from labelgap.losses.base.published_settings import PAPER_DATASETS
    from labelgap.losses.base.registry import option_meanings

    method, meanings = describe_method(name), option_meanings(name)
    about = (inspect.getdoc(method.loss_class) or "").partition("\nArgs:\n")[0].rstrip()
    print(f"{name} ({method.reference}): {method.summary}\n\n{_plain(about)}\n")
    for option, default in method_options(name).items():
        print(f"  --option {option}={'…' if default is None else default}")
        print(textwrap.indent(textwrap.fill(_plain(meanings.get(option, "")), 100), " " * 8))
    for dataset in PAPER_DATASETS:
        if settings := published_options(name, dataset):
            values = ", ".join(f"{option}={value:g}" for option, value in settings.items())
            print(f"  published for {dataset}: {values}")


def _plain(text: str) -> str:
    """Remove the markup of a docstring; equations stay in LaTeX, in a paragraph of their own."""
    text = re.sub(r" ?Options: see ``\w+``\.", "", text)
    text = re.sub(r":math:`([^`]*)`", r"\1", text).replace("``", "")
    return re.sub(r"^\.\. math:: ", "    ", text, flags=re.MULTILINE)
