"""``labelgap datasets``: list the formats of data, describe one, or check a folder."""

from __future__ import annotations

import inspect
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument

from labelgap.cli.printing import print_fields, print_table
from labelgap.core.errors import Problem, ProblemsError
from labelgap.core.settings import DATA_OPTIONS

if TYPE_CHECKING:
    from labelgap.data import DatasetReader


def datasets(
    name: Annotated[str | None, Argument(metavar="[NAME]", help="Describe this data set.")] = None,
    path: Annotated[Path | None, Argument(metavar="[PATH]", help="Check this folder: what is missing.")] = None,
) -> None:
    """List the data that can be read, describe one data set, or check its folder."""
    from labelgap.data import describe_dataset, describe_datasets

    if name is None:
        rows = [(row.name, row.path_to or "–", row.summary) for row in describe_datasets()]
        print_table(("data set", "path to", "summary"), rows)
        print("\nlabelgap datasets NAME         where its files come from, which are needed, options, license")
        print("labelgap datasets NAME PATH    what is missing in a folder")
        return
    name, equals, place = name.partition("=")  # NAME=PATH, as the other commands take it
    reader = describe_dataset(name)
    options = " ".join(f"--{each.replace('_', '-')}" for each in reader.options if each in DATA_OPTIONS)
    if path is None and not equals:
        _describe(reader, options)
    else:
        _check(reader, options, (path or Path(place)).expanduser())


def _describe(reader: DatasetReader, options: str) -> None:
    layout = reader.layout
    tried = "" if layout.tried else "no: the reader is written from the published description, not tried on real files"
    print(f"{reader.name}: {reader.summary}\n")
    print_fields(
        *(("paper", reader.reference), ("source", layout.source), ("license", layout.license)),
        *(("files", layout.tree()), ("note", layout.notes), ("tried", tried), ("options", options)),
    )
    print(f"\n{inspect.getdoc(reader.load)}\n")
    place = f"={layout.root or 'PATH'}" if reader.path_to else ""
    check = None if layout.find is None else f"labelgap datasets {reader.name} PATH"
    print_fields(("read it", f"labelgap inspect {reader.name}{place}"), ("check it", check))


def _check(reader: DatasetReader, options: str, path: Path) -> None:
    from labelgap.data import describe_datasets

    if problems := reader.problems(path):
        outcome = f"`labelgap datasets {reader.name}` shows how the files must lie"
        error = ProblemsError(path, [*map(Problem, range(len(problems)), problems)], outcome, 40, unit="")
        others = [each.name for each in describe_datasets() if each.name != reader.name and each.recognizes(path)]
        if others and not reader.recognizes(path):
            error.add_note(f"it looks like {others[0]}: labelgap datasets {others[0]} {shlex.quote(str(path))}")
        raise error
    find = reader.layout.find
    root, checked = (path, "is not checked further") if find is None else (find(path), "is complete")
    print(f"{path} {checked}: {reader.path_to} ({reader.name}){'' if root == path else f', in {root}'}")
    summary, _, _ = (inspect.getdoc(reader.load) or reader.summary).partition("\n")
    command = f"labelgap inspect {shlex.quote(f'{reader.name}={path}')}"
    print_fields(("read as", summary), ("options", options), ("read it", command))
