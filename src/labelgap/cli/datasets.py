"""``labelgap datasets``: list the formats of data, describe one, or check a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

if TYPE_CHECKING:
    from labelgap.data import DatasetReader

_SHOWN: Final = 40
"""Problems of a folder that are printed."""


def datasets(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Describe this data set.")] = None,
    path: Annotated[
        Path | None,
        typer.Argument(metavar="[PATH]", help="Check this folder: what is missing or another version."),
    ] = None,
) -> None:
    """List the data that can be read, describe one data set, or check its folder."""
    from labelgap.cli.printing import print_table
    from labelgap.data import describe_dataset, describe_datasets

    if name is not None and path is None and "=" in name:  # as the other commands take it
        name, _, place = name.partition("=")
        path = Path(place)
    if name is None:
        rows = [(row.name, row.path_to or "–", row.summary) for row in describe_datasets()]
        print_table(("data set", "path to", "summary"), rows)
        print("\nlabelgap datasets NAME         where its files come from, which are needed, options, license")
        print("labelgap datasets NAME PATH    what is missing in a folder")
    elif path is None:
        _describe(describe_dataset(name))
    else:
        _check(describe_dataset(name), path.expanduser())


def _describe(reader: DatasetReader) -> None:
    import inspect

    layout = reader.layout
    print(f"{reader.name}: {reader.summary}\n")
    for title, text in (("paper", reader.reference), ("source", layout.source), ("license", layout.license)):
        if text:
            print(f"{title:<10}{text}")
    for title, lines in (("files", layout.tree()), ("note", layout.notes)):
        for number, line in enumerate(lines):
            print(f"{'' if number else title:<10}{line}")
    if not layout.tried:
        print(f"{'tried':<10}no: the reader is written from the published description, not tried on the real files")
    _print_options(reader)
    print(f"\n{inspect.getdoc(reader.load)}\n")
    place = f"={reader.layout.root or 'PATH'}" if reader.path_to else ""
    print(f"{'read it':<10}labelgap inspect {reader.name}{place}")
    if layout.find is not None:
        print(f"{'check it':<10}labelgap datasets {reader.name} PATH")


def _print_options(reader: DatasetReader) -> None:
    from dataclasses import fields

    from labelgap.cli.options import DataOptions

    flags = {field.name for field in fields(DataOptions)}
    options = [f"--{name.replace('_', '-')}" for name in reader.options if name in flags]
    if options:
        print(f"{'options':<10}{' '.join(options)}")


def _check(reader: DatasetReader, path: Path) -> None:
    import inspect
    import shlex

    from labelgap.core.errors import Problem, ProblemsError
    from labelgap.data import describe_datasets

    problems = reader.problems(path)
    if problems:
        outcome = f"`labelgap datasets {reader.name}` shows how the files must lie"
        error = ProblemsError(path, [*map(Problem, range(len(problems)), problems)], outcome, _SHOWN, unit="")
        others = [each.name for each in describe_datasets() if each.name != reader.name and each.recognizes(path)]
        if others and not reader.recognizes(path):
            error.add_note(f"it looks like {others[0]}: labelgap datasets {others[0]} {shlex.quote(str(path))}")
        raise error
    root = reader.layout.find(path) if reader.layout.find is not None else path
    checked = "is complete" if reader.layout.find is not None else "is not checked further"
    print(f"{path} {checked}: {reader.path_to} ({reader.name}){'' if root == path else f', in {root}'}")
    summary, _, _ = (inspect.getdoc(reader.load) or reader.summary).partition("\n")
    print(f"{'read as':<10}{summary}")
    _print_options(reader)
    print(f"{'read it':<10}labelgap inspect {shlex.quote(f'{reader.name}={path}')}")
