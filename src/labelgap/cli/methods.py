"""``labelgap methods``: list the methods, or describe one."""

from __future__ import annotations

import inspect
import re
import textwrap
from typing import Annotated

from typer import Argument

import labelgap as lg
from labelgap.cli.options import option
from labelgap.cli.printing import print_table
from labelgap.core.text import join_numbers


def methods(
    name: Annotated[str | None, Argument(metavar="[NAME]", help="Describe this method.")] = None,
    markdown: Annotated[bool, option("Print the page docs/methods.md.")] = False,
) -> None:
    """List every method, or describe one."""
    if markdown:
        from labelgap.reporting import methods_markdown

        print(methods_markdown(), end="")
    elif name is not None:
        _print_method(name)
    else:
        rows = map(lg.losses.describe_method, lg.losses.methods())
        print_table(("method", "paper", "summary"), [(row.name, row.reference, row.summary) for row in rows])
        print("\nlabelgap methods NAME    equation, options and defaults")


def _print_method(name: str) -> None:
    from labelgap.losses.base.registry import PAPER_DATASETS, option_meanings

    method, meanings = lg.losses.describe_method(name), option_meanings(name)
    print(f"{name} ({method.reference}): {method.summary}\n\n{_plain(_about(method.loss_class))}\n")
    for each, default in lg.losses.method_options(name).items():
        print(f"  --option {each}={'…' if default is None else join_numbers(default)}")
        print(textwrap.indent(textwrap.fill(_plain(meanings.get(each, "")), 100), " " * 8))
    for dataset in PAPER_DATASETS:
        if settings := lg.losses.published_options(name, dataset):
            values = ", ".join(f"{each}={join_numbers(value)}" for each, value in settings.items())
            print(f"  published for {dataset}: {values}")


def _about(loss_class: type) -> str:
    """Return what a method does: the text of its class, of the cost of an entry, and of the base class it refers to."""
    own = inspect.getdoc(loss_class) or ""
    parts = [vars(lg.functional).get(name) for name in re.findall(r"``(\w+)``", own)]
    parts += [base for base in loss_class.__mro__ if f" See ``{base.__name__}``" in own]
    texts = (
        re.split(r"\n(?:Args|Example):\n", text)[0] for text in (own, *map(inspect.getdoc, filter(None, parts))) if text
    )
    return "\n\n".join(map(str.rstrip, texts))


def _plain(text: str) -> str:
    """Remove the markup of a docstring; equations stay in LaTeX, in a paragraph of their own."""
    text = re.sub(r" ?(?:Options: s|S)ee ``\w+``\.| Abstract\.|; final(?=\.)", "", text)
    text = re.sub(r":math:`([^`]*)`", r"\1", text).replace("``", "")
    return re.sub(r"^\.\. math:: ", "    ", text, flags=re.MULTILINE)
