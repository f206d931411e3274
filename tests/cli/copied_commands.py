"""Commands that an output or a page tells a person to copy."""

from __future__ import annotations

import re
import shlex

import typer

from labelgap.cli.main import make_app


def copied_commands(text: str) -> list[str]:
    """The commands about reviews at the end of lines, after spaces or a heading of one word."""
    return re.findall(r"^\w* *(labelgap (?:review|evaluate|apply) .*)$", text, re.M)


def check_command(command: str, begins: str) -> list[str]:
    """Check how a command begins and that the command line takes all of it; return its words."""
    assert command.startswith(f"labelgap {begins}"), command
    words = shlex.split(command)[1:]
    group = typer.main.get_command(make_app())
    context = group.make_context("labelgap", list(words))
    name, subcommand, rest = group.resolve_command(context, words)  # type: ignore[attr-defined]
    subcommand.make_context(name, rest, parent=context)
    return words
