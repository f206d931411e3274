"""Pages of the command line, from the parser itself: every command, argument and option."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from labelgap.cli.main import make_app

__all__ = ["command_pages", "commands"]

FOLDER = "commands"
HIDDEN = {"help"}


def commands() -> dict[str, Any]:
    """Return every command by the words that call it, ``cache clear`` for one of a group; groups included."""
    return dict(_walk(typer.main.get_command(make_app()), ""))


def _walk(group: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if not command.hidden:
            yield f"{prefix}{name}", command
            if hasattr(command, "commands"):
                yield from _walk(command, f"{prefix}{name} ")


def command_pages() -> dict[str, str]:
    """Return the Markdown of every page, by its path: an overview, and a page for each command with its subcommands."""
    found = commands()
    pages = {f"{FOLDER}/index.md": _overview(found)}
    for name, command in found.items():
        if " " not in name:
            below = [each for each in found.items() if each[0].startswith(f"{name} ")]
            text = "\n".join([f"# labelgap {name}", "", *_body(name, command)])
            for sub, subcommand in below:
                text += "\n".join(["", f"## labelgap {sub}", "", *_body(sub, subcommand)])
            pages[f"{FOLDER}/{name}.md"] = text
    return pages


def _overview(found: dict[str, Any]) -> str:
    lines = [
        "# Commands",
        "",
        "Every command and option, made from the program itself. `labelgap COMMAND --help` prints",
    ]
    lines += ["the same. The exit code is 0, 2 for an error of the input or the system, 1 for a bug of labelgap.", ""]
    panels: dict[str, list[str]] = {}
    for name, command in found.items():
        if " " not in name:
            panel = getattr(command, "rich_help_panel", None) or "Commands"
            row = f"| [`labelgap {name}`]({name}.md) | {_sentence(command.help)} |"
            panels.setdefault(panel, []).append(row)
    for panel, rows in panels.items():
        lines += [f"## {panel}", "", "| command | what it does |", "|---|---|", *rows, ""]
    return "\n".join(lines)


def _body(name: str, command: Any) -> list[str]:
    context = typer.Context(command, info_name=f"labelgap {name}")
    usage = " ".join(command.collect_usage_pieces(context))
    lines = [_text(command.help), "", "```text", f"labelgap {name} {usage}".rstrip(), "```", ""]
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    if arguments:
        lines += ["| argument | | |", "|---|---|---|"]
        lines += [f"| `{_metavar(each)}` | {_text(each.help)} | {_default(each)} |" for each in arguments]
        lines += [""]
    panels: dict[str, list[str]] = {"Options": []}
    for option in command.params:
        if option.param_type_name == "option" and not option.hidden and option.name not in HIDDEN:
            names = " ".join(f"`{each}`" for each in (*option.opts, *option.secondary_opts))
            value = "" if getattr(option, "is_flag", False) else f" `{_metavar(option)}`"
            row = f"| {names}{value} | {_text(option.help)} | {_default(option)} |"
            panels.setdefault(getattr(option, "rich_help_panel", None) or "Options", []).append(row)
    for panel, rows in panels.items():
        if rows:
            lines += [f"**{panel}**", "", "| option | what it does | default |", "|---|---|---|", *rows, ""]
    return lines


def _metavar(parameter: Any) -> str:
    """Return the name of a value in the help: that of the program, else its type."""
    if parameter.metavar:
        return str(parameter.metavar)
    if parameter.param_type_name == "argument":
        return str(parameter.name).upper()
    described = getattr(parameter, "type_descriptor", None)
    kind = described.annotation.__name__ if described is not None else parameter.type.name
    return {"float": "NUMBER", "integer": "INT", "list": "TEXT", "str": "TEXT"}.get(kind, str(kind).upper())


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    shown = getattr(parameter, "show_default", None)
    if isinstance(shown, str):
        return _text(shown)
    value = parameter.default
    if value is None or value is False or callable(value) or value == () or value == []:
        return ""
    return f"`{value}`" if value is not True else "on"


def _sentence(text: str | None) -> str:
    return _text((text or "").split("\n\n")[0])


def _text(text: str | None) -> str:
    """Return a help text for a cell or a paragraph of Markdown: nothing of it is markup."""
    joined = " ".join((text or "").split())
    for character in "\\*_<>[]|$":
        joined = joined.replace(
            character, f"\\{character}" if character not in "<>" else {"<": "&lt;", ">": "&gt;"}[character]
        )
    return joined
